use super::*;

fn event(text: &str) -> Line<'_> {
    match parse(text.as_bytes()) {
        Parsed::Event(line) => line,
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn a_line_of_the_kernel() {
    let line = event(
        "     CPU 0/KVM-181     (    170) [001] dNh2.   116.666965: kvm_entry: vcpu 0, rip 0x4f3",
    );
    assert_eq!(
        (line.comm, line.tid, line.tgid),
        (&b"CPU 0/KVM"[..], Tid(181), Some(Tid(170)))
    );
    assert_eq!(
        (line.cpu, line.stamp),
        (CpuId(1), Stamp::Ns(116_666_965_000))
    );
    assert_eq!(
        (line.event, line.body),
        (&b"kvm_entry"[..], &b"vcpu 0, rip 0x4f3"[..])
    );
    assert_eq!(line.context, Context::from_bits(0x01 | 0x24 | 0x08));
}

#[test]
fn names_may_hold_anything() {
    for (text, comm, tid) in [
        (
            "kworker/0:1-mm_percpu_wq-7 [000] d..2. 1.5: e: b",
            "kworker/0:1-mm_percpu_wq",
            7,
        ),
        ("a-1 [b] (c)-22 [000] ..... 1.5: e: b", "a-1 [b] (c)", 22),
        ("x: \"q\" -5-33 [000] 1.5: e: b", "x: \"q\" -5", 33),
        ("<...>-12    [011] d..1 1.5: e: b", "", 12),
        (
            "          <idle>-0       (-------) [000] d.h1. 1.5: e: b",
            "<idle>",
            0,
        ),
        ("  :[-44 [000] 1.5: e: b", ":[", 44),
    ] {
        let line = event(text);
        assert_eq!((line.comm, line.tid), (comm.as_bytes(), Tid(tid)), "{text}");
        assert_eq!(line.tgid, None, "{text}");
    }
}

#[test]
fn times_with_six_or_nine_digits_or_bare() {
    for (time, stamp) in [
        ("4939.603144639:", Stamp::Ns(4_939_603_144_639)),
        ("4939.603144:", Stamp::Ns(4_939_603_144_000)),
        ("0.000001:", Stamp::Ns(1_000)),
        ("3536187860869:", Stamp::Ticks(3_536_187_860_869)),
    ] {
        let text = format!("sh-1 [000] ..... {time} e: b");
        assert_eq!(event(&text).stamp, stamp);
    }
    for time in [
        "1.0000000001:",
        "1:2:",
        "99999999999999999999:",
        "18446744073709551615.9:",
        "1.",
    ] {
        let text = format!("sh-1 [000] ..... {time} e: b");
        assert!(
            !matches!(
                parse(text.as_bytes()),
                Parsed::Event(Line { event: b"e", .. })
            ),
            "{time}"
        );
    }
}

#[test]
fn flags_of_four_to_six_columns() {
    let bits = |flags: &str| context(flags.as_bytes()).map(Context::bits);
    assert_eq!(bits("...."), Some(0));
    assert_eq!(bits("d..1"), Some(0x01));
    assert_eq!(bits("DNs4.."), Some(0x81 | 0x24 | 0x10));
    assert_eq!(bits("bnH11"), Some(0x80 | 0x04 | 0x18));
    assert_eq!(bits(".pz.."), Some(0x20 | 0x40));
    assert_eq!(bits(".lZ.1"), Some(0x02 | 0x48));
    assert_eq!(bits(".L..."), Some(0x22));
    assert_eq!(bits(".B..."), Some(0x26));
    assert_eq!(bits(".b..."), Some(0x06));
    assert_eq!(bits("..."), None);
    assert_eq!(bits("d..2.[x"), None);
    let raw = event("sh-1   [001]-0x9   128.509045588: local_timer_entry:     vector=236");
    assert_eq!(raw.context, Context::from_bits(0x09));
    let latency =
        event("CPU 1/KV-205     1d.h1.   128.509045588: local_timer_entry:    vector=236");
    assert_eq!(
        (latency.cpu, latency.context),
        (CpuId(1), Context::from_bits(0x09))
    );
}

#[test]
fn losses_headers_and_stacks() {
    let lost = |cpu, count| Parsed::Lost {
        cpu: CpuId(cpu),
        count,
    };
    assert_eq!(parse(b"CPU:1 [750 EVENTS DROPPED]"), lost(1, Some(750)));
    assert_eq!(parse(b"CPU:0 [EVENTS DROPPED]"), lost(0, None));
    assert_eq!(parse(b"CPU:2 [LOST 12 EVENTS]"), lost(2, Some(12)));
    assert_eq!(parse(b"CPU:12 [LOST EVENTS]"), lost(12, None));
    assert_eq!(
        parse(b"# entries-in-buffer/entries-written: 10/25   #P:4"),
        Parsed::Entries {
            in_buffer: 10,
            written: 25,
            cpus: Some(4)
        }
    );
    assert_eq!(parse(b"cpus=4"), Parsed::Cpus(4));
    for nothing in [
        "",
        "   ",
        "# tracer: nop",
        " => vcpu_run",
        "##### CPU 1 buffer started ####",
    ] {
        assert_eq!(parse(nothing.as_bytes()), Parsed::Nothing, "{nothing}");
    }
    for unknown in [
        "hello",
        "cpus=x",
        "CPU:x [LOST EVENTS]",
        "CPU:1 [RESTARTED]",
        "a-b-c-",
    ] {
        assert_eq!(parse(unknown.as_bytes()), Parsed::Unknown, "{unknown}");
    }
}

#[test]
fn a_task_named_like_a_loss_is_a_task() {
    let line = event("CPU:0-77 [000] ..... 1.5: sched_process_exit: comm=CPU:0 pid=77");
    assert_eq!((line.comm, line.tid), (&b"CPU:0"[..], Tid(77)));
}

#[test]
fn the_function_tracer_has_no_event_name() {
    let line = event("bash-1 [000] ..... 1.5: schedule <-do_nanosleep");
    assert_eq!(
        (line.event, line.body),
        (&b""[..], &b"schedule <-do_nanosleep"[..])
    );
    let mark = event("sh-1 [000] ..... 1.5: tracing_mark_write: B|12|a: b");
    assert_eq!(
        (mark.event, mark.body),
        (&b"tracing_mark_write"[..], &b"B|12|a: b"[..])
    );
}

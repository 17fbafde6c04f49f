//! Where one vCPU's time goes.

use stealtime_events::{Kind, Tid, VcpuId};

use super::build::{EPT, HLT, PAUSE, PREEMPTED, RUNNABLE, SLEEPS, Trace, check, halted, of_tid};

const VCPU: i32 = 7;
const OTHER: i32 = 50;

fn named() -> Trace {
    Trace::new(&[(VCPU, "CPU 0/KVM"), (OTHER, "other")])
}

#[test]
fn each_state_has_its_time() {
    let mut trace = named();
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .entry(1010, 0, VCPU, 0);
    trace.exit(1100, 0, VCPU, 0, EPT).entry(1130, 0, VCPU, 0);
    trace
        .exit(1200, 0, VCPU, 0, HLT)
        .switch(1220, 0, VCPU, OTHER, SLEEPS);
    trace
        .waking(1500, 0, OTHER, VCPU, 0)
        .wakeup(1504, 0, OTHER, VCPU, 0);
    trace
        .switch(1560, 0, OTHER, VCPU, PREEMPTED)
        .entry(1565, 0, VCPU, 0);
    trace
        .exit(1600, 0, VCPU, 0, EPT)
        .switch(1607, 0, VCPU, OTHER, PREEMPTED);
    trace
        .switch(1707, 0, OTHER, VCPU, RUNNABLE)
        .entry(1710, 0, VCPU, 0);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!(vcpu.guest_ns, Some(90 + 70 + 35));
    // Before the first entry it handled an exit that is not recorded.
    assert_eq!(vcpu.exit_ns, Some(10 + 30 + 20 + 5 + 7 + 3));
    assert_eq!(vcpu.halt_ns, 1504 - 1220);
    assert_eq!(vcpu.wake_wait_ns, 1560 - 1504);
    assert_eq!(vcpu.preempted_ns, 100);
    assert_eq!((vcpu.blocked_ns, vcpu.unknown_ns), (0, 0));
    assert_eq!(vcpu.span_ns, 710);
    let wakeup = answers
        .latencies
        .iter()
        .find(|row| row.kind == "wakeup")
        .unwrap();
    assert_eq!(
        (wakeup.detail.as_str(), wakeup.max_ns),
        ("task", 1560 - 1500)
    );
    let hlt = vcpu
        .exit_ns_by_reason
        .iter()
        .find(|reason| reason.reason == "HLT")
        .unwrap();
    assert_eq!((hlt.count, hlt.ns), (1, 25));
}

#[test]
fn sleep_outside_of_a_halt_is_the_vmms() {
    let mut trace = named();
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .entry(1010, 0, VCPU, 0);
    trace
        .exit(1100, 0, VCPU, 0, 30)
        .switch(1110, 0, VCPU, 0, SLEEPS);
    trace
        .wakeup(1300, 0, 0, VCPU, 0)
        .switch(1310, 0, 0, VCPU, RUNNABLE);
    trace.entry(1320, 0, VCPU, 0);
    let answers = trace.answers();
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!((vcpu.halt_ns, vcpu.blocked_ns), (190, 190));
}

#[test]
fn a_poll_that_succeeds_is_useful() {
    let mut trace = named();
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .entry(1010, 0, VCPU, 0)
        .exit(1100, 0, VCPU, 0, HLT);
    trace.add(1190, 0, VCPU, halted(80, false));
    trace.entry(1200, 0, VCPU, 0);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!(
        (vcpu.poll_useful_ns, vcpu.poll_wasted_ns, vcpu.halt_ns),
        (80, 0, 0)
    );
    assert_eq!(vcpu.exit_ns, Some(10 + 20));
    let polls = &answers.halt_polls[0];
    assert_eq!(
        (polls.halts, polls.poll_success, polls.poll_success_ns),
        (1, 1, 80)
    );
}

/// A halt of 300 ns that began at 1110, switched away at 1170.
fn halt(trace: &mut Trace, change: Option<(u32, u32)>) {
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .entry(1010, 0, VCPU, 0)
        .exit(1100, 0, VCPU, 0, HLT);
    trace.switch(1170, 0, VCPU, 0, SLEEPS);
    trace
        .wakeup(1400, 0, 0, VCPU, 0)
        .switch(1405, 0, 0, VCPU, RUNNABLE);
    if let Some((new, old)) = change {
        let vcpu = VcpuId(0);
        trace.add(
            1408,
            0,
            VCPU,
            Kind::KvmHaltPollNs {
                vcpu,
                grow: new > old,
                new,
                old,
            },
        );
    }
    trace.add(1410, 0, VCPU, halted(300, true));
    trace.entry(1420, 0, VCPU, 0);
}

#[test]
fn a_poll_before_a_sleep_is_wasted() {
    let mut trace = named();
    halt(&mut trace, Some((0, 50)));
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    // The window was 50 ns; what is left until the switch is the way into the scheduler.
    assert_eq!((vcpu.poll_useful_ns, vcpu.poll_wasted_ns), (0, 50));
    assert_eq!((vcpu.halt_ns, vcpu.blocked_ns), (230, 0));
    let polls = &answers.halt_polls[0];
    assert_eq!(
        (polls.poll_fail, polls.poll_fail_ns, polls.shrink),
        (1, 50, 1)
    );
}

#[test]
fn without_a_window_the_way_to_sleep_is_no_poll() {
    for change in [Some((10_000, 0)), None] {
        let mut trace = named();
        halt(&mut trace, change);
        let answers = trace.answers();
        check(&answers);
        let vcpu = of_tid(&answers, VCPU);
        assert_eq!(
            (vcpu.poll_wasted_ns, vcpu.exit_ns),
            (0, Some(10 + 70 + 15)),
            "{change:?}"
        );
        assert!(!vcpu.polls_at_first);
        assert_eq!(answers.halt_polls[0].poll_fail, 0);
    }
}

#[test]
fn a_window_that_shows_later_was_there_before() {
    let mut trace = named();
    halt(&mut trace, None);
    let vcpu = VcpuId(0);
    trace.exit(2000, 0, VCPU, 0, HLT);
    trace.add(
        2010,
        0,
        VCPU,
        Kind::KvmHaltPollNs {
            vcpu,
            grow: true,
            new: 20,
            old: 10,
        },
    );
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!((vcpu.poll_wasted_ns, vcpu.polls_at_first), (60, true));
    assert_eq!(answers.halt_polls[0].poll_fail, 1);
}

#[test]
fn halts_of_one_reason_before_the_window_shows_add_up() {
    let mut trace = named();
    halt(&mut trace, None);
    // One of 200 ns, 20 of them on a CPU.
    trace
        .exit(1500, 0, VCPU, 0, HLT)
        .switch(1530, 0, VCPU, 0, SLEEPS)
        .wakeup(1700, 0, 0, VCPU, 0)
        .switch(1705, 0, 0, VCPU, RUNNABLE);
    let ended = halted(200, true);
    trace.add(1710, 0, VCPU, ended).entry(1720, 0, VCPU, 0);
    trace.exit(2000, 0, VCPU, 0, HLT);
    let vcpu = VcpuId(0);
    let change = Kind::KvmHaltPollNs {
        vcpu,
        grow: true,
        new: 20,
        old: 10,
    };
    trace.add(2010, 0, VCPU, change);
    let answers = trace.answers();
    check(&answers);
    assert_eq!(of_tid(&answers, VCPU).poll_wasted_ns, 60 + 20);
    let polls = &answers.halt_polls[0];
    assert_eq!((polls.poll_fail, polls.poll_fail_ns), (2, 60 + 20));
}

#[test]
fn without_scheduler_events_halts_come_from_kvm() {
    let mut trace = Trace::new(&[]);
    trace.entry(1000, 0, VCPU, 0).exit(1100, 0, VCPU, 0, HLT);
    trace.add(1900, 0, VCPU, halted(700, true));
    trace.entry(2000, 0, VCPU, 0);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!(
        (vcpu.halt_ns, vcpu.exit_ns, vcpu.guest_ns),
        (700, Some(200), Some(100))
    );
    assert!(
        answers
            .findings
            .iter()
            .any(|finding| finding.id == "no_sched_events")
    );
}

#[test]
fn without_exits_time_on_a_cpu_is_one() {
    let mut trace = named();
    trace.switch(1000, 0, 0, VCPU, RUNNABLE);
    trace.switch(1500, 0, VCPU, 0, SLEEPS);
    trace
        .wakeup(1700, 0, 0, VCPU, 0)
        .switch(1720, 0, 0, VCPU, RUNNABLE);
    trace.add(1730, 0, VCPU, halted(230, true));
    trace.switch(1800, 0, VCPU, 0, SLEEPS);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!(
        (vcpu.guest_ns, vcpu.exit_ns, vcpu.on_cpu_ns),
        (None, None, 580)
    );
    assert_eq!(
        (vcpu.halt_ns, vcpu.blocked_ns, vcpu.wake_wait_ns),
        (200, 0, 20)
    );
    assert!(
        answers
            .findings
            .iter()
            .any(|finding| finding.id == "no_exit_events")
    );
}

#[test]
fn spinning_counts_from_the_second_pause_on() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(1000, 0, VCPU, 0)
        .exit(1100, 0, VCPU, 0, PAUSE)
        .entry(1110, 0, VCPU, 0);
    trace.exit(1140, 0, VCPU, 0, PAUSE).entry(1145, 0, VCPU, 0);
    trace.exit(1200, 0, VCPU, 0, EPT).entry(1210, 0, VCPU, 0);
    // After another exit it begins anew.
    trace.exit(1250, 0, VCPU, 0, PAUSE).entry(1257, 0, VCPU, 0);
    let answers = trace.answers();
    check(&answers);
    assert_eq!(of_tid(&answers, VCPU).spin_ns, Some(10 + 30 + 5 + 7));
    assert_eq!(answers.yields[0].pause_exits, 3);
}

#[test]
fn pauses_without_an_entry_between_them_are_no_spinning() {
    let mut trace = Trace::new(&[]);
    trace.entry(1000, 0, VCPU, 0);
    for _ in 0..3 {
        trace.exit(1180, 0, VCPU, 0, PAUSE);
    }
    trace.entry(1190, 0, VCPU, 0).exit(1200, 0, VCPU, 0, PAUSE);
    let answers = trace.answers();
    check(&answers);
    // The time before the first PAUSE is not known to be spinning, and counts for no later one.
    assert_eq!(of_tid(&answers, VCPU).spin_ns, Some(10 + 10));
}

#[test]
fn a_thread_that_is_named_like_a_vcpu_only_is_none() {
    let mut trace = named();
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .switch(1500, 0, VCPU, 0, SLEEPS);
    assert!(trace.answers().vcpus.is_empty());
}

#[test]
fn a_vcpu_that_begins_and_ends_in_the_middle_has_only_the_time_between() {
    // `EXIT_DEAD`, with which the last switch of a thread shows.
    const DEAD: u32 = 0x10;
    let new = |target_cpu| Kind::SchedWakeupNew {
        tid: Tid(VCPU),
        prio: 120,
        target_cpu,
    };
    let run = |how: &dyn Fn(&mut Trace)| {
        let mut trace = Trace::new(&[(VCPU, "CPU 0/KVM"), (50, "qemu-system-x86")]);
        trace.switch(1_000, 0, 0, 50, RUNNABLE);
        trace.add(4_000, 0, 50, new(0));
        trace
            .switch(5_000, 0, 50, VCPU, SLEEPS)
            .entry(5_100, 0, VCPU, 0)
            .exit(6_000, 0, VCPU, 0, EPT);
        how(&mut trace);
        trace.switch(20_000, 0, 0, 50, RUNNABLE);
        of_tid(&trace.answers(), VCPU).clone()
    };
    let by_switch = run(&|trace| {
        trace.switch(7_000, 0, VCPU, 0, DEAD);
    });
    assert_eq!(
        (by_switch.span_ns, by_switch.halt_ns, by_switch.unknown_ns),
        (3_000, 0, 0)
    );
    assert_eq!(
        (by_switch.wake_wait_ns, by_switch.on_cpu_ns),
        (1_000, 2_000)
    );
    // With the event of its own it is over a little earlier.
    let by_event = run(&|trace| {
        let tid = Tid(VCPU);
        trace
            .add(6_500, 0, VCPU, Kind::SchedProcessExit { tid })
            .switch(7_000, 0, VCPU, 0, 64);
    });
    assert_eq!((by_event.span_ns, by_event.halt_ns), (2_500, 0));
}

//! How halts and polls add up, and what is made of them before their kind is known.

use stealtime_events::{Kind, VcpuId};

use super::build::{EPT, HLT, RUNNABLE, SLEEPS, Trace, check, halted, of_tid};
use crate::answers::VcpuTime;

const VCPU: i32 = 7;
/// VMX exit reason of MWAIT.
const MWAIT: u32 = 36;

const fn change(old: u32, new: u32) -> Kind {
    Kind::KvmHaltPollNs {
        vcpu: VcpuId(0),
        grow: new > old,
        new,
        old,
    }
}

/// In its guest from 1010 on.
fn running() -> Trace {
    let mut trace = Trace::new(&[(VCPU, "CPU 0/KVM")]);
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .entry(1010, 0, VCPU, 0);
    trace
}

/// A halt of 200 ns with a sleep, which ends 210 ns after its exit at `begin`. It `polls` so long.
fn halt(trace: &mut Trace, begin: u64, reason: u32, polls: u64, window: Option<Kind>) {
    trace
        .exit(begin, 0, VCPU, 0, reason)
        .switch(begin + 10 + polls, 0, VCPU, 0, SLEEPS)
        .wakeup(begin + 200, 0, 0, VCPU, 0)
        .switch(begin + 205, 0, 0, VCPU, RUNNABLE);
    if let Some(window) = window {
        trace.add(begin + 210, 0, VCPU, window);
    }
    trace
        .add(begin + 210, 0, VCPU, halted(200, true))
        .entry(begin + 220, 0, VCPU, 0);
}

/// Its exits as (reason, how many, time).
fn reasons(vcpu: &VcpuTime) -> Vec<(&str, u64, u64)> {
    let rows = vcpu.exit_ns_by_reason.iter();
    rows.map(|row| (&*row.reason, row.count, row.ns)).collect()
}

#[test]
fn windows_that_stay_neither_grow_nor_shrink() {
    let mut trace = running();
    trace.exit(1100, 0, VCPU, 0, HLT);
    let changes = [(0, 10), (10, 20), (20, 20), (20, 20), (20, 20), (20, 5)];
    for (n, (old, new)) in (0..).zip(changes) {
        trace.add(1200 + 10 * n, 0, VCPU, change(old, new));
    }
    for (to_ns, expected) in [(None, (2, 1)), (Some(250), (2, 0)), (Some(210), (1, 0))] {
        let answers = trace.within(None, to_ns);
        let polls = &answers.halt_polls[0];
        assert_eq!((polls.grow, polls.shrink), expected, "{to_ns:?}");
    }
}

#[test]
fn a_halt_that_sleeps_at_once_is_no_failed_poll() {
    for (polls, expected) in [(0, (1, 0, 0)), (30, (1, 1, 30)), (90, (1, 1, 50))] {
        let mut trace = running();
        halt(&mut trace, 1100, HLT, polls, Some(change(50, 20)));
        let answers = trace.answers();
        check(&answers);
        let wasted = expected.2;
        assert_eq!(of_tid(&answers, VCPU).poll_wasted_ns, wasted);
        let row = &answers.halt_polls[0];
        assert_eq!((row.halts, row.poll_fail, row.poll_fail_ns), expected);
        // A halt counts where it ends, its time where it is spent.
        let answers = trace.within(None, Some(310));
        check(&answers);
        assert_eq!(of_tid(&answers, VCPU).poll_wasted_ns, wasted);
        let row = &answers.halt_polls[0];
        assert_eq!((row.halts, row.poll_fail, row.poll_fail_ns), (0, 0, 0));
    }
}

#[test]
fn polls_that_show_later_are_taken_from_the_reasons_of_their_halts() {
    let mut trace = running();
    halt(&mut trace, 2000, HLT, 20, None);
    halt(&mut trace, 3000, MWAIT, 40, None);
    halt(&mut trace, 4000, HLT, 30, None);
    trace
        .exit(5000, 0, VCPU, 0, HLT)
        .add(5010, 0, VCPU, change(10, 20));
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!(vcpu.poll_wasted_ns, 20 + 40 + 30);
    // Of each halt there remain 10 ns to the poll, 5 to its end, and 10 to the entry.
    assert_eq!(
        reasons(vcpu),
        [
            ("HLT", 3, 25 + 25 + 10),
            ("MWAIT_INSTRUCTION", 1, 25),
            ("(no exit seen)", 0, 10)
        ]
    );
    let row = &answers.halt_polls[0];
    assert_eq!(
        (row.halts, row.poll_fail, row.poll_fail_ns),
        (3, 3, 20 + 40 + 30)
    );
}

#[test]
fn polls_that_show_later_are_known_without_exits() {
    let mut trace = Trace::new(&[(VCPU, "CPU 0/KVM")]);
    trace
        .switch(1000, 0, 0, VCPU, RUNNABLE)
        .switch(1500, 0, VCPU, 0, SLEEPS)
        .wakeup(1700, 0, 0, VCPU, 0)
        .switch(1720, 0, 0, VCPU, RUNNABLE)
        .add(1730, 0, VCPU, halted(290, true))
        .add(1800, 0, VCPU, change(10, 20))
        .switch(1900, 0, VCPU, 0, SLEEPS);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, VCPU);
    assert_eq!(
        (vcpu.on_cpu_ns, vcpu.poll_wasted_ns, vcpu.halt_ns),
        (500 + 180, 60, 200)
    );
    let row = &answers.halt_polls[0];
    assert_eq!((row.halts, row.poll_fail, row.poll_fail_ns), (1, 1, 60));
}

/// Until the first switch a halt counts as a whole. The switch shows that it would have been seen.
#[test]
fn halts_before_the_first_switch_were_time_on_a_cpu() {
    let ended = |trace: &mut Trace| {
        trace.switch(3000, 0, VCPU, 0, SLEEPS);
        let answers = trace.answers();
        check(&answers);
        let vcpu = of_tid(&answers, VCPU).clone();
        assert_eq!((vcpu.halt_ns, vcpu.on_cpu_ns), (0, 2000));
        vcpu
    };
    let mut trace = Trace::new(&[]);
    trace.entry(1000, 0, VCPU, 0).exit(1100, 0, VCPU, 0, HLT);
    trace
        .add(1900, 0, VCPU, halted(700, true))
        .entry(2050, 0, VCPU, 0)
        .exit(2100, 0, VCPU, 0, EPT);
    let known = ended(&mut trace);
    assert_eq!(known.guest_ns, Some(100 + 50));
    assert_eq!(
        reasons(&known),
        [("HLT", 1, 950), ("EPT_VIOLATION", 1, 900)]
    );
    // Entries begin later than the halts.
    let mut trace = Trace::new(&[]);
    trace
        .add(1000, 0, VCPU, change(0, 10))
        .add(1900, 0, VCPU, halted(700, true))
        .entry(2000, 0, VCPU, 0)
        .exit(2100, 0, VCPU, 0, EPT);
    let later = ended(&mut trace);
    assert_eq!(later.guest_ns, Some(100));
    assert_eq!(
        reasons(&later),
        [("(no exit seen)", 0, 1000), ("EPT_VIOLATION", 1, 900)]
    );
    // Without any entry or exit there is no reason that the time could be of.
    let mut trace = Trace::new(&[]);
    trace
        .add(1000, 0, VCPU, change(0, 10))
        .add(1900, 0, VCPU, halted(700, true));
    let never = ended(&mut trace);
    assert_eq!((never.guest_ns, never.exit_ns), (None, None));
    assert_eq!(reasons(&never), []);
}

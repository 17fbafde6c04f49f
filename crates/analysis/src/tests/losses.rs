//! Lost events, and time that goes back.

use stealtime_events::Kind;

use super::build::{
    EPT, PAUSE, PREEMPTED, PREEMPTION_TIMER, RUNNABLE, SLEEPS, Trace, check, halted, of_tid, waited,
};

#[test]
fn after_a_loss_nothing_is_known_until_the_thread_shows_up() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "other")]);
    trace
        .switch(1000, 0, 8, 7, SLEEPS)
        .entry(1010, 0, 7, 0)
        .exit(1100, 0, 7, 0, EPT);
    trace.entry(1110, 0, 7, 0);
    trace.add(1500, 0, 0, Kind::Lost { count: 9 });
    trace
        .exit(1600, 0, 7, 0, EPT)
        .entry(1620, 0, 7, 0)
        .exit(1700, 0, 7, 0, EPT);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!(vcpu.unknown_ns, 1600 - 1110);
    assert_eq!(
        (vcpu.guest_ns, vcpu.exit_ns),
        (Some(90 + 80), Some(10 + 10 + 20))
    );
    assert_eq!((answers.source.lost, answers.source.lost_gaps), (9, 0));
    let finding = answers
        .findings
        .iter()
        .find(|finding| finding.id == "lost_events")
        .unwrap();
    assert!(
        finding.evidence.contains("9 events lost"),
        "{}",
        finding.evidence
    );
    // perf knows nothing of the loss: exit to the next entry.
    assert_eq!(answers.exit_totals[0].samples, 2);
}

#[test]
fn losses_before_the_first_event_are_of_its_moment() {
    let mut trace = Trace::new(&[]);
    trace
        .add(5, 0, 0, Kind::Lost { count: 9 })
        .add(5, 1, 0, Kind::Lost { count: 0 })
        .entry(10, 0, 7, 0)
        .exit(20, 0, 7, 0, EPT);
    for (from_ns, expected) in [(None, (9, 1)), (Some(0), (9, 1)), (Some(5), (0, 0))] {
        let answers = trace.within(from_ns, None);
        let source = &answers.source;
        assert_eq!((source.lost, source.lost_gaps), expected, "{from_ns:?}");
    }
}

/// A vCPU, thread 7, that ran on CPU 0 until 1020, when another task got it.
fn leaves_its_cpu(state: u32) -> Trace {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "other")]);
    trace
        .entry(1000, 0, 7, 0)
        .exit(1010, 0, 7, 0, EPT)
        .switch(1020, 0, 7, 8, state);
    trace
}

#[test]
fn a_waiter_is_lost_with_its_cpu() {
    let mut trace = leaves_its_cpu(PREEMPTED);
    trace.switch(1050, 0, 8, 0, SLEEPS);
    trace.add(1100, 0, 0, Kind::Lost { count: 0 });
    trace.switch(1200, 0, 0, 7, RUNNABLE).entry(1210, 0, 7, 0);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!((vcpu.preempted_ns, vcpu.unknown_ns), (30, 150));
    assert_eq!(answers.source.lost_gaps, 1);
}

#[test]
fn a_sleeper_that_wakes_unseen_was_not_asleep_all_the_time() {
    for is_lost in [false, true] {
        let mut trace = leaves_its_cpu(SLEEPS);
        if is_lost {
            trace.add(1100, 1, 0, Kind::Lost { count: 3 });
        }
        trace.switch(1200, 0, 8, 7, RUNNABLE).entry(1210, 0, 7, 0);
        let answers = trace.answers();
        check(&answers);
        let vcpu = of_tid(&answers, 7);
        let expected = if is_lost { (0, 180) } else { (180, 0) };
        assert_eq!((vcpu.halt_ns, vcpu.unknown_ns), expected);
    }
}

#[test]
fn a_halt_in_a_gap_says_nothing_of_the_sleep_before_it() {
    let mut trace = leaves_its_cpu(SLEEPS);
    // A move shows that it sleeps until then. Later it wakes, and halts, in what is lost.
    trace
        .migrate(1100, 0, 8, 7, 0)
        .add(1150, 1, 0, Kind::Lost { count: 3 });
    trace
        .switch(1200, 0, 8, 7, RUNNABLE)
        .add(1210, 0, 7, halted(50, true))
        .entry(1220, 0, 7, 0);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!((vcpu.halt_ns, vcpu.blocked_ns), (80, 80));
    assert_eq!(vcpu.unknown_ns, 100);
}

#[test]
fn time_that_goes_back_is_counted_and_stands_still() {
    let mut trace = Trace::new(&[]);
    trace
        .entry(1000, 0, 7, 0)
        .exit(1100, 0, 7, 0, EPT)
        .entry(1050, 0, 7, 0);
    trace.exit(1200, 0, 7, 0, EPT).entry(1230, 0, 7, 0);
    let answers = trace.answers();
    check(&answers);
    assert_eq!(answers.source.out_of_order, 1);
    // perf leaves out a pair with an end before its begin.
    assert_eq!(
        (
            answers.exit_totals[0].samples,
            answers.exit_totals[0].time_ns
        ),
        (1, 30)
    );
    assert_eq!(answers.vcpus[0].guest_ns, Some(200));
}

#[test]
fn a_missing_switch_makes_the_old_thread_unknown() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "CPU 1/KVM")]);
    trace.switch(1000, 0, 0, 7, RUNNABLE).entry(1010, 0, 7, 0);
    // Thread 8 runs here without a switch to it.
    trace.entry(1300, 0, 8, 1).exit(1320, 0, 8, 1, EPT);
    trace.switch(1400, 0, 8, 7, SLEEPS).entry(1410, 0, 7, 0);
    let answers = trace.answers();
    check(&answers);
    assert_eq!(of_tid(&answers, 7).unknown_ns, 1400 - 1010);
    assert_eq!(of_tid(&answers, 8).guest_ns, Some(20));
}

/// On another CPU without a switch, a thread was elsewhere. After a loss it may have been.
#[test]
fn what_was_under_way_where_a_switch_can_be_missing_is_over() {
    // What it does then is not known, nor whether it runs in its guest at the end.
    for (cpu, is_lost, rows, unknown_ns) in [
        (0, false, 1, 0),
        (1, false, 0, 50 + 20),
        (0, true, 0, 50 + 20),
    ] {
        let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "other")]);
        trace
            .switch(1000, 0, 0, 7, RUNNABLE)
            .entry(1010, 0, 7, 0)
            .exit(1100, 0, 7, 0, PREEMPTION_TIMER)
            .entry(1110, 0, 7, 0)
            .exit(1150, 0, 7, 0, PAUSE);
        let accept = Kind::KvmApicAcceptIrq {
            apicid: 0,
            dm: 0,
            tm: 0,
            vec: 236,
        };
        let inject = Kind::KvmInjVirq {
            vector: 236,
            soft: false,
            reinjected: false,
        };
        if is_lost {
            trace.add(1180, 0, 0, Kind::Lost { count: 3 });
        }
        trace
            .add(1200, cpu, 7, accept)
            .add(1210, cpu, 7, inject)
            .switch(1220, cpu, 7, 8, PREEMPTED);
        let answers = trace.answers();
        check(&answers);
        assert_eq!(of_tid(&answers, 7).unknown_ns, unknown_ns);
        let row = &answers.yields[0];
        assert_eq!((row.pause_exits, row.switched_elsewhere), (1, rows));
        let found = answers.latencies.iter().filter(|row| row.kind == "timer");
        assert_eq!(found.count() as u64, rows);
    }
}

#[test]
fn a_wakeup_that_was_sent_to_a_cpu_in_a_gap_is_not_a_wait_until_it_is_seen() {
    let mut trace = leaves_its_cpu(SLEEPS);
    // CPU 1 wakes it; CPU 0, where it is to run, was not heard of since 1020.
    trace.waking(1100, 1, 9, 7, 0);
    trace.add(1300, 0, 0, Kind::Lost { count: 3 });
    trace.switch(1400, 0, 8, 7, RUNNABLE).entry(1410, 0, 7, 0);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!((vcpu.halt_ns, vcpu.blocked_ns), (80, 80));
    assert_eq!((vcpu.wake_wait_ns, vcpu.unknown_ns), (0, 300));
}

#[test]
fn a_wait_for_a_cpu_in_a_gap_that_ends_elsewhere_is_unknown() {
    for is_lost in [false, true] {
        let mut trace = leaves_its_cpu(PREEMPTED);
        trace.switch(1050, 0, 8, 8, PREEMPTED);
        // CPU 1 takes it. That events of CPU 0 were lost is heard later.
        trace.migrate(1200, 1, 0, 7, 1);
        trace.switch(1210, 1, 0, 7, RUNNABLE).entry(1220, 1, 7, 0);
        if is_lost {
            trace.add(1300, 0, 0, Kind::Lost { count: 5 });
        }
        trace.exit(1400, 1, 7, 0, EPT);
        let answers = trace.answers();
        check(&answers);
        let vcpu = of_tid(&answers, 7);
        let expected = match is_lost {
            true => (30 + 10, 150),
            false => (190, 0),
        };
        assert_eq!((vcpu.preempted_ns, vcpu.unknown_ns), expected);
    }
}

#[test]
fn a_wakeup_that_waited_for_a_cpu_in_a_gap_has_no_latency() {
    for is_lost in [false, true] {
        let mut trace = leaves_its_cpu(SLEEPS);
        trace
            .waking(1100, 1, 9, 7, 0)
            .wakeup(1105, 1, 9, 7, 0)
            .migrate(1200, 1, 9, 7, 1)
            .switch(1210, 1, 9, 7, RUNNABLE)
            .entry(1220, 1, 7, 0);
        if is_lost {
            trace.add(1300, 0, 0, Kind::Lost { count: 5 });
        }
        trace.exit(1400, 1, 7, 0, EPT);
        let answers = trace.answers();
        check(&answers);
        let wakeups = answers.latencies.iter().find(|row| row.kind == "wakeup");
        let wakeups = wakeups.map_or((0, 0), |row| (row.count, row.max_ns));
        let (expected, known_ns) = match is_lost {
            true => ((0, 0), 10),
            false => ((1, 110), 105),
        };
        assert_eq!(wakeups, expected);
        assert_eq!(of_tid(&answers, 7).wake_wait_ns, known_ns);
    }
}

#[test]
fn a_wait_that_moves_on_from_one_gap_to_the_next_is_unknown_in_each_once() {
    for is_idle in [false, true] {
        let mut trace = leaves_its_cpu(PREEMPTED);
        let next = if is_idle { 0 } else { 9 };
        trace.switch(1050, 0, 8, next, SLEEPS);
        trace.switch(1100, 1, 0, 5, RUNNABLE);
        trace.migrate(1200, 2, 0, 7, 1);
        trace.add(1250, 0, 0, Kind::Lost { count: 5 });
        trace.migrate(1400, 2, 0, 7, 2);
        trace.add(1450, 1, 0, Kind::Lost { count: 5 });
        trace.switch(1500, 2, 0, 7, RUNNABLE).entry(1510, 2, 7, 0);
        let answers = trace.answers();
        check(&answers);
        let vcpu = of_tid(&answers, 7);
        assert_eq!((vcpu.preempted_ns, vcpu.unknown_ns), (30 + 100, 150 + 200));
    }
}

#[test]
fn what_was_not_waiting_is_not_taken_from_it() {
    let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "other")]);
    // A wait of 100 ns after a wakeup, and then another sleep on CPU 1.
    trace
        .entry(1000, 1, 7, 0)
        .exit(1010, 1, 7, 0, EPT)
        .switch(1020, 1, 7, 8, SLEEPS)
        .wakeup(1030, 1, 8, 7, 1)
        .switch(1130, 1, 8, 7, PREEMPTED)
        .switch(1150, 1, 7, 8, SLEEPS);
    // Its wakeup is seen to begin, to CPU 0; that it is moved says that it did not wait there.
    trace.switch(1160, 0, 0, 9, RUNNABLE);
    trace.waking(1200, 1, 8, 7, 0).migrate(1390, 1, 8, 7, 0);
    trace.switch(1400, 1, 8, 7, SLEEPS).entry(1410, 1, 7, 0);
    trace.add(1500, 0, 0, Kind::Lost { count: 5 });
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!((vcpu.wake_wait_ns, vcpu.halt_ns), (100, 10 + 240));
    assert_eq!(vcpu.unknown_ns, 10);
}

/// Time of a CPU that is idle up to a bandwidth timer is throttling. Where events of the CPU were lost, it is
/// taken back as that.
#[test]
fn a_throttled_wait_in_a_gap_is_unknown() {
    const END_NS: u64 = 20_000_000;
    for is_lost in [false, true] {
        let mut trace = Trace::new(&[(7, "CPU 0/KVM"), (8, "other")]);
        let function = trace.name("sched_cfs_period_timer");
        trace
            .entry(1000, 0, 7, 0)
            .exit(1010, 0, 7, 0, EPT)
            .switch(1020, 0, 7, 0, RUNNABLE);
        let expires = Kind::HrtimerExpireEntry {
            hrtimer: 1,
            now_ns: 0,
            function,
        };
        trace
            .irq(END_NS - 10, 1, 8, expires)
            .migrate(END_NS, 1, 8, 7, 1)
            .switch(END_NS, 1, 8, 7, SLEEPS)
            .entry(END_NS + 10, 1, 7, 0);
        if is_lost {
            trace.add(END_NS + 20, 0, 0, Kind::Lost { count: 5 });
        }
        trace.exit(END_NS + 30, 1, 7, 0, EPT);
        let answers = trace.answers();
        check(&answers);
        let vcpu = of_tid(&answers, 7);
        let ns = END_NS - 1020;
        let expected = if is_lost { (0, ns) } else { (ns, 0) };
        assert_eq!(
            (waited(&answers, vcpu, "throttled"), vcpu.unknown_ns),
            expected
        );
    }
}

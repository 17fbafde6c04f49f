//! Occupants of the CPU that a vCPU waits for.

use stealtime_events::{HostVector, Kind, Tid, VcpuId};

use super::build::{EPT, PREEMPTED, RUNNABLE, SLEEPS, Trace, check, of_tid, waited};

fn trace() -> Trace {
    let mut trace = Trace::new(&[
        (7, "CPU 0/KVM"),
        (8, "CPU 1/KVM"),
        (20, "CPU 0/KVM"),
        (30, "qemu-system-x86"),
        (31, "kworker/0:1"),
        (32, "make"),
    ]);
    // Threads 7 and 8 are one VM by the order of their ids, 20 is another.
    trace
        .entry(10, 0, 7, 0)
        .entry(11, 1, 8, 1)
        .entry(12, 2, 20, 0);
    trace.exit(100, 0, 7, 0, EPT);
    trace
}

#[test]
fn waiting_is_split_by_the_task_that_ran() {
    let mut trace = trace();
    trace.exit(100, 1, 8, 1, EPT).switch(110, 1, 8, 0, SLEEPS);
    trace.exit(100, 2, 20, 0, EPT).switch(110, 2, 20, 0, SLEEPS);
    trace
        .switch(200, 0, 7, 8, PREEMPTED)
        .switch(230, 0, 8, 20, SLEEPS);
    trace
        .switch(270, 0, 20, 30, SLEEPS)
        .switch(320, 0, 30, 31, SLEEPS);
    trace
        .switch(380, 0, 31, 32, SLEEPS)
        .switch(450, 0, 32, 0, SLEEPS);
    trace.switch(530, 0, 0, 7, RUNNABLE);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!(vcpu.preempted_ns, 330);
    for (cause, ns) in [
        ("vcpu_same_vm", 30),
        ("vcpu_other_vm", 40),
        ("vmm_thread", 50),
        ("kernel_thread", 60),
        ("host_task", 70),
        ("idle", 80),
    ] {
        assert_eq!(waited(&answers, vcpu, cause), ns, "{cause}");
    }
    let other = answers
        .ready
        .iter()
        .find(|row| row.cause == "vcpu_other_vm")
        .unwrap();
    assert_eq!(other.who, of_tid(&answers, 20).vm);
}

#[test]
fn interrupts_that_are_seen_to_end_have_their_share() {
    let mut trace = trace();
    let class = HostVector::LocalTimer;
    trace.switch(200, 0, 7, 32, PREEMPTED);
    trace.irq(210, 0, 32, Kind::VectorEntry { class, vector: 236 });
    trace.irq(225, 0, 32, Kind::VectorExit { class, vector: 236 });
    trace.irq(225, 0, 32, Kind::SoftirqEntry { vec: 3 });
    trace.irq(230, 0, 32, Kind::VectorEntry { class, vector: 236 });
    trace.irq(233, 0, 32, Kind::VectorExit { class, vector: 236 });
    trace.irq(240, 0, 32, Kind::SoftirqExit { vec: 3 });
    // This one has no end in the trace: the next event in task context shows that it is over.
    trace.irq(250, 0, 32, Kind::VectorEntry { class, vector: 236 });
    trace.add(280, 0, 32, Kind::SoftirqRaise { vec: 1 });
    trace.switch(300, 0, 32, 7, RUNNABLE);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!(waited(&answers, vcpu, "irq"), 15 + 3 + 12);
    let net = answers
        .ready
        .iter()
        .find(|row| row.who == "NET_RX")
        .unwrap();
    assert_eq!(net.ns, 12);
    assert_eq!(waited(&answers, vcpu, "host_task"), 100 - 30);
}

#[test]
fn a_waiter_takes_its_queue_along() {
    let mut trace = trace();
    trace.exit(100, 1, 8, 1, EPT);
    trace.switch(200, 0, 7, 32, PREEMPTED);
    let to = Kind::SchedMigrateTask {
        tid: Tid(7),
        prio: 120,
        orig_cpu: 0,
        dest_cpu: 1,
    };
    trace.add(230, 1, 8, to);
    trace.switch(250, 1, 8, 7, PREEMPTED);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!(waited(&answers, vcpu, "host_task"), 30);
    assert_eq!(waited(&answers, vcpu, "vcpu_same_vm"), 20);
}

#[test]
fn each_cpu_has_the_waiting_in_its_own_queue() {
    let mut trace = trace();
    trace.exit(100, 1, 8, 1, EPT);
    trace
        .switch(200, 0, 7, 32, PREEMPTED)
        .switch(250, 0, 32, 7, PREEMPTED)
        .switch(350, 0, 7, 32, PREEMPTED)
        .migrate(380, 0, 32, 7, 1)
        .switch(400, 1, 8, 7, SLEEPS);
    let answers = trace.answers();
    check(&answers);
    let waiting: Vec<_> = answers.host.cpus.iter().map(|cpu| cpu.waiting_ns).collect();
    assert_eq!(waiting, [Some(50 + 30), Some(20), Some(0)]);
    let vm = &of_tid(&answers, 7).vm;
    let mut rows = answers.over_time.vms.iter();
    let row = rows.find(|row| row.vm == *vm).unwrap();
    assert_eq!(row.steal_ns, [50 + 30 + 20]);
}

#[test]
fn a_wait_outside_of_the_selection_has_no_row() {
    let mut trace = trace();
    trace
        .switch(200, 0, 7, 32, PREEMPTED)
        .switch(250, 0, 32, 7, PREEMPTED)
        .exit(400, 0, 7, 0, EPT);
    for (from_ns, rows) in [(None, 1), (Some(200), 1), (Some(240), 0)] {
        let answers = trace.within(from_ns, None);
        check(&answers);
        let waits: u64 = answers.waits.iter().map(|row| row.count).sum();
        let found = (answers.ready.len(), answers.stalls.len(), waits);
        assert_eq!(found, (rows, rows, rows as u64), "{from_ns:?}");
    }
}

/// A vCPU that leaves its CPU in this state and runs again after `waits`. If the state is a sleep, it is
/// woken. A bandwidth timer expires just before it runs, if there is one.
fn waits_with_an_idle_cpu(state: u32, waits: u64, timer: Option<&'static str>) -> crate::Answers {
    let mut trace = trace();
    trace.switch(200, 0, 7, 0, state);
    if state == SLEEPS {
        let wakeup = Kind::SchedWakeup {
            tid: Tid(7),
            prio: 120,
            target_cpu: 0,
        };
        trace.add(210, 1, 8, wakeup);
    }
    if let Some(timer) = timer {
        let function = trace.name(timer);
        let kind = Kind::HrtimerExpireEntry {
            hrtimer: 1,
            now_ns: 0,
            function,
        };
        trace.irq(200 + waits - 10, 1, 8, kind);
    }
    trace.switch(200 + waits, 0, 0, 7, RUNNABLE);
    trace.switch(30_000_000, 0, 7, 0, SLEEPS);
    let answers = trace.answers();
    check(&answers);
    answers
}

#[test]
fn an_idle_cpu_until_the_bandwidth_timer_is_throttling() {
    const MS: u64 = 1_000_000;
    let period = Some("sched_cfs_period_timer");
    let of = |answers: &crate::Answers, cause: &str| {
        let found = answers.findings.iter();
        (
            waited(answers, of_tid(answers, 7), cause),
            found.clone().any(|finding| finding.id == "throttled"),
        )
    };
    let limited = waits_with_an_idle_cpu(RUNNABLE, 20 * MS, period);
    assert_eq!(of(&limited, "throttled"), (20 * MS, true));
    let slack = waits_with_an_idle_cpu(RUNNABLE, 20 * MS, Some("sched_cfs_slack_timer"));
    assert_eq!(of(&slack, "throttled"), (20 * MS, true));
    // No timer; a CPU that leaves idle late, with the timer of another VM's limit; a thread that was
    // woken, so that its limit did not stop it.
    let none = waits_with_an_idle_cpu(RUNNABLE, 20 * MS, None);
    assert_eq!(of(&none, "throttled"), (0, false));
    assert_eq!(of(&none, "idle").0, 20 * MS);
    let late = waits_with_an_idle_cpu(RUNNABLE, 30_000, period);
    assert_eq!(of(&late, "throttled"), (0, false));
    assert_eq!(of(&late, "idle").0, 30_000);
    let woken = waits_with_an_idle_cpu(SLEEPS, 20 * MS, period);
    assert_eq!(of(&woken, "throttled"), (0, false));
    assert_eq!(of(&woken, "idle").0, 20 * MS - 10);
}

/// A timer that expires before the wait, and none in it.
#[test]
fn a_bandwidth_timer_of_the_past_is_no_throttling() {
    const NS: u64 = 20_000_000;
    let mut trace = trace();
    let function = trace.name("sched_cfs_period_timer");
    let expires = Kind::HrtimerExpireEntry {
        hrtimer: 1,
        now_ns: 0,
        function,
    };
    trace
        .irq(150, 1, 8, expires)
        .switch(200, 0, 7, 0, RUNNABLE)
        .switch(200 + NS, 0, 0, 7, RUNNABLE);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!(waited(&answers, vcpu, "throttled"), 0);
    assert_eq!(waited(&answers, vcpu, "idle"), NS);
}

#[test]
fn yields_are_split_by_target() {
    let mut trace = trace();
    trace.exit(100, 1, 8, 1, EPT).switch(110, 1, 8, 0, SLEEPS);
    for (at, next) in [(1000, 8), (2000, 32)] {
        trace
            .entry(at, 0, 7, 0)
            .exit(at + 10, 0, 7, 0, super::build::PAUSE);
        trace
            .switch(at + 20, 0, 7, next, RUNNABLE)
            .switch(at + 40, 0, next, 7, SLEEPS);
    }
    trace
        .entry(3000, 0, 7, 0)
        .exit(3010, 0, 7, 0, super::build::PAUSE)
        .entry(3020, 0, 7, 0);
    // It is back in the guest: another exit lets the task in.
    trace
        .exit(3050, 0, 7, 0, EPT)
        .switch(3060, 0, 7, 8, RUNNABLE)
        .switch(3080, 0, 8, 7, SLEEPS);
    let answers = trace.answers();
    check(&answers);
    let row = answers
        .yields
        .iter()
        .find(|row| row.vm == of_tid(&answers, 7).vm)
        .unwrap();
    assert_eq!(
        (
            row.pause_exits,
            row.switched_to_same_vm,
            row.switched_elsewhere
        ),
        (3, 1, 1)
    );
}

/// Of more tasks than that, it is not known any more whether they are vCPUs of the VM.
#[test]
fn yields_to_256_tasks_are_distinguished() {
    let (others, vcpu) = (|count: i32| 1000..1000 + count, || std::iter::once(8));
    for (targets, expected) in [
        (others(255).chain(vcpu()).collect(), (1, 255)),
        (others(256).chain(vcpu()).collect(), (0, 256 + 1)),
        (vcpu().chain(others(256)).chain(vcpu()).collect(), (2, 256)),
    ] {
        let targets: Vec<i32> = targets;
        let mut trace = trace();
        trace.exit(100, 1, 8, 1, EPT).switch(110, 1, 8, 0, SLEEPS);
        for (n, next) in (1..).zip(targets) {
            trace
                .entry(1000 * n, 0, 7, 0)
                .exit(1000 * n + 10, 0, 7, 0, super::build::PAUSE)
                .switch(1000 * n + 20, 0, 7, next, RUNNABLE)
                .switch(1000 * n + 40, 0, next, 7, SLEEPS);
        }
        let answers = trace.answers();
        let vm = &of_tid(&answers, 7).vm;
        let row = answers.yields.iter().find(|row| row.vm == *vm).unwrap();
        let found = (row.switched_to_same_vm, row.switched_elsewhere);
        assert_eq!(found, expected);
    }
}

/// Changes of the PLE window count by their direction, within the selected time.
#[test]
fn ple_windows_grow_and_shrink() {
    let mut trace = trace();
    let changes = [
        (4096, 8192),
        (8192, 16_384),
        (16_384, 4096),
        (4096, 4096),
        (4096, 65_536),
        (65_536, 32_768),
        (32_768, 4096),
    ];
    for (at, (old, new)) in (0..).zip(changes) {
        let vcpu = VcpuId(0);
        trace.add(
            200 + 10 * at,
            0,
            7,
            Kind::KvmPleWindowUpdate { vcpu, new, old },
        );
    }
    let changed = |to_ns| {
        let answers = trace.within(None, to_ns);
        let vm = &of_tid(&answers, 7).vm;
        let row = answers.yields.iter().find(|row| row.vm == *vm).unwrap();
        (row.ple_grow, row.ple_shrink, row.ple_window_max)
    };
    assert_eq!(changed(None), (3, 3, 65_536));
    assert_eq!(changed(Some(225)), (2, 1, 16_384));
}

#[test]
fn without_flags_interrupt_time_is_that_between_begin_and_end() {
    let mut trace = trace();
    trace.switch(200, 0, 7, 32, PREEMPTED);
    let (class, vector) = (HostVector::LocalTimer, 236);
    trace.unknown(210, 0, 32, Kind::VectorEntry { class, vector });
    let wakeup = Kind::SchedWakeup {
        tid: Tid(31),
        prio: 120,
        target_cpu: 1,
    };
    // Without flags this may be the interrupt's doing: it does not end it.
    trace.unknown(220, 0, 32, wakeup);
    trace.unknown(250, 0, 32, Kind::VectorExit { class, vector });
    trace.switch(300, 0, 32, 7, RUNNABLE);
    let answers = trace.answers();
    check(&answers);
    let vcpu = of_tid(&answers, 7);
    assert_eq!(waited(&answers, vcpu, "irq"), 40);
    assert_eq!(waited(&answers, vcpu, "host_task"), 60);
}

#[test]
fn without_flags_what_woke_a_vcpu_is_unknown() {
    let mut trace = trace();
    trace.switch(200, 0, 7, 32, SLEEPS);
    let (tid, prio, target_cpu) = (Tid(7), 120, 0);
    trace.unknown(
        300,
        0,
        32,
        Kind::SchedWaking {
            tid,
            prio,
            target_cpu,
        },
    );
    trace.unknown(
        301,
        0,
        32,
        Kind::SchedWakeup {
            tid,
            prio,
            target_cpu,
        },
    );
    trace.switch(310, 0, 32, 7, PREEMPTED);
    let answers = trace.answers();
    check(&answers);
    let woken = answers
        .latencies
        .iter()
        .filter(|row| row.kind == "wakeup" && row.count > 0);
    let by: Vec<_> = woken.map(|row| row.detail.as_str()).collect();
    assert_eq!(by, ["unknown"]);
}

//! Wakeups that come while their task still has its CPU.

use common::kinds::{switch, wakeup, waking};
use common::{Log, extracted, extracted_with, host, vcpu};
use stealtime_analysis::Options;
use stealtime_events::{Context, CpuId, Event, Kind, NameId, Names, Tid};
use stealtime_hypervisor::fair::Feature;
use stealtime_replay::Recording;
use stealtime_simulator::script::{Edge, Late, Scripts, Spent, Step, Until};
use stealtime_simulator::{Collected, run};

use crate::common;

const MS: u64 = 1_000_000;

/// vCPU 0 halts after 2 ms until vCPU 1 has computed for 3 ms, and again until 20 ms.
fn recorded() -> Collected {
    let run_for = |ns, spent| Step::Run { ns, spent };
    let waits = vec![
        run_for(2 * MS, Spent::Guest),
        run_for(10_000, Spent::Exit(12)),
        Step::Halt(Until::Edge(Edge(0))),
        run_for(MS, Spent::Guest),
        run_for(10_000, Spent::Exit(12)),
        Step::Halt(Until::Time(20 * MS)),
        run_for(MS, Spent::Guest),
    ];
    let wakes = vec![
        run_for(3 * MS, Spent::Guest),
        Step::Reach(Edge(0)),
        run_for(17 * MS, Spent::Guest),
    ];
    let mut config = host(2, Vec::new(), 30 * MS, 1);
    config.scripts = Scripts {
        tasks: vec![vcpu(0, 0, waits), vcpu(0, 1, wakes)],
        edges: 1,
        tell: true,
        ..Scripts::default()
    };
    config.knobs.kvm.halt_poll.halt_poll_ns = 0;
    let mut sink = Collected::default();
    run(&config, &mut sink).expect("a good configuration");
    sink
}

/// Where the first wakeup of vCPU 0 and its leaving its CPU before are.
fn first_wakeup(events: &[Event]) -> (usize, usize) {
    let leaves = |event: &Event| match event.kind {
        Kind::SchedSwitch { prev, .. } => event.cpu == CpuId(0) && prev.0 != 0,
        _ => false,
    };
    let left = events.iter().position(leaves).expect("it halts");
    let Kind::SchedSwitch { prev, .. } = events[left].kind else {
        panic!("it is one");
    };
    let wakes = |event: &Event| matches!(event.kind, Kind::SchedWaking { tid, .. } if tid == prev);
    let after = events[left..].iter().position(wakes);
    (left + after.expect("it is woken"), left)
}

/// What ends halts of vCPU 0.
fn halts(sink: &Collected) -> Vec<Until> {
    let (recording, _) = extracted(&sink.events, &sink.names);
    let task = recording
        .tasks
        .iter()
        .find(|task| task.vcpu == Some((0, 0)));
    let halts = task.expect("it is a vCPU").steps.iter();
    halts
        .filter_map(|step| match *step {
            Step::Halt(until) => Some(until),
            _ => None,
        })
        .collect()
}

/// `sched_waking` comes 20 us before its task's CPU lets go of it.
fn early() -> Collected {
    let mut sink = recorded();
    let (woken, left) = first_wakeup(&sink.events);
    let mut waking = sink.events.remove(woken);
    waking.time_ns = sink.events[left].time_ns - 20_000;
    sink.events.insert(left, waking);
    sink.events.sort_by_key(|event| event.time_ns);
    sink
}

#[test]
fn a_vcpu_woken_on_its_way_to_sleep_waits_for_its_recorded_waker() {
    let of_vcpu = |until: &Until| matches!(until, Until::Work { .. } | Until::Edge(_));
    let as_it_was = halts(&recorded());
    assert!(as_it_was.first().is_some_and(of_vcpu), "{as_it_was:?}");
    let halts = halts(&early());
    assert!(halts.first().is_some_and(of_vcpu), "{halts:?}");
}

/// The wakeup latency of an idle CPU is kept separately for wakeups by another CPU and by its own timer.
#[test]
fn wakeups_of_idle_cpus_by_others_are_separate_from_their_own() {
    let sink = recorded();
    let (recording, _) = extracted(&sink.events, &sink.names);
    let woken_at = |late: &[Late]| -> Vec<u64> {
        let entries = late.first().map_or(&[][..], |late| &late.0[..]);
        entries.iter().map(|entry| entry.0 / MS).collect()
    };
    assert_eq!(woken_at(&recording.idle_called), [3]);
    assert_eq!(woken_at(&recording.idle_late), [20]);
}

/// Without context flags a timer's callback may have woken a vCPU, whatever task was current. Where ends of
/// callbacks are recorded, what is outside of them is a task's doing.
#[test]
fn wakers_are_unknown_without_flags_unless_callbacks_have_ends() {
    let mut sink = recorded();
    // From the first end of a callback on it is known that ends are recorded.
    let first = sink.events.iter().position(|event| event.time_ns >= MS);
    let first = first.expect("an event");
    let mut expires = sink.events[first];
    expires.tid = Tid::IDLE;
    let function = NameId::NONE;
    let (hrtimer, now_ns) = (99, expires.time_ns);
    expires.kind = Kind::HrtimerExpireEntry {
        hrtimer,
        now_ns,
        function,
    };
    let mut expired = expires;
    expired.kind = Kind::HrtimerExpireExit { hrtimer };
    (expires.cpu, expired.cpu) = (CpuId(3), CpuId(3));
    sink.events
        .splice(first..first, [expires, expired])
        .for_each(drop);
    for event in &mut sink.events {
        event.context = Context::UNKNOWN;
    }
    let of_vcpu = |until: &Until| matches!(until, Until::Work { .. } | Until::Edge(_));
    let known = halts(&sink);
    assert!(known.first().is_some_and(of_vcpu), "{known:?}");
    let (recording, _) = extracted(&sink.events, &sink.names);
    assert!(recording.resolved.without_flags > 0);
    sink.events
        .retain(|event| !matches!(event.kind, Kind::HrtimerExpireExit { .. }));
    let unknown = halts(&sink);
    assert_eq!(unknown.len(), known.len());
    assert!(!unknown.iter().any(of_vcpu), "{unknown:?}");
    let (flagged, _) = extracted(&recorded().events, &sink.names);
    assert_eq!(flagged.resolved.without_flags, 0);
}

/// `sched_wakeup` before that means that it was to go on and did not sleep then.
#[test]
fn a_wakeup_that_kept_its_task_awake_ends_no_later_sleep() {
    let mut sink = early();
    let of_first = |event: &Event| matches!(event.kind, Kind::SchedWaking { .. });
    let at = sink.events.iter().position(of_first).expect("a wakeup");
    let Kind::SchedWaking {
        tid,
        prio,
        target_cpu,
    } = sink.events[at].kind
    else {
        panic!("it is one");
    };
    let mut wakeup = sink.events[at];
    wakeup.kind = Kind::SchedWakeup {
        tid,
        prio,
        target_cpu,
    };
    sink.events.insert(at + 1, wakeup);
    let halts = halts(&sink);
    let by_vcpu = halts
        .iter()
        .filter(|until| matches!(until, Until::Work { .. } | Until::Edge(_)));
    assert_eq!(by_vcpu.count(), 0, "{halts:?}");
}

/// Task 5 was on a CPU that another one has, and is woken on one that is idle.
#[test]
fn the_latency_of_an_idle_cpu_shows_in_wakeups_there() {
    let mut log = Log::default();
    log.add(0, 0, 0, switch(0, 6, 0));
    log.add(1, 1, 5, switch(5, 0, 1));
    for at in (1..40).map(|n| n * MS) {
        log.add(at, 0, 6, waking(5, 0));
        log.add(at + 1_000, 0, 6, wakeup(5, 1));
        log.add(at + 30_000, 1, 0, switch(0, 5, 0));
        log.add(at + 90_000, 1, 5, switch(5, 0, 1));
    }
    let recording = log.extracted();
    assert_eq!(recording.idle_wake_ns, Some(30_000));
    assert_eq!(recording.wake_ns, None);
}

/// Without `HRTICK` no slice timer is set. Without tasks that compete none is either.
#[test]
fn slices_without_timers_show_where_tasks_compete() {
    let busy = |number| {
        let run = Step::Run {
            ns: 400 * MS,
            spent: Spent::Guest,
        };
        vcpu(0, number, vec![run])
    };
    let hrtick = |cpus, has_hrtick: bool| {
        let mut config = host(cpus, Vec::new(), 300 * MS, 1);
        config.scripts = Scripts {
            tasks: vec![busy(0), busy(1)],
            tell: true,
            ..Scripts::default()
        };
        for task in &mut config.scripts.tasks {
            task.first_cpu %= cpus;
        }
        if !has_hrtick {
            config.knobs.sched.features = config.knobs.sched.features.without(Feature::Hrtick);
        }
        let mut sink = Collected::default();
        run(&config, &mut sink).expect("a good configuration");
        extracted(&sink.events, &sink.names).0.hrtick
    };
    assert_eq!(hrtick(1, true), Some(true));
    assert_eq!(hrtick(1, false), Some(false));
    assert_eq!(hrtick(2, true), None);
    assert_eq!(hrtick(2, false), None);
}

/// The recording of one VM, as the user names it.
fn of_one_vm(events: &[Event], names: &dyn Names) -> Recording {
    let options = Options {
        groups: [1000, 1001].map(|tid| (tid, "vm0".to_owned())).into(),
        ..Options::default()
    };
    extracted_with(options, events, names).0
}

#[test]
fn a_vcpu_waits_for_what_its_vm_computes_until_a_sibling_wakes_it() {
    let sink = recorded();
    let recording = of_one_vm(&sink.events, &sink.names);
    let [waiter, _] = &recording.tasks[..] else {
        panic!("two vCPUs: {:?}", recording.tasks.len());
    };
    let halt = waiter
        .steps
        .iter()
        .find(|step| matches!(step, Step::Halt(_)));
    let Some(&Step::Halt(Until::Work { ns, busy, .. })) = halt else {
        panic!("it waits for work: {halt:?}");
    };
    // From 2 ms to 3 ms, in which the other one never sleeps.
    assert!(busy && (900_000..1_100_000).contains(&ns), "{busy}, {ns}");
}

/// A thread that raises one interrupt for a guest is of its VMM, if it does so itself.
#[test]
fn a_thread_that_raises_an_interrupt_works_for_the_only_vm() {
    for (is_task, vm) in [(true, Some(0)), (false, None)] {
        let sink = recorded();
        let mut log = Log {
            events: sink.events,
            names: sink.names,
        };
        let irq = Kind::KvmSetIrq { gsi: 24, level: 1 };
        log.add(5 * MS, 2, 0, switch(0, 900, 0));
        match is_task {
            true => log.add(5 * MS + 1_000, 2, 900, irq),
            false => log.interrupt(5 * MS + 1_000, 2, 900, irq),
        }
        log.add(6 * MS, 2, 900, switch(900, 0, 1));
        log.events.sort_by_key(|event| event.time_ns);
        let recording = of_one_vm(&log.events, &log.names);
        let thread = recording.tasks.iter().find(|task| task.tid == 900);
        assert_eq!(thread.expect("a thread").vm, vm, "{is_task}");
    }
}

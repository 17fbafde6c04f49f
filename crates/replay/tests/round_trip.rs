//! A simulated run is a recording too: replayed, it gives its own times back.

use std::collections::BTreeSet;

use common::{extracted, host, record, replayed, round_trip};
use stealtime_analysis::{Analysis, Options};
use stealtime_events::Kind;
use stealtime_hypervisor::fair::{Feature, Preempt};
use stealtime_replay::fit::fit;
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::{Errors, recorded, replay};
use stealtime_replay::{Extractor, Recording, export_events};
use stealtime_simulator::config::{Config, ParamValue, VmConfig, WorkloadConfig};
use stealtime_simulator::{Collected, Fault};

use crate::common;

const DURATION_NS: u64 = 500_000_000;

fn vm(n: u32, vcpus: u32, workload: WorkloadConfig) -> VmConfig {
    VmConfig {
        name: format!("vm{n}"),
        vcpus,
        workload,
        ..VmConfig::default()
    }
}

fn config(workload: &str, cpus: u32, seed: u64) -> Config {
    let vms = (0..3).map(|n| vm(n, 2, WorkloadConfig::named(workload)));
    host(cpus, vms.collect(), DURATION_NS, seed)
}

#[test]
fn runs_give_their_own_times_back() {
    for (workload, cpus) in [("busy", 2), ("ticks", 2), ("ticks", 3), ("cyclictest", 2)] {
        for seed in 1..4 {
            let (recording, times, errors) = round_trip(&config(workload, cpus, seed));
            assert_eq!(times.vcpus.len(), 6);
            let median = errors.percentile(50);
            let p90 = errors.percentile(90);
            let what = format!("{workload} on {cpus}, seed {seed}: {median} {p90} ppm");
            println!("{what} {:?}", recording.resolved);
            assert!(median <= 10_000 && p90 <= 30_000, "{what}");
            // vCPUs that never wait compute on at the end: an exit more.
            assert!(
                errors.worst_exits() <= 5_000,
                "{what}: {}",
                errors.worst_exits()
            );
        }
    }
}

/// More CPUs than most hosts have sockets, most of them idle, and vCPUs that share the others.
#[test]
fn large_hosts_give_their_own_times_back() {
    let vms = (0..10).map(|n| vm(n, 10, WorkloadConfig::named("ticks")));
    let config = host(80, vms.collect(), 100_000_000, 1);
    let (_, times, errors) = round_trip(&config);
    assert_eq!(times.vcpus.len(), 100);
    let (median, p90) = (errors.percentile(50), errors.percentile(90));
    assert!(median <= 1_000 && p90 <= 10_000, "{median} {p90} ppm");
}

/// Guests with vCPUs that wake each other all the time, next to a VM of the same kind or a periodic one.
#[test]
fn vcpus_that_wake_each_other_halt_as_long_as_they_did() {
    let hackbench = || {
        let few = |workload: WorkloadConfig, name| workload.with(name, ParamValue::Int(2));
        few(WorkloadConfig::named("hackbench"), "fds").with("groups", ParamValue::Int(1))
    };
    let ticks = WorkloadConfig::named("ticks").with("work_ns", ParamValue::Int(500_000));
    for other in [hackbench(), ticks] {
        for seed in 1..3 {
            let vms = vec![vm(0, 3, hackbench()), vm(1, 3, other.clone())];
            let (recording, times, errors) = round_trip(&host(2, vms, DURATION_NS, seed));
            let (median, p90) = (errors.percentile(50), errors.percentile(90));
            let what = format!("next to {}, seed {seed}: {median} {p90} ppm", other.name);
            println!("{what} {:?}", recording.resolved);
            assert!(recording.resolved.edges > 1_000, "{what}");
            assert!(median <= 25_000 && p90 <= 100_000, "{what}");
            let done = times.vcpus.iter().map(|vcpu| vcpu.done_permille);
            assert!(
                done.clone().all(|done| (900..1100).contains(&done)),
                "{what}"
            );
        }
    }
}

/// Which cgroups a host has shows in how long its guests' vCPUs wait.
#[test]
fn vcpus_in_cgroups_of_their_own_are_found_to_be() {
    for vcpu_cgroups in [true, false] {
        for vcpus in [2, 3] {
            let hackbench = WorkloadConfig::named("hackbench").with("fds", ParamValue::Int(2));
            let of = |n| VmConfig {
                vcpu_cgroups,
                ..vm(n, 2, hackbench.clone().with("groups", ParamValue::Int(1)))
            };
            let mut vms = vec![of(0), of(1)];
            vms[1].vcpus = vcpus;
            let host = host(1, vms, DURATION_NS, 1);
            let (recording, was) = record(&host);
            let (assumed, _, times) = replayed(&recording, &was);
            let median = Errors::between(&was, &times, recording.span_ns).percentile(50);
            let what = format!("{vcpu_cgroups}, {vcpus} vCPUs: {median} ppm, {assumed:?}");
            println!("{what}");
            assert_eq!(assumed.groups, Some(true), "{what}");
            assert_eq!(assumed.vcpu_groups, Some(vcpu_cgroups), "{what}");
            assert!(median <= 15_000, "{what}");
        }
    }
}

/// What is found of a host is what a replay has.
#[test]
fn the_hypothesis_is_the_host_that_is_simulated() {
    for workload in ["busy", "ticks", "hackbench"] {
        let (recording, was) = record(&config(workload, 2, 1));
        let none_given = |_: &mut Config| Ok::<(), Fault>(());
        let fitted = fit(&recording, &was, &Assumed::default(), none_given).expect("a replay");
        let (hypothesis, host) = (&fitted.hypothesis, &fitted.config);
        assert_eq!(host.scripts.balanced, hypothesis.balanced, "{workload}");
        let with_group = host.scripts.groups.iter().flatten().count();
        assert_eq!(with_group == 3, hypothesis.cgroups.every_vm, "{workload}");
        assert_eq!(
            host.scripts.vcpu_groups, hypothesis.cgroups.per_vcpu,
            "{workload}"
        );
        assert_eq!(host.knobs.sched.preempt, hypothesis.preempt, "{workload}");
        let again = replay(&recording, host).expect("a replay");
        assert_eq!(again, fitted.times, "{workload}");
    }
}

/// An export is a recording of the replay, with the threads and the times of the first recording.
#[test]
fn an_exported_replay_can_be_read_again() {
    let (recording, was) = record(&config("ticks", 1, 1));
    let (_, host, times) = replayed(&recording, &was);
    let first_ns = 7_000_000_000;
    let mut export = Collected::default();
    export_events(&recording, &host, first_ns, &mut export).expect("a replay");
    assert!(export.events.iter().all(|event| event.time_ns >= first_ns));
    // A vCPU that is preempted leaves its guest first.
    let (mut in_guest, mut left) = (BTreeSet::new(), 0);
    for event in &export.events {
        match event.kind {
            Kind::KvmEntry { .. } => assert!(in_guest.insert(event.tid)),
            Kind::KvmExit { .. } => assert!(in_guest.remove(&event.tid)),
            Kind::SchedSwitch { prev, .. } => {
                left += 1;
                assert!(!in_guest.contains(&prev), "{event:?}");
            }
            _ => {}
        }
    }
    assert!(left > 100, "{left}");
    let (again, answers) = extracted(&export.events, &export.names);
    let tids = |recording: &Recording| {
        let tasks = recording.tasks.iter();
        tasks.map(|task| task.tid).collect::<Vec<i32>>()
    };
    assert_eq!(tids(&again), tids(&recording));
    let exported = recorded(&again, &answers);
    let errors = Errors::between(&times, &exported, recording.span_ns);
    assert!(errors.percentile(100) <= 1_000, "{errors:?}");
}

#[test]
fn without_switches_there_is_nothing_to_replay() {
    let recording =
        Extractor::new(&Analysis::new(Options::default()).finish(&Collected::default().names));
    let recording = recording.finish();
    assert!(recording.tasks.is_empty());
    assert_eq!(recording.span_ns, 0);
}

/// Flags of wakeups and slice timers tell how the host's scheduler is set.
#[test]
fn what_a_scheduler_is_set_to_is_found() {
    let found = |preempt, slice_ns, wakeups_preempt| {
        let mut config = config("cyclictest", 1, 1);
        config.vms.push(vm(3, 1, WorkloadConfig::named("busy")));
        let sched = &mut config.knobs.sched;
        sched.preempt = preempt;
        sched.base_slice_ns = slice_ns;
        let features = sched.features.with(Feature::Hrtick);
        sched.features = match wakeups_preempt {
            true => features,
            false => features.without(Feature::WakeupPreemption),
        };
        let (recording, was) = record(&config);
        let (_, host, _) = replayed(&recording, &was);
        let sched = host.knobs.sched;
        (
            recording.decisions.preempt(),
            sched.base_slice_ns,
            sched.features.has(Feature::WakeupPreemption),
        )
    };
    let lazy = Some(Preempt::Lazy);
    assert_eq!(found(Preempt::Lazy, None, true), (lazy, None, true));
    let slice = Some(5_000_000);
    assert_eq!(found(Preempt::Lazy, slice, true), (lazy, slice, true));
    assert_eq!(found(Preempt::Lazy, None, false), (lazy, None, false));
    // That may be a host without lazy preemption too.
    assert_eq!(found(Preempt::Full, None, true).0, None);
}

#[test]
fn a_vcpu_that_never_waits_does_more_with_more_time() {
    let (recording, was) = record(&config("busy", 1, 3));
    let (_, mut host, _) = replayed(&recording, &was);
    for task in host.scripts.tasks.iter_mut().skip(1) {
        task.nice = 19;
    }
    host.scripts.groups.fill(None);
    let times = replay(&recording, &host).expect("a replay");
    for (was, is) in was.vcpus.iter().zip(&times.vcpus) {
        let permille = is.run_ns * 1000 / was.run_ns;
        let done = is.done_permille;
        assert!(done.abs_diff(permille) < 30, "{done} for {permille}");
        // Exits for ticks and slices come with the work.
        for (reason, n) in was.exits.iter().filter(|exits| *exits.1 >= 100) {
            let expected = n * permille / 1000;
            let n = is.exits.get(reason).copied().unwrap_or(0);
            assert!(
                n.abs_diff(expected) * 20 < expected,
                "{reason:?}: {n} for {expected}"
            );
        }
    }
}

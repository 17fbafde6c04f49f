//! Which hosts a fit tries, in which order, and which one it keeps.

use std::cell::RefCell;

use common::kinds::{switch, wakeup, waking};
use common::made::{of_tasks, run, times, vcpu_task};
use common::{Log, host, record};
use stealtime_events::Context;
use stealtime_hypervisor::fair::{Feature, Preempt};
use stealtime_replay::fit::{Dimension, Fitted, Hypothesis, fit_among};
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::Times;
use stealtime_replay::{Decisions, RecordedTask, Recording};
use stealtime_simulator::Fault;
use stealtime_simulator::config::{VmConfig, WorkloadConfig};
use stealtime_simulator::script::Stall;

use crate::common;

const MS: u64 = 1_000_000;

/// What a fit finds, and in what each hypothesis that it tries differs from the first one.
fn tried(recording: &Recording, was: &Times, known: &Assumed) -> (Fitted, Vec<String>) {
    let hypotheses = RefCell::new(Vec::<Hypothesis>::new());
    let among = |hypothesis: &Hypothesis| {
        hypotheses.borrow_mut().push(hypothesis.clone());
        true
    };
    let unset = |_: &mut _| Ok::<(), Fault>(());
    let fitted = fit_among(recording, was, known, among, unset).expect("it can be replayed");
    let hypotheses = hypotheses.into_inner();
    let text = |hypothesis: &Hypothesis| {
        let differences = hypotheses[0].differences(hypothesis).into_iter();
        let values =
            differences.filter_map(|dimension: Dimension| dimension.value(hypothesis, &[]));
        values.collect::<Vec<_>>().join("; ")
    };
    let texts = hypotheses.iter().map(text).collect();
    (fitted, texts)
}

/// Two VMs that share a CPU and compute for so long.
fn shared(ns: [u64; 2]) -> Recording {
    let busy = |vm: usize| RecordedTask {
        ran_on: vec![0],
        first_cpu: 0,
        ..vcpu_task(vm as i32, (vm, 0), vec![run(ns[vm])])
    };
    of_tasks(vec![busy(0), busy(1)], 100 * MS)
}

#[test]
fn hosts_come_first_then_moves_then_single_vms() {
    let recording = shared([20 * MS; 2]);
    let was = times(&recording, &Assumed::default());
    let (fitted, list) = tried(&recording, &was, &Assumed::default());
    let expected = [
        "",
        "full preemption",
        "each VM in a cgroup",
        "each VM in a cgroup; full preemption",
        "each VM in a cgroup, and in it each vCPU",
        "each VM in a cgroup, and in it each vCPU; full preemption",
        "the simulated scheduler places tasks",
        "VM 0 in a cgroup",
        "VM 1 in a cgroup",
    ];
    assert_eq!(list, expected);
    assert_eq!((fitted.tried, fitted.misfit.times_ns), (9, 0));
}

/// A VM that has a cgroup is tried without, others in addition to it.
#[test]
fn single_vms_are_tried_as_other_than_the_user_says() {
    let known = Assumed {
        own_group: [1].into(),
        vcpu_groups: Some(true),
        preempt: Some(Preempt::Lazy),
        ..Assumed::default()
    };
    let recording = shared([20 * MS; 2]);
    let was = times(&recording, &known);
    let expected = [
        "",
        "each VM in a cgroup, and in it each vCPU",
        "the simulated scheduler places tasks",
        "VM 0 and VM 1 in a cgroup, and in it each vCPU",
        "no cgroups",
    ];
    assert_eq!(tried(&recording, &was, &known).1, expected);
}

fn vm((number, workload, vcpus, cpu_weight): (u32, &str, u32, u32)) -> VmConfig {
    VmConfig {
        name: format!("vm{number}"),
        workload: WorkloadConfig::named(workload),
        vcpus,
        cpu_weight,
        ..VmConfig::default()
    }
}

/// What is tried of a host with two VMs, as long as weights are equal.
const EQUAL: [&str; 6] = [
    "",
    "each VM in a cgroup",
    "each VM in a cgroup, and in it each vCPU",
    "the simulated scheduler places tasks",
    "VM 0 in a cgroup",
    "VM 1 in a cgroup",
];

#[test]
fn weights_are_fitted_to_each_layout_and_then_the_rest_is_tried_again() {
    let vms = [(0, "busy", 1, 100), (1, "busy", 1, 300)].map(vm);
    let (recording, was) = record(&host(1, vms.to_vec(), 300 * MS, 1));
    let weighted = [
        "each VM in a cgroup; weights: VM 1 300",
        "each VM in a cgroup, and in it each vCPU; weights: VM 1 300",
        // The second of these fits better.
        "each VM in a cgroup; weights: VM 1 300",
        "the simulated scheduler places tasks; each VM in a cgroup, and in it each vCPU; weights: VM 1 300",
    ];
    let (fitted, list) = tried(&recording, &was, &Assumed::default());
    assert_eq!(list, [&EQUAL[..], &weighted].concat());
    assert_eq!(fitted.hypothesis.weights, [(1, 300)].into());
    let known = Assumed {
        weights_known: true,
        ..Assumed::default()
    };
    let (fitted, list) = tried(&recording, &was, &known);
    assert_eq!(list, EQUAL);
    assert!(fitted.hypothesis.weights.is_empty());
}

#[test]
fn no_weights_are_tried_again_where_none_explain_the_times() {
    let recording = shared([20 * MS; 2]);
    let mut was = times(&recording, &Assumed::default());
    // All wait longer than any replay has them wait.
    for vcpu in &mut was.vcpus {
        vcpu.ready_ns += 40 * MS;
    }
    let known = Assumed {
        preempt: Some(Preempt::Lazy),
        ..Assumed::default()
    };
    assert_eq!(tried(&recording, &was, &known).1, EQUAL);
}

/// While the first task's CPU stalls it keeps that, and the second one waits.
#[test]
fn stalls_are_tried_where_there_are_some_and_times_are_far_off() {
    let calm = shared([20 * MS, 2 * MS]);
    let mut stalled = calm.clone();
    let stall = Stall {
        step: 0,
        after_ns: MS,
        ns: 18 * MS,
    };
    stalled.tasks[0].stalls = [stall].into();
    let known = |stalls| Assumed {
        groups: Some(false),
        preempt: Some(Preempt::Lazy),
        stalls,
        ..Assumed::default()
    };
    let with = times(&stalled, &known(true));
    let without = times(&stalled, &known(false));
    let mut other = without.clone();
    other.vcpus[0].ready_ns += 30 * MS;
    let first = ["", "the simulated scheduler places tasks"];
    let again = [
        "tasks stall with their CPU",
        "the simulated scheduler places tasks; tasks stall with their CPU",
    ];
    let all = [first, again].concat();
    for (recording, was, expected, stalls) in [
        (&stalled, &with, &all[..], true),
        (&stalled, &without, &first[..], false),
        (&calm, &with, &first[..], false),
        // They make it worse.
        (&stalled, &other, &all[..], false),
    ] {
        let (fitted, list) = tried(recording, was, &known(false));
        assert_eq!(list, expected);
        assert_eq!(fitted.hypothesis.stalls, stalls, "{list:?}");
        assert_eq!(fitted.config.scripts.tasks[0].stalls.is_empty(), !stalls);
    }
}

#[test]
fn no_wakeup_preemption_is_tried_where_wakeups_preempt_less_than_in_replays() {
    for preempt in [true, false] {
        let sleepy = (0..3).map(|n| (n, "cyclictest", 2, 100));
        let vms: Vec<_> = sleepy.chain([(3, "busy", 1, 100)]).map(vm).collect();
        let mut config = host(1, vms, 500 * MS, 1);
        let sched = &mut config.knobs.sched;
        if !preempt {
            sched.features = sched.features.without(Feature::WakeupPreemption);
        }
        let (recording, was) = record(&config);
        let list = |known: &Assumed| {
            let (_, list) = tried(&recording, &was, known);
            let without = |text: &&String| text.contains("wakeups do not preempt");
            list.iter().filter(without).count()
        };
        let stated = Assumed {
            wakeups_preempt: Some(true),
            ..Assumed::default()
        };
        assert_eq!(list(&Assumed::default()), usize::from(!preempt));
        assert_eq!(list(&stated), 0);
    }
}

/// Wakeups on a busy CPU, of which so many in 1000 preempt.
fn decisions(permille: u64) -> Decisions {
    let mut log = Log::default();
    log.add(0, 0, 0, switch(0, 7, 0));
    for number in 0..1_000 {
        log.add(1 + number, 0, 7, waking(8, 0));
        log.add(1 + number, 0, 7, wakeup(8, 0));
        if let Some(event) = log.events.last_mut().filter(|_| number < permille) {
            event.context = Context::from_bits(Context::NEED_RESCHED_LAZY);
        }
    }
    log.extracted().decisions
}

#[test]
fn wakeups_preempt_less_if_that_is_by_more_than_a_tenth_of_them() {
    let vms = [(0, "cyclictest", 2, 100), (1, "busy", 1, 100)].map(vm);
    let (recording, mut was) = record(&host(1, vms.to_vec(), 300 * MS, 1));
    was.decisions = decisions(999);
    let (fitted, _) = tried(&recording, &was, &Assumed::default());
    let replayed = fitted.times.decisions.preempt_permille();
    let replayed = replayed.expect("many wakeups");
    for (fewer, expected) in [(100, 0), (101, 1)] {
        was.decisions = decisions(replayed - fewer);
        let (_, list) = tried(&recording, &was, &Assumed::default());
        let without = list
            .iter()
            .filter(|text| text.contains("wakeups do not preempt"));
        assert_eq!(without.count(), expected, "{fewer} of {replayed}");
    }
}

/// The first task stalls. No hypothesis explains the times: in 500 ms vCPUs halt for 50 ms more.
fn unexplained((mut recording, mut was): (Recording, Times)) -> (Recording, Times) {
    let stall = Stall {
        step: 0,
        after_ns: 0,
        ns: 1_000,
    };
    recording.tasks[0].stalls = [stall].into();
    for vcpu in &mut was.vcpus {
        vcpu.halted_ns += 50 * MS;
    }
    (recording, was)
}

#[test]
fn stalls_are_tried_with_the_weights_and_the_preemption_that_fit() {
    let weights = [(0, "busy", 1, 100), (1, "busy", 1, 300)].map(vm);
    let weights = host(1, weights.to_vec(), 500 * MS, 1);
    let sleepy = (0..3).map(|n| (n, "cyclictest", 2, 100));
    let sleepy = sleepy.chain([(3, "busy", 1, 100)]).map(vm).collect();
    let mut no_preemption = host(1, sleepy, 500 * MS, 1);
    let sched = &mut no_preemption.knobs.sched;
    sched.features = sched.features.without(Feature::WakeupPreemption);
    for (config, fits) in [
        (weights, "weights: VM 1 300"),
        (no_preemption, "wakeups do not preempt"),
    ] {
        let (recording, was) = unexplained(record(&config));
        let (_, list) = tried(&recording, &was, &Assumed::default());
        let stalled = list.iter().filter(|text| text.contains("tasks stall"));
        let (with, without): (Vec<_>, Vec<_>) = stalled.partition(|text| text.contains(fits));
        assert!(!with.is_empty(), "{list:?}");
        assert_eq!(without, Vec::<&String>::new());
    }
}

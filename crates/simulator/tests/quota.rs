//! A VM with a quota next to a task that computes: when the quota is refilled, no task is preempted.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use stealtime_events::{Kind, Names};
use stealtime_simulator::config::{
    Config, HostConfig, Knobs, RunConfig, SchedPolicy, ScxKnobs, TaskConfig, Topology, VmConfig,
    WorkloadConfig,
};
use stealtime_simulator::{Collected, run};

/// `tg_unthrottle_up` enqueues without `wakeup_preempt`: the current task keeps the CPU until its
/// slice timer or a tick.
#[test]
fn what_comes_back_with_its_quota_waits_for_its_turn() {
    let guest = VmConfig {
        vcpus: 1,
        workload: WorkloadConfig::named("busy"),
        cpu_max_ns: Some((10_000_000, 100_000_000)),
        ..VmConfig::default()
    };
    let mut host = HostConfig::generic(Topology::flat(1));
    host.tasks.push(TaskConfig {
        name: "other".to_owned(),
        workload: WorkloadConfig::named("busy"),
        count: 1,
        nice: 0,
        cpus: vec![0],
    });
    let config = Config {
        host,
        vms: vec![guest],
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 2_000_000_000,
            warmup_ns: 0,
            seed: 3,
        },
    };
    let mut sink = Collected::default();
    let outcome = run(&config, &mut sink).unwrap();
    let vcpu = outcome.vms[0].vcpus[0].tid;
    let (mut period, mut waits) = (None, Vec::new());
    for event in &sink.events {
        match event.kind {
            Kind::HrtimerExpireEntry { function, .. }
                if sink.names.name(function) == "sched_cfs_period_timer" =>
            {
                period = Some(event.time_ns);
            }
            Kind::SchedSwitch { next, .. } if next == vcpu => {
                waits.extend(period.take().map(|at| event.time_ns - at));
            }
            _ => {}
        }
    }
    assert!(waits.len() >= 15, "{waits:?}");
    assert!(waits.iter().all(|ns| *ns > 100_000), "at once: {waits:?}");
}

/// `scx_stealtime` knows no limits: it refuses to start on such a host.
#[test]
fn a_limit_needs_the_fair_class() {
    let guest = VmConfig {
        cpu_max_ns: Some((10_000_000, 100_000_000)),
        ..VmConfig::default()
    };
    let mut config = Config {
        host: HostConfig::generic(Topology::flat(1)),
        vms: vec![guest],
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 1_000_000,
            warmup_ns: 0,
            seed: 1,
        },
    };
    config.knobs.sched.policy = SchedPolicy::ScxStealtime(ScxKnobs::default());
    let error = config.check().unwrap_err();
    assert_eq!(error.key, "vm.0.cpu_max");
    assert!(
        error.problem.contains("scx_stealtime refuses to start"),
        "{error}"
    );
    config.vms[0].cpu_max_ns = None;
    assert_eq!(config.check(), Ok(()));
}

/// Weights of VMs hold under `scx_stealtime`, with yields as fast as guests can.
#[test]
fn yields_leave_the_shares_of_weights() {
    let vm = |cpu_weight| VmConfig {
        vcpus: 4,
        cpu_weight,
        workload: WorkloadConfig::named("ipi-pairs"),
        ..VmConfig::default()
    };
    let mut config = Config {
        host: HostConfig::generic(Topology::flat(2)),
        vms: vec![vm(300), vm(100)],
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 1_000_000_000,
            warmup_ns: 100_000_000,
            seed: 1,
        },
    };
    config.knobs.sched.policy = SchedPolicy::ScxStealtime(ScxKnobs::default());
    for guest in &mut config.vms {
        guest.guest.pv_sched_yield = false;
        guest.guest.pv_send_ipi = false;
    }
    let outcome = run(&config, &mut Collected::default()).unwrap();
    assert!(outcome.stats.directed_yields > 100);
    let ran = |n: usize| -> u64 {
        let vcpus = outcome.vms[n].vcpus.iter();
        vcpus.map(|vcpu| vcpu.task.run_ns).sum()
    };
    let per_mille = 1000 * ran(0) / (ran(0) + ran(1));
    assert!(per_mille.abs_diff(750) <= 20, "{per_mille}");
}

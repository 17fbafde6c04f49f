//! The host as it was recorded, for the simulator.

use stealtime_simulator::config::{
    CState, Config, Costs, HostConfig, Hypervisor, IdleMethod, Knobs, Profile, RunConfig, Topology,
};
use stealtime_simulator::script::{ScriptConfig, Scripts};

use crate::extract::{RecordedTask, Recording};

/// Switches on one CPU and no other from which on a task counts as bound to it.
const BOUND_FROM: u64 = 20;

/// The knobs that the recording tells, and defaults for the others.
#[must_use]
pub fn knobs(recording: &Recording) -> Knobs {
    let mut knobs = Knobs::default();
    if let Some(ns) = recording.halt_poll_ns {
        knobs.kvm.halt_poll.halt_poll_ns = ns;
    }
    if let Some(hz) = recording.hz {
        knobs.sched.hz = hz;
    }
    knobs
}

/// A host with the recording's CPUs on which its tasks do what they did.
///
/// What switches, wakeups and interrupts cost is in the recorded times already, so that they cost
/// nothing here; leaving idleness takes what it took in the recording.
#[must_use]
pub fn as_recorded(recording: &Recording, knobs: Knobs, seed: u64) -> Config {
    let mut profile = Profile::generic();
    profile.name = "as recorded".to_owned();
    profile.costs = Costs::FREE;
    let exit = u32::try_from(recording.idle_wake_ns.unwrap_or(2_000)).unwrap_or(u32::MAX);
    profile.cstates = vec![CState {
        name: "idle".to_owned(),
        exit_latency_ns: exit.min(1_000_000),
        target_residency_ns: 0,
    }];
    Config {
        host: HostConfig {
            profile,
            topology: Topology::flat(recording.cpus.max(1)),
            hypervisor: Hypervisor::Kvm,
            idle: IdleMethod::Mwait,
            tasks: Vec::new(),
        },
        vms: Vec::new(),
        scripts: Scripts {
            tasks: recording.tasks.iter().map(script).collect(),
            edges: recording.edges,
            groups: false,
        },
        knobs,
        run: RunConfig {
            duration_ns: recording.span_ns.max(1_000),
            warmup_ns: 0,
            seed,
        },
    }
}

fn script(task: &RecordedTask) -> ScriptConfig {
    let bound = task.ran_on.len() == 1 && task.migrations == 0 && task.switches_in >= BOUND_FROM;
    ScriptConfig {
        name: task.name.clone(),
        nice: task.nice,
        cpus: match bound {
            true => task.ran_on.iter().map(|&cpu| u32::from(cpu)).collect(),
            false => Vec::new(),
        },
        first_cpu: u32::from(task.first_cpu),
        vm: task.vcpu.map(|(vm, _)| vm as u32),
        moves: true,
        steps: task.steps.clone(),
    }
}

//! Guests and their workloads.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

mod calls;
mod counters;
mod deadlock;
mod library;
mod locks;
mod random;
mod reference;
mod timers;

use stealtime_simulator::config::{
    Config, HostConfig, Knobs, ParamValue, Pinning, RunConfig, Topology, VmConfig, WorkloadConfig,
};
use stealtime_simulator::{Fault, GuestBuilder, Machine, Outcome, Sim, VcpuOutcome};

const MS: u64 = 1_000_000;

/// `vms` guests of `vcpus` vCPUs each on `cpus` CPUs, all with the same workload.
fn config(vms: u32, vcpus: u32, cpus: u32, workload: WorkloadConfig) -> Config {
    Config {
        host: HostConfig::generic(Topology::flat(cpus)),
        vms: (0..vms)
            .map(|n| VmConfig {
                name: format!("vm{n}"),
                vcpus,
                workload: workload.clone(),
                ..VmConfig::default()
            })
            .collect(),
        scripts: Default::default(),
        knobs: Knobs::default(),
        run: RunConfig {
            duration_ns: 200 * MS,
            warmup_ns: 0,
            seed: 7,
        },
    }
}

fn named(workload: &str) -> WorkloadConfig {
    WorkloadConfig::named(workload)
}

fn with(workload: &str, params: &[(&str, i64)]) -> WorkloadConfig {
    params
        .iter()
        .fold(named(workload), |config, &(name, value)| {
            config.with(name, ParamValue::Int(value))
        })
}

/// Each vCPU of the first VM on a CPU of its own.
fn pinned(mut config: Config) -> Config {
    for vm in &mut config.vms {
        vm.pinning = Pinning::OneToOne((0..vm.vcpus).collect());
    }
    config
}

fn run(config: &Config) -> Outcome {
    stealtime_simulator::run(config, &mut ()).unwrap()
}

/// Runs guests with the threads that `recipe` makes.
fn run_recipe(
    config: &Config,
    mut recipe: impl FnMut(&mut GuestBuilder) -> Sim,
) -> Result<Outcome, Fault> {
    let mut sink = ();
    let mut machine = Machine::with_recipes(config, &mut sink, &mut |_, guest| recipe(guest))?;
    machine.run(&|| false)
}

fn done(outcome: &Outcome) -> u64 {
    let meters = outcome.vms.iter().map(|vm| &outcome.stats.meters[vm.meter]);
    meters.map(|meter| meter.done).sum()
}

/// Mean latency that the first VM reports, in ns.
fn latency(outcome: &Outcome) -> u64 {
    let meter = &outcome.stats.meters[outcome.vms[0].meter];
    meter.latency.mean().unwrap()
}

fn sum(outcome: &Outcome, of: impl Fn(&VcpuOutcome) -> u64) -> u64 {
    outcome.vms.iter().flat_map(|vm| &vm.vcpus).map(of).sum()
}

fn spun(outcome: &Outcome) -> u64 {
    sum(outcome, |vcpu| vcpu.vcpu.spin_ns)
}

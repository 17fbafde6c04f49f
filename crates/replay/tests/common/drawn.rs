//! Simulated hosts, drawn at random, with a knob to change on each.

use std::collections::BTreeMap;

use stealtime_hypervisor::fair::Feature;
use stealtime_replay::Recording;
use stealtime_replay::predict::Times;
use stealtime_simulator::config::{Config, ParamValue, Pinning, VmConfig, WorkloadConfig};
use stealtime_simulator::script::ScriptGroup;

use crate::common::host;

const KNOBS: [&str; 6] = [
    "kvm.halt_poll_ns=0",
    "sched.base_slice_ns=6ms",
    "sched.features=NO_WAKEUP_PREEMPTION",
    "host.hz=1000",
    "vm.vm0.cpu_weight=300",
    "vm.vm0.cpu_max=30%",
];

/// SplitMix64, as a stream of choices.
pub struct Choices(pub u64);

impl Choices {
    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// What is drawn.
#[derive(Clone, Copy)]
pub struct Drawn {
    workloads: &'static [&'static str],
    pub knobs: &'static [&'static str],
    duration_ns: u64,
}

pub const ANY: Drawn = Drawn {
    workloads: &["busy", "ticks", "cyclictest"],
    knobs: &KNOBS,
    duration_ns: 1_000_000_000,
};

/// One VM at least has vCPUs that wake each other, and pins are drawn too.
pub const COUPLED: Drawn = Drawn {
    workloads: &["hackbench", "redis", "busy", "ticks"],
    knobs: &[
        "kvm.halt_poll_ns=0",
        "sched.base_slice_ns=6ms",
        "sched.features=NO_WAKEUP_PREEMPTION",
        "vm.vm0.cpu_weight=300",
        PINS,
    ],
    duration_ns: 300_000_000,
};

/// vCPU `n` of each VM on CPU `n` modulo their number.
pub const PINS: &str = "pin VM=1:1";

impl Drawn {
    /// 1 to 3 CPUs, 2 or 3 VMs of 1 to 3 vCPUs, each with a workload of its own.
    pub fn scenario(&self, seed: u64) -> Config {
        let mut choices = Choices(seed);
        let cpus = 1 + choices.below(3) as u32;
        let vms = 2 + choices.below(2);
        let vm = |n| {
            let vcpus = 1 + choices.below(3) as u32;
            let index = match (n, self.workloads.first()) {
                (0, Some(&"hackbench")) => 0,
                _ => choices.below(self.workloads.len() as u64) as usize,
            };
            VmConfig {
                name: format!("vm{n}"),
                vcpus,
                workload: workload(self.workloads[index]),
                ..VmConfig::default()
            }
        };
        host(cpus, (0..vms).map(vm).collect(), self.duration_ns, seed)
    }
}

fn workload(name: &str) -> WorkloadConfig {
    let named = WorkloadConfig::named(name);
    match name {
        // Two senders and two receivers.
        "hackbench" => named
            .with("groups", ParamValue::Int(1))
            .with("fds", ParamValue::Int(2)),
        _ => named,
    }
}

fn limit() -> (u64, u64) {
    (30_000_000, 100_000_000)
}

/// The knob, in the simulated host and in the replayed one.
pub fn change(config: &mut Config, knob: &str) {
    let features = config.knobs.sched.features;
    match knob {
        "kvm.halt_poll_ns=0" => config.knobs.kvm.halt_poll.halt_poll_ns = 0,
        "sched.base_slice_ns=6ms" => config.knobs.sched.base_slice_ns = Some(6_000_000),
        "sched.features=NO_WAKEUP_PREEMPTION" => {
            config.knobs.sched.features = features.without(Feature::WakeupPreemption);
        }
        "host.hz=1000" => config.knobs.sched.hz = 1000,
        PINS => {
            let cpus = config.host.topology.cpus();
            for vm in &mut config.vms {
                vm.pinning = Pinning::OneToOne((0..vm.vcpus).map(|n| n % cpus).collect());
            }
        }
        _ => {
            let weight = knob == "vm.vm0.cpu_weight=300";
            if let Some(vm) = config.vms.first_mut() {
                match weight {
                    true => vm.cpu_weight = 300,
                    false => vm.cpu_max_ns = Some(limit()),
                }
            }
            if let Some(group) = config.scripts.groups.first_mut() {
                let group = group.get_or_insert_with(ScriptGroup::default);
                match weight {
                    true => group.cpu_weight = 300,
                    false => group.cpu_max_ns = Some(limit()),
                }
            }
        }
    }
}

/// The pins of [`PINS`], if those are asked for.
pub fn pins(recording: &Recording, knob: &str) -> Vec<((usize, u32), Vec<u32>)> {
    let vcpus = recording.tasks.iter().filter_map(|task| task.vcpu);
    let vcpus = vcpus.filter(|_| knob == PINS);
    vcpus
        .map(|vcpu| (vcpu, vec![vcpu.1 % recording.cpus]))
        .collect()
}

/// Shares of each VM: running, ready, halted, in ppm of a CPU's time, averaged over its vCPUs.
pub fn shares(times: &Times, span: u64) -> Vec<i64> {
    let mut vms: BTreeMap<usize, (i64, [i64; 3])> = BTreeMap::new();
    for vcpu in &times.vcpus {
        let vm = vms.entry(vcpu.vm).or_default();
        vm.0 += 1;
        for (sum, ns) in
            vm.1.iter_mut()
                .zip([vcpu.run_ns, vcpu.ready_ns, vcpu.halted_ns])
        {
            *sum += (u128::from(ns) * 1_000_000 / u128::from(span)) as i64;
        }
    }
    let mean = |(n, sums): &(i64, [i64; 3])| sums.map(|sum| sum / n);
    vms.values().flat_map(mean).collect()
}

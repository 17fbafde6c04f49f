//! What a variant with other numbers of VMs or CPUs has in addition to comparisons.

use std::borrow::Cow;
use std::collections::BTreeSet;

use serde::Serialize;
use stealtime_lab::units::show_cpus;
use stealtime_replay::RecordedTask;
use stealtime_replay::host::is_bound;

use crate::baseline::Baseline;
use crate::plan::Prepared;
use crate::population::{Population, VmFigures};
use crate::result::Measured;

/// The VMs of a variant with other numbers of VMs or CPUs.
#[derive(Debug, Clone, Serialize)]
pub struct PopulationChange {
    /// All VMs of the variant, copies too: means over its replays.
    pub vms: Vec<VmFigures>,
    /// Recorded VMs that it takes away. They are in no comparison.
    pub removed: Vec<String>,
    /// CPUs of the host; `None` as recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<usize>,
    /// What it takes for true.
    pub assumed: Vec<String>,
}

impl PopulationChange {
    /// Of a plan with these replays; `None` if the plan has the recorded VMs and CPUs.
    pub(crate) fn new(base: &Baseline, plan: &Prepared, replays: &[Measured]) -> Option<Self> {
        if !plan.changes_population() {
            return None;
        }
        let populations = replays.iter().filter_map(Measured::population);
        let name = |vm: usize| base.recorded.vms.get(vm).cloned();
        Some(Self {
            vms: mean(&populations.collect::<Vec<_>>()),
            removed: plan.counts.removed().filter_map(name).collect(),
            cpus: plan.cpus.as_ref().map(Vec::len),
            assumed: assumptions(base, plan),
        })
    }

    /// The copies.
    pub fn copies(&self) -> impl Iterator<Item = &VmFigures> {
        self.vms.iter().filter(|vm| vm.number > 1)
    }
}

/// Replays without VMs that a plan takes away, so that the others are compared.
pub(crate) fn without<'r>(replays: &'r [Measured], plan: &Prepared) -> Cow<'r, [Measured]> {
    let removed: Vec<usize> = plan.counts.removed().collect();
    match removed.is_empty() {
        true => Cow::Borrowed(replays),
        false => replays
            .iter()
            .map(|replay| replay.without(&removed))
            .collect(),
    }
}

/// The mean of each figure.
fn mean(populations: &[&Population]) -> Vec<VmFigures> {
    let Some(first) = populations.first() else {
        return Vec::new();
    };
    let of_vm = |(index, vm): (usize, &VmFigures)| {
        let replays = || {
            populations
                .iter()
                .filter_map(move |population| population.vms.get(index))
        };
        let mean = |value: &dyn Fn(&VmFigures) -> Option<f64>| {
            let values: Vec<f64> = replays().filter_map(value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let mean_of = |value: fn(&VmFigures) -> f64| mean(&|vm| Some(value(vm))).unwrap_or(0.0);
        VmFigures {
            ready_percent: mean_of(|vm| vm.ready_percent),
            run_percent: mean_of(|vm| vm.run_percent),
            wakeup_p50_us: mean(&|vm| vm.wakeup_p50_us),
            wakeup_p99_us: mean(&|vm| vm.wakeup_p99_us),
            work_ms_per_s: mean_of(|vm| vm.work_ms_per_s),
            done_percent: mean_of(|vm| vm.done_percent),
            overhead_ms_per_s: mean_of(|vm| vm.overhead_ms_per_s),
            ..vm.clone()
        }
    };
    first.vms.iter().enumerate().map(of_vm).collect()
}

/// What a replay of a plan takes for true beyond the baseline.
fn assumptions(base: &Baseline, plan: &Prepared) -> Vec<String> {
    let mut lines = vec![
        "tasks are placed by the simulated scheduler: recorded moves are those of another load"
            .to_owned(),
    ];
    let free = unbound(base, plan);
    if !free.is_empty() {
        lines.push(format!(
            "threads of {} ran on one CPU only; no affinity of theirs is known, and they may use every CPU \
             (a snapshot of the host has affinities)",
            free.join(", ")
        ));
    }
    if (0..base.recorded.vms.len()).any(|vm| plan.counts.of_vm(vm) > 1) {
        lines.push(
            "a copy does what its VM did, from another time of the recording; its vCPUs and its VMM's threads \
             are copied, what other host tasks did for the VM is not"
                .to_owned(),
        );
        let bound = bound_copies(base, plan);
        lines.extend(bound.into_iter().map(|(name, cpus)| {
            format!("copies of {name} may use the CPUs that {name} may: {cpus}")
        }));
    }
    for (vm, added) in (base.recorded.vms.len()..).zip(&base.added) {
        if plan.counts.of_guest(vm) > 0 {
            lines.push(format!(
                "{}; its recorded demand begins at a time that the seed draws, and it may use every CPU",
                added.source
            ));
        }
    }
    if plan.counts.removed().next().is_some() {
        lines.push(
            "tasks that a removed VM woke wake at the recorded times; what host tasks did for it stays"
                .to_owned(),
        );
    }
    let recorded_cpus = base.recorded.recording.cpus as usize;
    if let Some(cpus) = plan.cpus.as_ref().filter(|cpus| cpus.len() > recorded_cpus) {
        lines.push(format!(
            "CPUs {} are like {} again, without differences of caches, cores and sockets",
            show_cpus(&(recorded_cpus as u32..cpus.len() as u32).collect::<Vec<_>>()),
            base.recorded.cpu_range(),
        ));
    }
    lines
}

fn tasks_of(base: &Baseline, vm: usize) -> impl Iterator<Item = &RecordedTask> {
    let tasks = base.recorded.recording.tasks.iter();
    tasks.filter(move |task| task.vm == Some(vm))
}

/// VMs with threads that ran on one CPU, of which no affinity is known.
fn unbound(base: &Baseline, plan: &Prepared) -> Vec<String> {
    let is_unbound = |task: &RecordedTask| {
        let assumed = &plan.assumed;
        let mut pins = assumed.pins.iter();
        is_bound(task)
            && !assumed.affinity.contains_key(&task.tid)
            && !pins.any(|pin| Some(pin.0) == task.vcpu)
    };
    let vms = base.recorded.vms.iter().enumerate();
    let vms = vms.filter(|(vm, _)| tasks_of(base, *vm).any(is_unbound));
    vms.map(|(_, name)| name.clone()).collect()
}

/// VMs with copies that may not use every CPU, and the CPUs that they may use.
fn bound_copies(base: &Baseline, plan: &Prepared) -> Vec<(String, String)> {
    let cpus = base.recorded.recording.cpus;
    let of_vm = |(vm, name): (usize, &String)| {
        let mut allowed: BTreeSet<u32> = BTreeSet::new();
        for task in tasks_of(base, vm).filter(|task| task.vcpu.is_some()) {
            let pins = plan.assumed.pins.iter().rev();
            let pin = pins
                .clone()
                .find(|pin| Some(pin.0) == task.vcpu)
                .map(|pin| &pin.1);
            match pin.or_else(|| plan.assumed.affinity.get(&task.tid)) {
                Some(list) => allowed.extend(list),
                None => allowed.extend(0..cpus),
            }
        }
        let is_copied = plan.counts.of_vm(vm) > 1;
        let is_bound = is_copied && (0..cpus).any(|cpu| !allowed.contains(&cpu));
        is_bound.then(|| {
            (
                name.clone(),
                show_cpus(&allowed.into_iter().collect::<Vec<_>>()),
            )
        })
    };
    base.recorded
        .vms
        .iter()
        .enumerate()
        .filter_map(of_vm)
        .collect()
}

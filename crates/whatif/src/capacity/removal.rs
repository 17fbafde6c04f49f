//! Which VM to take away: what the others gain by it.

use serde::Serialize;
use stealtime_lab::metric::Better;
use stealtime_lab::stats::{self, Estimate, Verdict};

use crate::capacity::cause::Taker;
use crate::capacity::error::FitError;
use crate::capacity::figures::{Measure, Point};
use crate::capacity::{HostVm, Replays};
use crate::count::VmCount;
use crate::population::Population;

/// What a VM gains by the removal of another one.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Spared {
    /// The VM.
    pub vm: String,
    /// Its ready time with the other VM, in percent of its vCPUs' time.
    pub ready_percent: f64,
    /// The same without it.
    pub ready_without_percent: f64,
    /// Ready time that it is spared, in ms per second of all its vCPUs.
    pub spared_ms: Estimate,
    /// Whether the interval leaves out 0.
    pub is_beyond_noise: bool,
    /// Work that it does in addition, in ms per second.
    pub work_ms: Estimate,
}

/// A VM that is taken away.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Removal {
    /// The VM.
    pub vm: String,
    /// CPU time that it had, in ms per second.
    pub cpu_ms: f64,
    /// Ready time that the other VMs are spared, in ms per second of all their vCPUs.
    pub spared_ms: Estimate,
    /// Each of them, the largest gain first.
    pub vms: Vec<Spared>,
}

/// The VM that waits most as recorded.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Suffering {
    /// The VM.
    pub vm: String,
    /// Its ready time in the recording, in percent of its vCPUs' time.
    pub ready_percent: f64,
    /// What has the CPUs meanwhile, in the recording.
    pub takers: Vec<Taker>,
}

/// Which VMs to take away.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Removals {
    /// The answer in words.
    pub sentence: String,
    /// The VM that waits most as recorded; absent if none waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suffering: Option<Suffering>,
    /// Each VM, taken away alone, the largest gain first.
    pub ranked: Vec<Removal>,
    /// The VMs to take away, one after the other: each is the best one after those before it.
    pub steps: Vec<Removal>,
    /// Limits that are broken on the host that remains.
    pub end: Point,
}

fn counts_without(vms: &[&str]) -> Vec<VmCount> {
    let counts = vms.iter().map(|vm| VmCount {
        vm: (*vm).to_owned(),
        count: 0,
    });
    counts.collect()
}

/// A figure of a VM by seed; 0 where it is not there.
fn by_seed(
    replays: &[Population],
    vm: &str,
    value: impl Fn(&crate::population::VmFigures) -> f64,
) -> Vec<f64> {
    let of_replay = |replay: &Population| {
        let copies = replay.vms.iter().filter(|copy| copy.vm == vm);
        copies.map(&value).sum()
    };
    replays.iter().map(of_replay).collect()
}

fn mean(values: &[f64]) -> f64 {
    stats::estimate(values).map_or(0.0, |estimate| estimate.mean)
}

/// What one VM gains between two hosts; `None` without replays.
fn spared(vm: &HostVm, crowded: &[Population], reduced: &[Population]) -> Option<Spared> {
    let ready = |replays| by_seed(replays, &vm.name, |copy| copy.ready_percent);
    let work = |replays| by_seed(replays, &vm.name, |copy| copy.work_ms_per_s);
    // Percent of one vCPU's time are 10 ms per second.
    let scale = vm.vcpus as f64 * 10.0;
    let ready_ms = |replays| -> Vec<f64> { ready(replays).iter().map(|p| p * scale).collect() };
    let change = stats::difference(&ready_ms(reduced), &ready_ms(crowded), Better::Neither)?;
    let work_change = stats::difference(&work(crowded), &work(reduced), Better::Higher)?;
    Some(Spared {
        vm: vm.name.clone(),
        ready_percent: mean(&ready(crowded)),
        ready_without_percent: mean(&ready(reduced)),
        spared_ms: change.estimate,
        is_beyond_noise: change.verdict == Verdict::Different,
        work_ms: work_change.estimate,
    })
}

/// What all gain by the removal of `vm` from the host of `crowded`.
fn removal(
    vm: &HostVm,
    vms: &[&HostVm],
    crowded: &[Population],
    reduced: &[Population],
) -> Option<Removal> {
    let spared = vms.iter().filter_map(|vm| spared(vm, crowded, reduced));
    let mut spared: Vec<Spared> = spared.collect();
    spared.sort_by(|a, b| b.spared_ms.mean.total_cmp(&a.spared_ms.mean));
    let sums = |replays: &[Population]| -> Vec<f64> {
        let of_replay = |replay: &Population| {
            let ready = |vm: &&HostVm| {
                let copies = replay.vms.iter().filter(|copy| copy.vm == vm.name);
                copies
                    .map(|copy| copy.ready_percent * vm.vcpus as f64 * 10.0)
                    .sum::<f64>()
            };
            vms.iter().map(ready).sum()
        };
        replays.iter().map(of_replay).collect()
    };
    let sum = stats::difference(&sums(reduced), &sums(crowded), Better::Neither)?;
    Some(Removal {
        vm: vm.name.clone(),
        cpu_ms: vm.run_ms,
        spared_ms: sum.estimate,
        vms: spared,
    })
}

/// Takes each VM away in turn, then the best one, until `steps` are gone.
pub(crate) fn removals<R: Replays + ?Sized>(
    replays: &R,
    measure: &Measure<'_>,
    recorded: &[Population],
    suffering: Option<Suffering>,
    steps: usize,
    seeds: u64,
) -> Result<Removals, FitError> {
    let present = measure.vms.iter().filter(|vm| vm.first > 0);
    let mut host: Vec<&HostVm> = present.collect();
    if host.len() <= steps {
        return Err(FitError::TooManyMoves {
            moves: steps,
            vms: host.len(),
        });
    }
    let mut absent: Vec<&str> = Vec::new();
    let mut crowded = recorded.to_vec();
    let (mut ranked, mut path) = (Vec::new(), Vec::new());
    for step in 0..steps {
        let lists = host.iter().map(|vm| {
            let mut removed = absent.clone();
            removed.push(&vm.name);
            counts_without(&removed)
        });
        let lists: Vec<Vec<VmCount>> = lists.collect();
        let results = replays.replay(&lists, seeds)?;
        let mut rows: Vec<(Removal, Vec<Population>)> = Vec::new();
        for (vm, reduced) in host.iter().zip(results) {
            let remaining = host
                .iter()
                .filter(|staying| staying.name != vm.name)
                .copied();
            let remaining: Vec<&HostVm> = remaining.collect();
            let row = removal(vm, &remaining, &crowded, &reduced).ok_or(FitError::Stopped)?;
            rows.push((row, reduced));
        }
        rows.sort_by(|a, b| b.0.spared_ms.mean.total_cmp(&a.0.spared_ms.mean));
        if step == 0 {
            ranked = rows.iter().map(|row| row.0.clone()).collect();
        }
        let Some((best, reduced)) = rows.into_iter().next() else {
            break;
        };
        host.retain(|vm| vm.name != best.vm);
        absent.extend(
            measure
                .vms
                .iter()
                .map(|vm| vm.name.as_str())
                .filter(|name| *name == best.vm),
        );
        path.push(best);
        crowded = reduced;
    }
    let end = measure.point(0, &crowded).ok_or(FitError::Stopped)?;
    let mut removals = Removals {
        sentence: String::new(),
        suffering,
        ranked,
        steps: path,
        end,
    };
    removals.sentence = super::sentence::of_removals(&removals);
    Ok(removals)
}

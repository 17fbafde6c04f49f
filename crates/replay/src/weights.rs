//! Weights (`cpu.weight`) of VMs' cgroups: what VMs get of the CPUs that they compete for shows them.
//!
//! A replay with some weights says what those give; they are scaled by what the recording has otherwise,
//! until it has nothing otherwise. So vCPUs that halt, CPUs that are shared by others, and groups that have
//! vCPUs on several CPUs need no formula.

use std::collections::BTreeMap;

use stealtime_simulator::script::ScriptGroup;

use crate::predict::Times;

/// `cpu.weight` of a cgroup that nobody set one of, and the range that the kernel takes.
const DEFAULT: f64 = 100.0;
const RANGE: (f64, f64) = (1.0, ScriptGroup::MOST_WEIGHT as f64);
/// A VM that waits for less than one in so many of all time has what it wants whatever its weight is.
const ONE_IN_WAITING: u64 = 100;
/// Weights that differ by less than this factor are taken for equal: demand is known no better.
const NEAR: f64 = 1.25;
/// Odds that are off by less than this factor are right.
const RIGHT: f64 = 1.06;
/// No step changes a weight by more than this factor.
const MOST: f64 = 4.0;

/// Logarithms, by VM.
type Logs = BTreeMap<usize, f64>;

/// Weights on their way to what fits.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fit {
    logs: Logs,
    /// What odds were off by before the last step, and how much of that the step was.
    last: Option<(Logs, f64)>,
}

impl Fit {
    /// Goes on from weights with which this is the replay (at first: equal ones). Whether another replay is
    /// needed.
    pub(crate) fn step(&mut self, recorded: &Times, replayed: &Times) -> bool {
        let off = off(recorded, replayed);
        let worst = off.values().fold(0.0, |worst: f64, ln| worst.max(ln.abs()));
        let right = match self.last {
            Some(_) => RIGHT.ln(),
            None => NEAR.ln(),
        };
        if off.len() < 2 || worst < right {
            return false;
        }
        let gain = match &self.last {
            // Where two compete for a CPU, the ratio of weights changes the odds of both.
            None => 0.5,
            Some((before, gain)) => {
                let gone = 1.0 - product(&off, before) / product(before, before);
                (gain / gone.max(0.1)).clamp(0.3, 2.0)
            }
        };
        for (&vm, ln) in &off {
            let step = (gain * ln).clamp(-MOST.ln(), MOST.ln());
            *self.logs.entry(vm).or_default() += step;
        }
        self.last = Some((off, gain));
        true
    }

    /// The weights, by index of the VM, where they are not 100; with two digits. Only their ratios are known:
    /// what most VMs have is 100, and the least of those that as many have. `snap`: those that are near to
    /// that are it.
    pub(crate) fn weights(&self, snap: bool) -> BTreeMap<usize, u32> {
        let is_near = |a: f64, b: f64| (a - b).abs() < NEAR.ln();
        let near = |ln: f64| self.logs.values().filter(move |&&other| is_near(other, ln));
        let usual = self.logs.values().copied().max_by(|&a, &b| {
            let counts = near(a).count().cmp(&near(b).count());
            counts.then(b.total_cmp(&a))
        });
        let Some(usual) = usual else {
            return BTreeMap::new();
        };
        let mean = near(usual).sum::<f64>() / near(usual).count() as f64;
        let weight = |ln: f64| match snap && is_near(ln, usual) {
            true => DEFAULT,
            false => two_digits(((ln - mean).exp() * DEFAULT).clamp(RANGE.0, RANGE.1)),
        };
        let weights = self.logs.iter().map(|(&vm, &ln)| (vm, weight(ln)));
        let unusual = weights.filter(|weight| weight.1 != DEFAULT);
        unusual.map(|(vm, weight)| (vm, weight as u32)).collect()
    }
}

/// By how much each VM's odds to run, and not to wait for a CPU, are better in the recording than in the
/// replay: logarithms, around their mean, without VMs that hardly wait.
fn off(recorded: &Times, replayed: &Times) -> Logs {
    let (was, is) = (sums(recorded), sums(replayed));
    let odds = |sums: &BTreeMap<usize, Sum>, vm: usize| {
        let sum = sums.get(&vm)?;
        let waits = sum.run_ns > 0 && sum.ready_ns > sum.all_ns / ONE_IN_WAITING;
        waits.then(|| (sum.run_ns as f64 / sum.ready_ns as f64).ln())
    };
    let of_vm = |&vm: &usize| Some((vm, odds(&was, vm)? - odds(&is, vm)?));
    let mut off: Logs = was.keys().filter_map(of_vm).collect();
    let mean = off.values().sum::<f64>() / off.len().max(1) as f64;
    off.values_mut().for_each(|ln| *ln -= mean);
    off
}

/// Time of a VM's vCPUs, in ns.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    run_ns: u64,
    ready_ns: u64,
    all_ns: u64,
}

fn sums(times: &Times) -> BTreeMap<usize, Sum> {
    let mut sums: BTreeMap<usize, Sum> = BTreeMap::new();
    for vcpu in &times.vcpus {
        let sum = sums.entry(vcpu.vm).or_default();
        sum.run_ns = sum.run_ns.saturating_add(vcpu.run_ns);
        sum.ready_ns = sum.ready_ns.saturating_add(vcpu.ready_ns);
        sum.all_ns = sum.all_ns.saturating_add(vcpu.known_ns());
    }
    sums
}

fn product(a: &Logs, b: &Logs) -> f64 {
    let of_vm = |(vm, a): (&usize, &f64)| a * b.get(vm).copied().unwrap_or(0.0);
    a.iter().map(of_vm).sum()
}

/// Rounded.
fn two_digits(value: f64) -> f64 {
    let unit = 10f64.powf((value.log10().floor() - 1.0).max(0.0));
    (value / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::VcpuTimes;

    /// VMs that run and wait for so long, in ms.
    fn times(vms: &[(u64, u64)]) -> Times {
        let vcpu = |(vm, &(run, ready)): (usize, &(u64, u64))| VcpuTimes {
            vm,
            run_ns: run * 1_000_000,
            ready_ns: ready * 1_000_000,
            ..VcpuTimes::default()
        };
        Times {
            vcpus: vms.iter().enumerate().map(vcpu).collect(),
            ..Times::default()
        }
    }

    /// VMs that compete for one CPU for a second.
    fn shared(weights: &[u32]) -> Times {
        let all: u32 = weights.iter().sum();
        let share = |&weight: &u32| {
            let run = u64::from(weight * 1_000 / all);
            (run, 1_000 - run)
        };
        times(&weights.iter().map(share).collect::<Vec<_>>())
    }

    /// The weights that are found of VMs that have these, and the replays that it takes.
    fn found(weights: &[u32]) -> (Vec<u32>, usize) {
        let recorded = shared(weights);
        let mut fit = Fit::default();
        let all = |fit: &Fit, snap| {
            let set = fit.weights(snap);
            let of_vm = |vm| set.get(&vm).copied().unwrap_or(100);
            (0..weights.len()).map(of_vm).collect::<Vec<u32>>()
        };
        let steps = (0..9).take_while(|_| fit.step(&recorded, &shared(&all(&fit, false))));
        let steps = steps.count();
        (all(&fit, true), steps)
    }

    #[test]
    fn few_replays_tell_weights() {
        for (weights, most) in [
            (vec![100, 300], 1),
            (vec![100, 100, 300], 3),
            (vec![100, 100, 20], 3),
            (vec![100, 200, 400, 800], 4),
            (vec![100, 100, 100, 100, 1500], 4),
        ] {
            let (found, steps) = found(&weights);
            assert!(steps <= most, "{weights:?}: {steps}");
            for (found, is) in found.iter().zip(&weights) {
                assert!(found.abs_diff(*is) * 10 <= *is, "{weights:?}: {found}");
            }
        }
    }

    #[test]
    fn ratios_are_told_and_equal_weights_are_usual() {
        assert_eq!(found(&[100, 100, 100]), (vec![100; 3], 0));
        assert_eq!(found(&[100, 110, 105]), (vec![100; 3], 0));
        // 50 and 150 are 100 and 300.
        assert_eq!(found(&[50, 150]).0, [100, 300]);
        let most = found(&[300, 300, 100]).0;
        assert_eq!((most[0], most[1]), (100, 100));
        assert!((30..=36).contains(&most[2]), "{most:?}");
    }

    #[test]
    fn who_does_not_wait_tells_nothing() {
        let was = times(&[(500, 0), (300, 700), (900, 5)]);
        let is = times(&[(500, 0), (600, 400), (500, 500)]);
        let mut fit = Fit::default();
        assert!(!fit.step(&was, &is));
        assert!(fit.weights(true).is_empty());
    }
}

//! Weights (`cpu.weight`) of VMs' cgroups, fitted to the CPU time that VMs get of contended CPUs.
//!
//! A replay with some weights shows each VM's odds to run. Weights are scaled by the difference to the
//! recorded odds, and replayed again, until the odds agree. This needs no formula for vCPUs that halt, for
//! CPUs that other tasks share, or for groups with vCPUs on several CPUs.

use std::collections::BTreeMap;

use stealtime_simulator::script::ScriptGroup;

use crate::predict::Times;

/// `cpu.weight` of a new cgroup, and the range that the kernel accepts.
const DEFAULT: f64 = 100.0;
const RANGE: (f64, f64) = (1.0, ScriptGroup::MOST_WEIGHT as f64);
/// A VM that waits for less than one in so many of its time gets its demand with any weight.
const ONE_IN_WAITING: u64 = 100;
/// Weights that differ by less than this factor count as equal: demand is known no better.
const NEAR: f64 = 1.25;
/// Odds that differ by less than this factor agree.
const RIGHT: f64 = 1.06;
/// No step changes a weight by more than this factor: odds far off are not linear in weights.
const MOST: f64 = 4.0;

/// Natural logarithms, by VM.
type Logs = BTreeMap<usize, f64>;

/// The state of a fit between replays.
#[derive(Clone, Debug, Default)]
pub(crate) struct WeightFit {
    logs: Logs,
    /// The errors of odds ahead of the last step, and the share of them that it was.
    last: Option<(Logs, f64)>,
}

impl WeightFit {
    /// Takes the replay with the weights so far (at first: equal ones). Whether another replay is needed.
    pub(crate) fn step(&mut self, recorded: &Times, replayed: &Times) -> bool {
        let errors = odds_errors(recorded, replayed);
        let worst = errors
            .values()
            .fold(0.0, |worst: f64, ln| worst.max(ln.abs()));
        let right = match self.last {
            Some(_) => RIGHT.ln(),
            None => NEAR.ln(),
        };
        if errors.len() < 2 || worst < right {
            return false;
        }
        let gain = match &self.last {
            // Where two compete for a CPU, the ratio of weights changes the odds of each.
            None => 0.5,
            Some((former, gain)) => {
                let removed = 1.0 - product(&errors, former) / product(former, former);
                (gain / removed.max(0.1)).clamp(0.3, 2.0)
            }
        };
        for (&vm, ln) in &errors {
            let step = (gain * ln).clamp(-MOST.ln(), MOST.ln());
            *self.logs.entry(vm).or_default() += step;
        }
        self.last = Some((errors, gain));
        true
    }

    /// The weights, by index of the VM, where they are not 100; with two digits. Only their ratios are known:
    /// the most frequent weight is 100, and among equally frequent ones the least. With `snap` those near it
    /// are 100 too.
    pub(crate) fn weights(&self, snap: bool) -> BTreeMap<usize, u32> {
        let is_near = |a: f64, b: f64| (a - b).abs() < NEAR.ln();
        let near = |ln: f64| self.logs.values().filter(move |&&log| is_near(log, ln));
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

/// How much better each VM's odds to run, and not to wait for a CPU, are in the recording than in the replay.
/// These are logarithms around their mean, without VMs that hardly wait.
fn odds_errors(recorded: &Times, replayed: &Times) -> Logs {
    let (recorded, replayed) = (sums(recorded), sums(replayed));
    let odds = |sums: &BTreeMap<usize, Sum>, vm: usize| {
        let sum = sums.get(&vm)?;
        let waits = sum.run_ns > 0 && sum.ready_ns > sum.all_ns / ONE_IN_WAITING;
        waits.then(|| (sum.run_ns as f64 / sum.ready_ns as f64).ln())
    };
    let error = |&vm: &usize| Some((vm, odds(&recorded, vm)? - odds(&replayed, vm)?));
    let mut errors: Logs = recorded.keys().filter_map(error).collect();
    let mean = errors.values().sum::<f64>() / errors.len().max(1) as f64;
    errors.values_mut().for_each(|ln| *ln -= mean);
    errors
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
    let terms = a
        .iter()
        .map(|(vm, a)| a * b.get(vm).copied().unwrap_or(0.0));
    terms.sum()
}

/// Rounds to two digits.
fn two_digits(value: f64) -> f64 {
    let unit = 10f64.powf((value.log10().floor() - 1.0).max(0.0));
    (value / unit).round() * unit
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::VcpuTimes;

    /// VMs that run and wait for so long, in ms.
    fn times(vms: &[[u64; 2]]) -> Times {
        let vcpu = |(vm, &[run, ready]): (usize, &[u64; 2])| VcpuTimes {
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
        let sum: u32 = weights.iter().sum();
        let share = |&weight: &u32| {
            let run = u64::from(weight * 1_000 / sum);
            [run, 1_000 - run]
        };
        times(&weights.iter().map(share).collect::<Vec<_>>())
    }

    /// The fitted weights of VMs with these, and the replays that it takes.
    fn found(weights: &[u32]) -> (Vec<u32>, usize) {
        let recorded = shared(weights);
        let mut fit = WeightFit::default();
        let weights_of = |fit: &WeightFit, snap| {
            let set = fit.weights(snap);
            let weight = |vm| set.get(&vm).copied().unwrap_or(100);
            (0..weights.len()).map(weight).collect::<Vec<u32>>()
        };
        let steps = (0..9).take_while(|_| fit.step(&recorded, &shared(&weights_of(&fit, false))));
        let steps = steps.count();
        (weights_of(&fit, true), steps)
    }

    #[test]
    fn few_replays_fit_weights() {
        for (weights, limit) in [
            (vec![100, 300], 1),
            (vec![100, 100, 300], 3),
            (vec![100, 100, 20], 3),
            (vec![100, 200, 400, 800], 4),
            (vec![100, 100, 100, 100, 1500], 4),
        ] {
            let (found, steps) = found(&weights);
            assert!(steps <= limit, "{weights:?}: {steps}");
            for (found, set) in found.iter().zip(&weights) {
                assert!(found.abs_diff(*set) * 10 <= *set, "{weights:?}: {found}");
            }
        }
    }

    #[test]
    fn ratios_are_found_and_equal_weights_stay_equal() {
        assert_eq!(found(&[100, 100, 100]), (vec![100; 3], 0));
        assert_eq!(found(&[100, 110, 105]), (vec![100; 3], 0));
        // 50 and 150 are 100 and 300.
        assert_eq!(found(&[50, 150]).0, [100, 300]);
        let equal = found(&[300, 300, 100]).0;
        assert_eq!((equal[0], equal[1]), (100, 100));
        assert!((30..=36).contains(&equal[2]), "{equal:?}");
    }

    #[test]
    fn vms_that_do_not_wait_have_no_weight() {
        let recorded = times(&[[500, 0], [300, 700], [900, 5]]);
        let replayed = times(&[[500, 0], [600, 400], [500, 500]]);
        let waiting = odds_errors(&recorded, &replayed);
        assert_eq!(waiting.into_iter().collect::<Vec<_>>(), [(1, 0.0)]);
        let mut fit = WeightFit::default();
        assert!(!fit.step(&recorded, &replayed));
        assert!(fit.weights(true).is_empty());
    }

    #[test]
    fn errors_of_odds_are_around_their_mean() {
        let errors = odds_errors(&shared(&[100, 300, 500]), &shared(&[100, 100, 100]));
        assert_eq!(errors.len(), 3);
        assert!(errors.values().sum::<f64>().abs() < 1e-9, "{errors:?}");
        assert!(errors[&0] < -0.5 && errors[&2] > 0.5, "{errors:?}");
    }
}

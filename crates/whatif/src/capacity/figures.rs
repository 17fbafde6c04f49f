//! Figures of a host with so many VMs, over seeds, and limits held against them.

use serde::Serialize;
use stealtime_lab::stats;

use crate::capacity::HostVm;
use crate::capacity::limit::{Figure, Limit};
use crate::population::{Population, VmFigures};

/// A figure's mean, and the band in which 95 % of single replays are, widened by the error of the replay as
/// recorded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Band {
    /// On average over the seeds.
    pub mean: f64,
    /// Half the width of the band; `None` of one seed.
    pub half_width: Option<f64>,
}

impl Band {
    /// Of values by seed; `error`: how far the replay as recorded is from the recording.
    fn new(values: &[f64], error: f64) -> Option<Self> {
        let estimate = stats::estimate(values)?;
        // The interval of a mean over n seeds is narrower than that of one more replay by sqrt(n + 1).
        let single = (values.len() as f64 + 1.0).sqrt();
        Some(Self {
            mean: estimate.mean,
            half_width: estimate.half_width.map(|half| half * single + error),
        })
    }
}

/// A VM and its copies on a host with so many VMs. Figures are means over its copies.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PointVm {
    /// The VM.
    pub vm: String,
    /// How many of it there are.
    pub count: u32,
    /// It never waits for anything but a CPU.
    pub is_elastic: bool,
    /// Ready time, in percent of the vCPUs' time.
    pub ready_percent: Band,
    /// Median of its wakeup latencies, in us; absent without a wakeup.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wakeup_p50_us: Option<Band>,
    /// 99th percentile of them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wakeup_p99_us: Option<Band>,
    /// Work, in percent of the VM's work alone on the host; absent of a VM without work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub work_percent: Option<Band>,
}

impl PointVm {
    /// A figure; `None` if it is the host's, or if the VM has none.
    #[must_use]
    pub const fn figure(&self, figure: Figure) -> Option<Band> {
        match figure {
            Figure::Ready => Some(self.ready_percent),
            Figure::WakeupP50 => self.wakeup_p50_us,
            Figure::WakeupP99 => self.wakeup_p99_us,
            Figure::Work => self.work_percent,
            Figure::Overhead => None,
        }
    }
}

/// Whether a limit holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The whole band is on the right side.
    Holds,
    /// The mean is, the band is not.
    ProbablyHolds,
    /// The mean is not, a part of the band is.
    ProbablyFails,
    /// The whole band is on the wrong side.
    Fails,
}

impl Outcome {
    /// Whether the mean is on the right side.
    #[must_use]
    pub const fn is_held(self) -> bool {
        matches!(self, Self::Holds | Self::ProbablyHolds)
    }
}

/// A limit held against a figure.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// The limit.
    pub limit: Limit,
    /// The VM; absent of a limit of the host.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<String>,
    /// The figure.
    pub value: Band,
    /// Whether it holds.
    pub outcome: Outcome,
}

impl Check {
    fn new(limit: &Limit, vm: Option<&str>, value: Band) -> Self {
        let half = value.half_width.unwrap_or(0.0);
        let [worst, best] = [half, -half].map(|half| limit.at_worst(value.mean, half));
        let outcome = match (
            limit.holds(worst),
            limit.holds(value.mean),
            limit.holds(best),
        ) {
            (true, _, _) => Outcome::Holds,
            (_, true, _) => Outcome::ProbablyHolds,
            (_, _, true) => Outcome::ProbablyFails,
            _ => Outcome::Fails,
        };
        Self {
            limit: limit.clone(),
            vm: vm.map(str::to_owned),
            value,
            outcome,
        }
    }

    /// How far the value is beyond its limit, as a share of the limit; negative within it.
    #[must_use]
    pub fn excess(&self) -> f64 {
        let (value, limit) = (self.value.mean, self.limit.value);
        let beyond = match self.limit.figure.rises() {
            true => value - limit,
            false => limit - value,
        };
        // A limit of 0 has no share.
        beyond / limit.abs().max(1e-9)
    }
}

/// A host with so many VMs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Point {
    /// How many of the curve's VM.
    pub count: u32,
    /// Replays.
    pub seeds: usize,
    /// VMs in the order of the recording, without those that were taken away.
    pub vms: Vec<PointVm>,
    /// CPU time of all tasks, in percent of the CPUs' time.
    pub busy_percent: f64,
    /// CPU time of vCPUs outside of their guests, in percent of the CPUs' time.
    pub overhead_percent: Band,
    /// Switches per second.
    pub switches_per_s: f64,
    /// Limits held against it.
    pub checks: Vec<Check>,
}

impl Point {
    /// Whether all limits hold, by what `is_held` takes for it.
    #[must_use]
    pub fn holds(&self, is_held: impl Fn(Outcome) -> bool) -> bool {
        self.checks.iter().all(|check| is_held(check.outcome))
    }

    /// The limit that is broken by most.
    #[must_use]
    pub fn broken(&self) -> Option<&Check> {
        let broken = self.checks.iter().filter(|check| !check.outcome.is_held());
        broken.max_by(|a, b| a.excess().total_cmp(&b.excess()))
    }

    /// Whether further seeds would decide nothing.
    pub(crate) fn is_clear(&self) -> bool {
        let fails = |check: &Check| check.outcome == Outcome::Fails;
        self.checks.iter().any(fails) || self.holds(|outcome| outcome == Outcome::Holds)
    }

    /// A VM.
    #[must_use]
    pub fn vm(&self, name: &str) -> Option<&PointVm> {
        self.vms.iter().find(|vm| vm.vm == name)
    }
}

/// What figures are measured by.
#[derive(Debug)]
pub(crate) struct Measure<'m> {
    pub(crate) vms: &'m [HostVm],
    pub(crate) cpus: u32,
    pub(crate) limits: &'m [Limit],
    /// Work of each VM alone, in ms per second.
    pub(crate) alone: Vec<f64>,
    /// How far the replay as recorded is from the recording, by VM and figure.
    pub(crate) errors: Vec<[f64; Figure::ALL.len()]>,
}

/// The mean of a figure over a VM and its copies; `None` if there is none of it, or none has the figure.
pub(crate) fn mean(
    population: &Population,
    vm: &str,
    figure: impl Fn(&VmFigures) -> Option<f64>,
) -> Option<f64> {
    let copies = population.vms.iter().filter(|copy| copy.vm == vm);
    let values: Vec<f64> = copies.filter_map(figure).collect();
    Some(stats::estimate(&values)?.mean)
}

fn over_seeds(
    replays: &[Population],
    error: f64,
    value: impl Fn(&Population) -> Option<f64>,
) -> Option<Band> {
    let values: Vec<f64> = replays.iter().filter_map(value).collect();
    Band::new(&values, error)
}

impl Measure<'_> {
    /// The error of a figure of a VM.
    fn error(&self, vm: usize, figure: Figure) -> f64 {
        let place = Figure::ALL.iter().position(|known| *known == figure);
        let error_of = |errors: &[f64; Figure::ALL.len()]| errors.get(place?).copied();
        if self.vms.get(vm).is_some_and(|vm| vm.is_added) {
            // This host's recording has no error of it: it has that of the VM that is furthest off.
            return self.errors.iter().filter_map(error_of).fold(0.0, f64::max);
        }
        self.errors.get(vm).and_then(error_of).unwrap_or(0.0)
    }

    /// A figure of a VM in one replay.
    pub(crate) fn value(&self, replay: &Population, vm: usize, figure: Figure) -> Option<f64> {
        let name = &self.vms.get(vm)?.name;
        match figure {
            Figure::Ready => mean(replay, name, |copy| Some(copy.ready_percent)),
            Figure::WakeupP50 => mean(replay, name, |copy| copy.wakeup_p50_us),
            Figure::WakeupP99 => mean(replay, name, |copy| copy.wakeup_p99_us),
            Figure::Work => {
                let alone = self.alone.get(vm).copied().filter(|alone| *alone > 0.0)?;
                let work = mean(replay, name, |copy| Some(copy.work_ms_per_s))?;
                // Demand that chance puts into the span is no more than all of it.
                Some((work / alone * 100.0).min(100.0))
            }
            Figure::Overhead => None,
        }
    }

    fn point_vm(&self, vm: usize, replays: &[Population]) -> Option<PointVm> {
        let host_vm = self.vms.get(vm)?;
        let band = |figure| {
            over_seeds(replays, self.error(vm, figure), |replay| {
                self.value(replay, vm, figure)
            })
        };
        let copies = replays.first()?.vms.iter();
        let copies = copies.filter(|copy| copy.vm == host_vm.name).count();
        Some(PointVm {
            vm: host_vm.name.clone(),
            count: u32::try_from(copies).unwrap_or(u32::MAX),
            is_elastic: host_vm.is_elastic,
            ready_percent: band(Figure::Ready)?,
            wakeup_p50_us: band(Figure::WakeupP50),
            wakeup_p99_us: band(Figure::WakeupP99),
            work_percent: band(Figure::Work),
        })
    }

    /// A host with `count` of what a curve counts, from its replays; `None` without any.
    pub(crate) fn point(&self, count: u32, replays: &[Population]) -> Option<Point> {
        let vms = (0..self.vms.len()).filter_map(|vm| self.point_vm(vm, replays));
        let vms: Vec<PointVm> = vms.collect();
        let host_ms = f64::from(self.cpus.max(1)) * 1_000.0;
        let overhead_percent = over_seeds(replays, 0.0, |replay| {
            let overhead: f64 = replay.vms.iter().map(|vm| vm.overhead_ms_per_s).sum();
            Some(overhead / host_ms * 100.0)
        })?;
        let host = |value: fn(&Population) -> f64| {
            let values: Vec<f64> = replays.iter().map(value).collect();
            stats::estimate(&values).map_or(0.0, |estimate| estimate.mean)
        };
        let mut checks = Vec::new();
        for limit in self.limits {
            if limit.figure == Figure::Overhead {
                checks.push(Check::new(limit, None, overhead_percent));
            }
            for vm in vms.iter().filter(|vm| limit.is_for(&vm.vm)) {
                let is_judged = limit.judges(vm.is_elastic);
                if let Some(value) = vm.figure(limit.figure).filter(|_| is_judged) {
                    checks.push(Check::new(limit, Some(&vm.vm), value));
                }
            }
        }
        Some(Point {
            count,
            seeds: replays.len(),
            vms,
            busy_percent: host(|replay| replay.cpu_ms_per_s) / host_ms * 100.0,
            overhead_percent,
            switches_per_s: host(|replay| replay.switches_per_s),
            checks,
        })
    }
}

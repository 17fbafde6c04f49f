//! Figures over the count of a VM, and the largest count within all limits.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use crate::capacity::cause::Taker;
use crate::capacity::error::FitError;
use crate::capacity::figures::{Check, Measure, Outcome, Point};
use crate::capacity::search::{self, Largest};
use crate::capacity::{HostVm, Replays};
use crate::count::VmCount;

/// Seeds of counts that are far from every limit.
pub(crate) const FEW_SEEDS: u64 = 3;
/// Demand beyond which no count is tried, as a multiple of the host's CPU time. There each task gets a
/// quarter of what it wants.
const MOST_DEMAND: f64 = 4.0;
/// Counts beyond it are not tried: replays take time by their number of tasks.
const MOST_COUNT: u32 = 256;
/// Below this demand, in ms per second, a VM hardly runs.
const HARDLY: f64 = 10.0;

/// What a curve counts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Subject {
    /// This VM.
    Vm(String),
    /// Each VM of the host, so many times.
    Mix,
}

impl Subject {
    /// The counts of a host with `count` of it; `vms` are those of the recording.
    pub(crate) fn counts(&self, vms: &[HostVm], count: u32) -> Vec<VmCount> {
        let counted = vms.iter().filter(|vm| match self {
            Self::Vm(name) => vm.name == *name,
            Self::Mix => vm.first > 0,
        });
        let counts = counted.map(|vm| VmCount {
            vm: vm.name.clone(),
            count: match self {
                Self::Vm(_) => count,
                Self::Mix => vm.first.saturating_mul(count),
            },
        });
        counts.collect()
    }
}

impl Subject {
    /// Half of the 95 % interval of the number of it that demands as much as `count` of it do with all other
    /// VMs.
    fn demand_error(&self, vms: &[HostVm], count: f64) -> f64 {
        let (mut counted, mut squares) = (0.0, 0.0);
        for vm in vms.iter().filter(|vm| !vm.is_elastic) {
            let unit = match self {
                Self::Vm(name) if vm.name == *name => vm.run_ms,
                _ => vm.run_ms * f64::from(vm.first),
            };
            let is_counted = !matches!(self, Self::Vm(name) if vm.name != *name);
            counted += if is_counted { unit } else { 0.0 };
            let demand = if is_counted { unit * count } else { unit };
            squares += (demand * vm.demand_error).powi(2);
        }
        match counted > 0.0 {
            true => squares.sqrt() / counted,
            false => 0.0,
        }
    }

    /// How many of it the host has before it is counted.
    pub(crate) fn first(&self, vms: &[HostVm]) -> u32 {
        match self {
            Self::Vm(name) => {
                let vm = vms.iter().find(|vm| vm.name == *name);
                vm.map_or(1, |vm| vm.first)
            }
            Self::Mix => 1,
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Vm(name) => f.write_str(name),
            Self::Mix => f.write_str("the mix"),
        }
    }
}

impl Serialize for Subject {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Why larger counts are not tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The VMs demand four times the host's CPU time.
    Demand,
    /// There are 256 of it.
    Count,
}

impl Bound {
    /// The largest count that is tried, and why.
    pub(crate) fn find(subject: &Subject, vms: &[HostVm], cpus: u32) -> (u32, Self) {
        let demand = |vm: &HostVm| match vm.is_elastic {
            true => vm.vcpus as f64 * 1_000.0,
            false => vm.run_ms,
        };
        let host_ms = f64::from(cpus) * 1_000.0;
        let present = |vm: &HostVm| demand(vm) * f64::from(vm.first);
        let present: f64 = vms.iter().map(present).sum();
        let added: f64 = match subject {
            Subject::Vm(name) => vms.iter().filter(|vm| vm.name == *name).map(demand).sum(),
            Subject::Mix => present,
        };
        let further = (MOST_DEMAND * host_ms - present) / added.max(HARDLY);
        // As recorded is always tried, and one more.
        let first = subject.first(vms).max(1);
        let bound = further.floor().clamp(1.0, f64::from(MOST_COUNT)) as u32;
        let bound = first.saturating_add(bound);
        match bound >= MOST_COUNT {
            true => (MOST_COUNT.max(first), Self::Count),
            false => (bound, Self::Demand),
        }
    }
}

/// The first limit to fail.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// At which count.
    pub count: u32,
    /// The limit that is broken by most there.
    pub check: Check,
    /// What has the CPUs while that VM is ready; empty where it is not ready.
    pub takers: Vec<Taker>,
}

/// Figures over the count of a VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Curve {
    /// What is counted.
    pub of: Subject,
    /// The answer in words.
    pub sentence: String,
    /// How many of it the host has before it is counted: 0 of a VM of another recording.
    pub first: u32,
    /// The largest count within all limits; `null` if they do not hold as recorded.
    pub largest: Option<u32>,
    /// The least that the largest count may be, by the bands of all figures: 0 if as recorded may fail.
    pub least: u32,
    /// The most that it may be.
    pub greatest: u32,
    /// No larger count was tried.
    pub bound: u32,
    /// Why.
    pub bound_by: Bound,
    /// All counts up to the bound are within all limits.
    pub is_bounded: bool,
    /// The first limit to fail.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// Counts that were replayed, the least first.
    pub points: Vec<Point>,
}

impl Curve {
    /// The host with a count, if it was replayed.
    #[must_use]
    pub fn point(&self, count: u32) -> Option<&Point> {
        self.points.iter().find(|point| point.count == count)
    }

    /// The host with the largest count.
    #[must_use]
    pub fn end(&self) -> Option<&Point> {
        self.point(self.largest?)
    }
}

/// Points of a curve, replayed when they are asked for.
struct Tracer<'t, R: ?Sized> {
    replays: &'t R,
    measure: &'t Measure<'t>,
    subject: &'t Subject,
    seeds: u64,
    points: BTreeMap<u32, Point>,
}

impl<R: Replays + ?Sized> Tracer<'_, R> {
    fn replay(&self, count: u32, seeds: u64) -> Result<Point, FitError> {
        let counts = self.subject.counts(self.measure.vms, count);
        let replays = self.replays.replay(&[counts], seeds)?;
        let replays = replays.first().map(Vec::as_slice).unwrap_or_default();
        // Replays that were stopped leave no figures.
        self.measure.point(count, replays).ok_or(FitError::Stopped)
    }

    fn point(&mut self, count: u32) -> Result<&Point, FitError> {
        if !self.points.contains_key(&count) {
            let fewest = FEW_SEEDS.min(self.seeds);
            let mut point = self.replay(count, fewest)?;
            if fewest < self.seeds && !point.is_clear() {
                point = self.replay(count, self.seeds)?;
            }
            self.points.insert(count, point);
        }
        self.points.get(&count).ok_or(FitError::Stopped)
    }

    /// The least and the greatest that the largest count may be, for the recording has more or less of each
    /// VM's demand than is usual. Limits fail where all VMs demand so much. Two counts miss their limits by
    /// so much that the place between them follows.
    fn by_demand(&self, found: Largest) -> (u32, u32) {
        let Some(count) = found.count else {
            return (0, 0);
        };
        let excess = |count: u32| {
            let checks = self.points.get(&count)?.checks.iter().map(Check::excess);
            checks.max_by(f64::total_cmp)
        };
        let excesses = (excess(count), excess(count.saturating_add(1)));
        let (Some(holding), Some(failing)) = excesses else {
            return (count, count);
        };
        let part = -holding / (failing - holding).max(f64::MIN_POSITIVE);
        let end = f64::from(count) + part.clamp(0.0, 1.0);
        let error = self.subject.demand_error(self.measure.vms, end);
        // The end fails: the largest count is below it.
        let below = |end: f64| (end.ceil() - 1.0).max(0.0) as u32;
        let bounds = [end - error, end + error].map(below);
        (bounds[0].min(count), bounds[1].max(count))
    }

    fn largest(&mut self, bound: u32, is_held: fn(Outcome) -> bool) -> Result<Largest, FitError> {
        search::largest(self.subject.first(self.measure.vms), bound, |count| {
            Ok(self.point(count)?.holds(is_held))
        })
    }
}

/// Traces the curve of a VM, or of the mix, up to the largest count within all limits.
pub(crate) fn trace<R: Replays + ?Sized>(
    replays: &R,
    measure: &Measure<'_>,
    subject: &Subject,
    seeds: u64,
    recorded: &Point,
) -> Result<Curve, FitError> {
    let first = subject.first(measure.vms);
    let mut tracer = Tracer {
        replays,
        measure,
        subject,
        seeds,
        // As recorded all curves have the same point.
        points: BTreeMap::from([(
            first,
            Point {
                count: first,
                ..recorded.clone()
            },
        )]),
    };
    let (bound, bound_by) = Bound::find(subject, measure.vms, measure.cpus);
    let found = tracer.largest(bound, Outcome::is_held)?;
    let sure = tracer.largest(bound, |outcome| outcome == Outcome::Holds)?;
    let possible = tracer.largest(bound, |outcome| outcome != Outcome::Fails)?;
    let next = found.count.map_or(first, |count| count.saturating_add(1));
    let by_demand = tracer.by_demand(found);
    let mut failure = None;
    if let Some(check) = tracer.points.get(&next).and_then(Point::broken) {
        let counts = subject.counts(measure.vms, next);
        let takers = match &check.vm {
            Some(vm) => replays.takers(&counts, vm)?,
            None => Vec::new(),
        };
        failure = Some(Failure {
            count: next,
            check: check.clone(),
            takers,
        });
    }
    let mut curve = Curve {
        of: subject.clone(),
        sentence: String::new(),
        first,
        largest: found.count,
        least: sure.count.unwrap_or(0).min(by_demand.0),
        greatest: possible.count.unwrap_or(0).max(by_demand.1).min(bound),
        bound,
        bound_by,
        is_bounded: found.is_bounded,
        failure,
        points: tracer.points.into_values().collect(),
    };
    curve.sentence = super::sentence::of_curve(&curve);
    Ok(curve)
}

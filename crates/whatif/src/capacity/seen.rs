//! Predictions from one recording of a host next to recordings of it with more and fewer VMs.

use serde::Serialize;
use stealtime_lab::stats;

use crate::capacity::error::FitError;
use crate::capacity::recorded::vms;
use crate::capacity::{HostVm, Replays};
use crate::count::VmCount;
use crate::population::Population;
use crate::recorded::Recorded;

/// Ready time may be off by so many percent of the vCPUs' time, …
const READY_OF_SPAN: f64 = 5.0;
/// … or by this share of what is recorded.
const READY_OF_SEEN: f64 = 0.3;
/// Work may be off by this share of what is recorded.
const WORK_OF_SEEN: f64 = 0.1;
/// A recorded change of ready time below so many percent of the vCPUs' time has no sign.
const READY_CHANGE: f64 = 2.0;
/// A recorded change of work below this share has no sign.
const WORK_CHANGE: f64 = 0.05;

/// A figure, predicted and recorded.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct SeenFigure {
    /// In the recording that predicts.
    pub base: f64,
    /// On average over the replays.
    pub predicted: f64,
    /// In the recording that is predicted.
    pub seen: f64,
    /// Whether the prediction is within the bound.
    pub is_within: bool,
    /// Whether the change has the right sign; `null` where too little changes.
    pub is_sign_right: Option<bool>,
}

impl SeenFigure {
    fn new(base: f64, predicted: f64, recorded: f64, room: f64, noise: f64) -> Self {
        let change = recorded - base;
        Self {
            base,
            predicted,
            seen: recorded,
            is_within: (predicted - recorded).abs() <= room,
            is_sign_right: (change.abs() >= noise).then_some((predicted - base) * change > 0.0),
        }
    }
}

/// A VM of a recording that is predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenRow {
    /// Its name there.
    pub vm: String,
    /// The VM that it is predicted from.
    pub from: String,
    /// Ready time, in percent of its vCPUs' time.
    pub ready_percent: SeenFigure,
    /// Work, in ms per second.
    pub work_ms: SeenFigure,
}

/// A recording that is predicted.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenStep {
    /// The recording.
    pub path: String,
    /// What differs from the recording that predicts: `vm-req1 3 times, vm-hog taken away`.
    pub change: String,
    /// Its VMs.
    pub rows: Vec<SeenRow>,
    /// Why it is not predicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// Recordings of one host with different numbers of VMs.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SeenSeries {
    /// Their folder.
    pub path: String,
    /// The recording that predicts the others.
    pub base: String,
    /// The others.
    pub steps: Vec<SeenStep>,
}

/// A VM's name without its number: copies of a VM have names that differ there.
fn kind(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// The place of the VM that predicts each VM of a recording; `None` if one of them has none. That is the VM
/// of the same name, else one of the same kind and size.
fn matched(base: &[HostVm], step: &[HostVm]) -> Option<Vec<usize>> {
    let place = |vm: &HostVm| {
        let same_name = base.iter().position(|known| known.name == vm.name);
        same_name.or_else(|| {
            let is_alike =
                |known: &HostVm| kind(&known.name) == kind(&vm.name) && known.vcpus == vm.vcpus;
            base.iter().position(is_alike)
        })
    };
    step.iter().map(place).collect()
}

/// The recording of a series that predicts the others: the one with the fewest vCPUs that has each kind of
/// VM. Without one, the one that predicts most of the others.
#[must_use]
pub fn base_of(series: &[Recorded]) -> usize {
    let hosts: Vec<Vec<HostVm>> = series.iter().map(vms).collect();
    let rank = |index: &usize| {
        let empty = Vec::new();
        let base = hosts.get(*index).unwrap_or(&empty);
        let predicted = hosts.iter().filter(|step| matched(base, step).is_some());
        let vcpus: usize = base.iter().map(|vm| vm.vcpus).sum();
        (std::cmp::Reverse(predicted.count()), vcpus)
    };
    (0..hosts.len()).min_by_key(rank).unwrap_or(0)
}

/// How many there are of each VM of the recording that predicts.
fn counts(base: &[HostVm], places: &[usize]) -> Vec<VmCount> {
    let count = |(index, vm): (usize, &HostVm)| {
        let count = places.iter().filter(|place| **place == index).count();
        VmCount {
            vm: vm.name.clone(),
            count: u32::try_from(count).unwrap_or(u32::MAX),
        }
    };
    base.iter().enumerate().map(count).collect()
}

fn change(counts: &[VmCount]) -> String {
    let changed = counts.iter().filter(|count| count.count != 1);
    let changed = changed.map(|count| match count.count {
        0 => format!("{} taken away", count.vm),
        n => format!("{} {n} times", count.vm),
    });
    let changed: Vec<String> = changed.collect();
    match changed.is_empty() {
        true => "the same VMs".to_owned(),
        false => changed.join(", "),
    }
}

/// A figure of the `number`-th of a VM, on average over the replays.
fn predicted(
    replays: &[Population],
    vm: &str,
    number: u32,
    value: impl Fn(&crate::population::VmFigures) -> f64,
) -> f64 {
    let of_replay = |replay: &Population| {
        let mut copies = replay.vms.iter();
        let copy = copies.find(|copy| copy.vm == vm && copy.number == number);
        copy.map(&value)
    };
    let values: Vec<f64> = replays.iter().filter_map(of_replay).collect();
    stats::estimate(&values).map_or(0.0, |estimate| estimate.mean)
}

impl SeenStep {
    /// A recording that cannot be predicted or read.
    #[must_use]
    pub const fn failed(path: String, problem: String) -> Self {
        Self {
            path,
            change: String::new(),
            rows: Vec::new(),
            problem: Some(problem),
        }
    }

    /// Predicts a recording from the host of another one.
    ///
    /// # Errors
    ///
    /// [`FitError`]
    pub fn predict<R: Replays + ?Sized>(
        path: String,
        base: &R,
        step: &Recorded,
        seeds: u64,
    ) -> Result<Self, FitError> {
        let hosts = vms(step);
        let Some(places) = matched(base.vms(), &hosts) else {
            let problem = "it has a VM that the recording with fewer VMs lacks".to_owned();
            return Ok(Self::failed(path, problem));
        };
        let counts = counts(base.vms(), &places);
        let replays = base.replay(std::slice::from_ref(&counts), seeds)?;
        let replays = replays.into_iter().next().ok_or(FitError::Stopped)?;
        let mut rows = Vec::new();
        for (index, (vm, place)) in hosts.iter().zip(&places).enumerate() {
            let Some(model) = base.vms().get(*place) else {
                continue;
            };
            let earlier = places.iter().take(index).filter(|known| *known == place);
            let number = u32::try_from(earlier.count() + 1).unwrap_or(u32::MAX);
            let figure = |value: fn(&crate::population::VmFigures) -> f64| {
                predicted(&replays, &model.name, number, value)
            };
            let ready_room = READY_OF_SPAN.max(vm.ready_percent * READY_OF_SEEN);
            rows.push(SeenRow {
                vm: vm.name.clone(),
                from: model.name.clone(),
                ready_percent: SeenFigure::new(
                    model.ready_percent,
                    figure(|copy| copy.ready_percent),
                    vm.ready_percent,
                    ready_room,
                    READY_CHANGE,
                ),
                work_ms: SeenFigure::new(
                    model.work_ms,
                    figure(|copy| copy.work_ms_per_s),
                    vm.work_ms,
                    vm.work_ms * WORK_OF_SEEN,
                    model.work_ms * WORK_CHANGE,
                ),
            });
        }
        Ok(Self {
            path,
            change: change(&counts),
            rows,
            problem: None,
        })
    }

    /// All figures.
    pub fn figures(&self) -> impl Iterator<Item = &SeenFigure> {
        self.rows
            .iter()
            .flat_map(|row| [&row.ready_percent, &row.work_ms])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(name: &str, vcpus: usize) -> HostVm {
        HostVm {
            name: name.to_owned(),
            vcpus,
            run_ms: 0.0,
            ready_percent: 0.0,
            wakeup_p50_us: 0.0,
            wakeup_p99_us: 0.0,
            work_ms: 0.0,
            demand_error: 0.0,
            is_elastic: false,
            is_added: false,
            first: 1,
        }
    }

    #[test]
    fn vms_are_matched_by_name_then_by_kind_and_size() {
        let base = [vm("vm-hog", 1), vm("vm-tim1", 1)];
        let step = [vm("vm-tim2", 1), vm("vm-hog", 1), vm("vm-tim1", 1)];
        assert_eq!(matched(&base, &step), Some(vec![1, 0, 1]));
        assert_eq!(matched(&base, &[vm("vm-tim2", 2)]), None);
        let counts = counts(&base, &[1, 1, 1]);
        assert_eq!(change(&counts), "vm-hog taken away, vm-tim1 3 times");
    }

    #[test]
    fn bounds_are_of_the_span_or_of_what_is_seen() {
        let figure = SeenFigure::new(10.0, 24.0, 20.0, 5.0, 2.0);
        assert!(figure.is_within);
        assert_eq!(figure.is_sign_right, Some(true));
        let figure = SeenFigure::new(10.0, 9.0, 20.0, 5.0, 2.0);
        assert!(!figure.is_within);
        assert_eq!(figure.is_sign_right, Some(false));
        assert_eq!(
            SeenFigure::new(10.0, 9.0, 11.0, 5.0, 2.0).is_sign_right,
            None
        );
    }
}

//! All results of `fit`.

use std::num::NonZeroUsize;

use serde::Serialize;
use stealtime_results::parallel;

use crate::capacity::curve::{self, Curve, Subject};
use crate::capacity::error::FitError;
use crate::capacity::figures::{self, Measure, Point};
use crate::capacity::limit::{Figure, Limit, Side};
use crate::capacity::removal::{self, Removals, Suffering};
use crate::capacity::{HostVm, Replays};
use crate::count::VmCount;
use crate::population::Population;

/// What the search ends at without limits.
pub const KNEE: &str = "The knee is the largest count at which every VM still does more than 95 % of \
    the work that it does alone on the host.";

/// The limit of [`KNEE`].
const KNEE_WORK: f64 = 95.0;
/// Fewer wakeups say little of their 99th percentile.
const FEW_WAKEUPS: usize = 200;
/// Below this share of its vCPUs' time, in percent, a VM hardly runs.
const HARDLY_RUNS: f64 = 1.0;
/// A shorter recording, in ns, misses what a VM does every few seconds.
const SHORT_NS: u64 = 5_000_000_000;

/// What is asked.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// VMs to count; none: each, and the mix.
    pub added: Vec<String>,
    /// Limits; none: the knee.
    pub limits: Vec<Limit>,
    /// How many VMs to take away; `None`: the question is how many more fit.
    pub moves: Option<usize>,
}

impl Question {
    /// Checks the names of VMs.
    ///
    /// # Errors
    ///
    /// [`FitError::NoVm`], [`FitError::TwoVms`].
    pub fn check(&self, vms: &[HostVm]) -> Result<(), FitError> {
        let names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        for (index, name) in names.iter().enumerate() {
            if names.iter().take(index).any(|first| first == name) {
                return Err(FitError::TwoVms((*name).to_owned()));
            }
        }
        let find = |option: String, name: &str| match names.contains(&name) {
            true => Ok(()),
            false => Err(FitError::NoVm {
                option,
                name: name.to_owned(),
                help: stealtime_lab::spelling::suggestion(name, &names),
            }),
        };
        for name in &self.added {
            find(format!("--add {name}"), name)?;
        }
        for limit in &self.limits {
            if let Some(name) = &limit.vm {
                find(format!("--limit {limit}"), name)?;
            }
        }
        Ok(())
    }

    /// What is counted.
    fn subjects(&self, vms: &[HostVm]) -> Vec<Subject> {
        if !self.added.is_empty() {
            let mut subjects: Vec<Subject> = Vec::new();
            for name in &self.added {
                let subject = Subject::Vm(name.clone());
                if !subjects.contains(&subject) {
                    subjects.push(subject);
                }
            }
            return subjects;
        }
        // A VM of another recording is the question.
        let has_added = vms.iter().any(|vm| vm.is_added);
        let counted = vms.iter().filter(|vm| match has_added {
            true => vm.is_added,
            false => vm.first > 0,
        });
        let singles = counted.map(|vm| Subject::Vm(vm.name.clone()));
        let singles: Vec<Subject> = singles.collect();
        // The mix of one VM is that VM.
        let mix = (singles.len() > 1 && !has_added).then_some(Subject::Mix);
        singles.into_iter().chain(mix).collect()
    }
}

/// All results. Terminal, HTML and JSON are renderings of it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Capacity {
    /// Limits that were held against the host.
    pub limits: Vec<Limit>,
    /// How the limit is defined that stands in for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub knee: Option<&'static str>,
    /// The host as recorded, replayed.
    pub recorded: Point,
    /// The VMs that take all the CPU time that they get.
    pub elastic: Vec<String>,
    /// The curve of each VM that is counted.
    pub curves: Vec<Curve>,
    /// Which VMs to take away, if that is asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub removals: Option<Removals>,
    /// What the answers leave out.
    pub unknown: Vec<String>,
}

/// What every answer leaves out.
pub(crate) fn unknown(vms: &[HostVm], span_ns: u64, wakeups: &[usize]) -> Vec<String> {
    let mut lines = vec![
        "Memory, caches, memory bandwidth, disks and networks: more VMs may run out of these before \
         CPU time, and slow each other there."
            .to_owned(),
        "Demand that changes: a copy does what the recorded VM did, from another time on, at any load."
            .to_owned(),
    ];
    let elastic: Vec<&str> = vms
        .iter()
        .filter(|vm| vm.is_elastic)
        .map(|vm| vm.name.as_str())
        .collect();
    if !elastic.is_empty() {
        lines.push(format!(
            "What {} would do with more: never waiting for anything but a CPU, it takes what it gets \
             (elastic). Its work is shown; limits hold for it only by its name. A server that is late \
             all the time looks the same.",
            elastic.join(", ")
        ));
    }
    for vm in vms
        .iter()
        .filter(|vm| vm.run_ms < vm.vcpus as f64 * HARDLY_RUNS * 10.0)
    {
        lines.push(format!(
            "{}: it hardly runs in the recording ({:.1} % of its vCPUs' time), so that its copies demand \
             next to nothing.",
            vm.name,
            vm.run_ms / 10.0 / vm.vcpus.max(1) as f64
        ));
    }
    if span_ns < SHORT_NS {
        lines.push(format!(
            "What happens less often than the recording's {:.1} s shows: record for longer than the \
             longest period of the guests.",
            span_ns as f64 / 1e9
        ));
    }
    let rarely = vms.iter().zip(wakeups);
    let rarely = rarely.filter(|(vm, wakeups)| **wakeups < FEW_WAKEUPS && !vm.is_elastic);
    let rarely: Vec<&str> = rarely.map(|(vm, _)| vm.name.as_str()).collect();
    if !rarely.is_empty() {
        lines.push(format!(
            "The 99th percentile of wakeups of {}: fewer than {FEW_WAKEUPS} are recorded.",
            rarely.join(", ")
        ));
    }
    lines
}

/// The work of each VM alone on the host, in ms per second.
pub(crate) fn alone<R: Replays + ?Sized>(replays: &R, seeds: u64) -> Result<Vec<f64>, FitError> {
    let vms = replays.vms();
    let list = |single: &HostVm| -> Vec<VmCount> {
        let counts = vms.iter().map(|vm| VmCount {
            vm: vm.name.clone(),
            count: u32::from(vm.name == single.name),
        });
        counts.collect()
    };
    let lists: Vec<Vec<VmCount>> = vms.iter().map(list).collect();
    let results = replays.replay(&lists, seeds)?;
    let mut works = Vec::new();
    for (vm, replays) in vms.iter().zip(&results) {
        let work =
            |replay: &Population| figures::mean(replay, &vm.name, |copy| Some(copy.work_ms_per_s));
        let values: Vec<f64> = replays.iter().filter_map(work).collect();
        let mean = stealtime_lab::stats::estimate(&values);
        works.push(mean.map_or(0.0, |estimate| estimate.mean));
    }
    match works.len() == vms.len() {
        true => Ok(works),
        false => Err(FitError::Stopped),
    }
}

/// How far replays as recorded are from the recording, by VM and figure.
fn errors(measure: &Measure<'_>, replays: &[Population]) -> Vec<[f64; Figure::ALL.len()]> {
    let of_vm = |(index, vm): (usize, &HostVm)| {
        Figure::ALL.map(|figure| {
            if vm.is_added {
                return 0.0;
            }
            let recorded = match figure {
                Figure::Ready => vm.ready_percent,
                Figure::WakeupP50 => vm.wakeup_p50_us,
                Figure::WakeupP99 => vm.wakeup_p99_us,
                Figure::Work => {
                    let alone = measure.alone.get(index).copied().unwrap_or(0.0);
                    (vm.work_ms / alone.max(f64::MIN_POSITIVE) * 100.0).min(100.0)
                }
                Figure::Overhead => return 0.0,
            };
            let values = replays
                .iter()
                .filter_map(|replay| measure.value(replay, index, figure));
            let values: Vec<f64> = values.collect();
            let mean = stealtime_lab::stats::estimate(&values);
            mean.map_or(0.0, |mean| (mean.mean - recorded).abs())
        })
    };
    measure.vms.iter().enumerate().map(of_vm).collect()
}

/// The limits; without any the knee's, and its definition.
pub(crate) fn limits_or_knee(limits: &[Limit]) -> (Vec<Limit>, Option<&'static str>) {
    if !limits.is_empty() {
        return (limits.to_vec(), None);
    }
    let knee = Limit {
        vm: None,
        figure: Figure::Work,
        side: Side::Above,
        value: KNEE_WORK,
    };
    (vec![knee], Some(KNEE))
}

impl<'m> Measure<'m> {
    /// Of a host with these replays as recorded. `alone`: the work of each VM alone, in ms per second.
    pub(crate) fn new<R: Replays + ?Sized>(
        replays: &'m R,
        limits: &'m [Limit],
        alone: Vec<f64>,
        recorded: &[Population],
    ) -> Self {
        let mut measure = Self {
            vms: replays.vms(),
            cpus: replays.cpus(),
            limits,
            alone,
            errors: Vec::new(),
        };
        measure.errors = errors(&measure, recorded);
        measure
    }
}

impl Capacity {
    /// Answers a question by replays: `seeds` of each count that is near a limit, `jobs` curves at a time.
    /// `span_ns` and `wakeups` of each VM are the recording's.
    ///
    /// # Errors
    ///
    /// [`FitError`]
    pub fn answer<R: Replays + ?Sized>(
        replays: &R,
        question: &Question,
        seeds: u64,
        jobs: NonZeroUsize,
        span_ns: u64,
        wakeups: &[usize],
    ) -> Result<Self, FitError> {
        let vms = replays.vms();
        question.check(vms)?;
        let (limits, knee) = limits_or_knee(&question.limits);
        // The knee bounds nothing of an answer on VMs to take away.
        if question.moves.is_none() || knee.is_none() {
            for limit in &limits {
                let vms: Vec<&HostVm> = vms.iter().filter(|vm| limit.is_for(&vm.name)).collect();
                limit.check_bounds(&vms)?;
            }
        }
        let mut unchanged = replays.recorded(seeds)?;
        let measure = Measure::new(replays, &limits, alone(replays, seeds)?, &unchanged);
        if replays.is_changed() {
            let changed = replays.replay(&[Vec::new()], seeds)?;
            unchanged = changed.into_iter().next().ok_or(FitError::Stopped)?;
        }
        let recorded = measure.point(1, &unchanged).ok_or(FitError::Stopped)?;
        let mut curves = Vec::new();
        let mut removals = None;
        if let Some(steps) = question.moves {
            let suffering = suffering(replays)?;
            removals = Some(removal::removals(
                replays, &measure, &unchanged, suffering, steps, seeds,
            )?);
        } else {
            let subjects = question.subjects(vms);
            let trace =
                |subject: &Subject| curve::trace(replays, &measure, subject, seeds, &recorded);
            for curve in parallel::map(&subjects, jobs, trace) {
                curves.push(curve?);
            }
        }
        let elastic = vms.iter().filter(|vm| vm.is_elastic);
        Ok(Self {
            knee,
            elastic: elastic.map(|vm| vm.name.clone()).collect(),
            unknown: unknown(vms, span_ns, wakeups),
            recorded,
            curves,
            removals,
            limits,
        })
    }
}

/// The VM that waits most in the recording. Elastic ones always do.
fn suffering<R: Replays + ?Sized>(replays: &R) -> Result<Option<Suffering>, FitError> {
    let vms = replays.vms().iter();
    let patient = vms.filter(|vm| !vm.is_elastic && !vm.is_added && vm.first > 0);
    let longest = patient.max_by(|a, b| a.ready_percent.total_cmp(&b.ready_percent));
    let Some(vm) = longest.filter(|vm| vm.ready_percent > 0.0) else {
        return Ok(None);
    };
    Ok(Some(Suffering {
        vm: vm.name.clone(),
        ready_percent: vm.ready_percent,
        takers: replays.takers(&[], &vm.name)?,
    }))
}

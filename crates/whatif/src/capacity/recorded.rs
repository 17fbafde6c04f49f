//! The host of a recording, with so many of each VM.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stealtime_lab::stats;
use stealtime_replay::{Recording, demand_deviations};
use stealtime_simulator::script::Then;

use crate::baseline::Baseline;
use crate::capacity::cause::{self, Taker};
use crate::capacity::error::FitError;
use crate::capacity::{HostVm, Replays};
use crate::count::VmCount;
use crate::error::Error;
use crate::plan::Plan;
use crate::population::{self, Population};
use crate::recorded::Recorded;
use crate::replays::Run;

/// The host of a recording, with so many of each VM.
pub struct RecordedHost<'h> {
    base: &'h Baseline,
    /// Changes of the host that all replays have but those as recorded.
    changes: Plan,
    /// CPUs with these changes.
    cpus: u32,
    vms: Vec<HostVm>,
    jobs: NonZeroUsize,
    stop: &'h AtomicBool,
    progress: &'h (dyn Fn(usize) + Sync),
    finished: AtomicUsize,
    /// Calls that replay at the same time: they share the jobs.
    active: AtomicUsize,
}

impl std::fmt::Debug for RecordedHost<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecordedHost")
            .field("vms", &self.vms)
            .finish_non_exhaustive()
    }
}

/// Half of the 95 % interval of a VM's demand, as a share of it.
fn demand_error(recording: &Recording, vm: usize) -> f64 {
    let (deviations, total_ns) = demand_deviations(recording, vm);
    let half = stats::estimate(&deviations).and_then(|estimate| estimate.half_width);
    half.unwrap_or(0.0) * deviations.len() as f64 / total_ns.max(1) as f64
}

/// The VMs of a recording, in its order.
#[must_use]
pub fn vms(recorded: &Recorded) -> Vec<HostVm> {
    let measured = recorded.measured_with_halts();
    let is_elastic = |vm: usize| {
        let tasks = recorded.recording.tasks.iter();
        let mut vcpus = tasks
            .filter(|task| task.vcpu.is_some_and(|vcpu| vcpu.0 == vm))
            .peekable();
        vcpus.peek().is_some() && vcpus.all(|task| task.then == Then::Compute)
    };
    let vm = |(index, name): (usize, &String)| {
        let vcpus = measured.vcpus.get(index).copied().unwrap_or(0);
        HostVm {
            name: name.clone(),
            vcpus,
            run_ms: measured.running(index),
            ready_percent: measured.ready(index) / vcpus.max(1) as f64 / 10.0,
            wakeup_p50_us: measured.wakeup_p50(index),
            wakeup_p99_us: measured.wakeup_p99(index),
            work_ms: measured.work(index),
            demand_error: demand_error(&recorded.recording, index),
            is_elastic: is_elastic(index),
            is_added: false,
            first: 1,
        }
    };
    recorded.vms.iter().enumerate().map(vm).collect()
}

impl<'h> RecordedHost<'h> {
    /// The host of a recording. `progress` is called with the number of replays that are done.
    #[must_use]
    pub fn new(
        base: &'h Baseline,
        jobs: NonZeroUsize,
        stop: &'h AtomicBool,
        progress: &'h (dyn Fn(usize) + Sync),
    ) -> Self {
        Self {
            base,
            changes: Plan::default(),
            cpus: base.recorded.recording.cpus,
            vms: vms(&base.recorded)
                .into_iter()
                .chain(base.added.iter().map(|vm| vm.figures.clone()))
                .collect(),
            jobs,
            stop,
            progress,
            finished: AtomicUsize::new(0),
            active: AtomicUsize::new(0),
        }
    }

    /// The same host with these changes, but for replays as recorded.
    ///
    /// # Errors
    ///
    /// A knob that does not take its value on this host.
    pub fn with_changes(self, changes: Plan) -> Result<Self, FitError> {
        let prepared = changes.prepare(self.base)?;
        let cpus = prepared.cpus.as_ref();
        let cpus = cpus.and_then(|cpus| u32::try_from(cpus.len()).ok());
        let recorded = self.base.recorded.vms.len();
        let mut vms = self.vms;
        for (index, vm) in vms.iter_mut().enumerate() {
            vm.first = match index < recorded {
                true => prepared.counts.of_vm(index),
                false => prepared.counts.of_guest(index),
            };
        }
        Ok(Self {
            vms,
            cpus: cpus.unwrap_or(self.cpus),
            changes,
            ..self
        })
    }

    /// Replays that were run.
    #[must_use]
    pub fn finished(&self) -> usize {
        self.finished.load(Ordering::Relaxed)
    }

    /// Length of the recording in ns.
    #[must_use]
    pub const fn span_ns(&self) -> u64 {
        self.base.recorded.recording.span_ns
    }

    /// Recorded wakeups of each VM.
    #[must_use]
    pub fn wakeups(&self) -> Vec<usize> {
        let vcpus = &self.base.recorded.times.vcpus;
        let of_vm = |vm: usize| {
            let vcpus = vcpus.iter().filter(|time| time.vm == vm);
            vcpus.map(|time| time.wakeups.len()).sum()
        };
        let added = self.base.added.iter().map(|vm| vm.wakeups);
        (0..self.base.recorded.vms.len())
            .map(of_vm)
            .chain(added)
            .collect()
    }

    /// Replays each list of counts on top of these changes.
    fn replay_with(
        &self,
        changes: &Plan,
        lists: &[Vec<VmCount>],
        seeds: u64,
    ) -> Result<Vec<Vec<Population>>, FitError> {
        let active = self.active.fetch_add(1, Ordering::Relaxed) + 1;
        let jobs = NonZeroUsize::new(self.jobs.get() / active).unwrap_or(NonZeroUsize::MIN);
        let run = Run {
            seeds,
            jobs,
            stop: self.stop,
            progress: &|_| Box::new(no_progress),
        };
        let replays = population::populations_with(self.base, changes, lists, &run);
        self.active.fetch_sub(1, Ordering::Relaxed);
        let replays = replays?;
        let added: usize = replays.iter().map(Vec::len).sum();
        let finished = self.finished.fetch_add(added, Ordering::Relaxed) + added;
        (self.progress)(finished);
        let is_whole = |list: &Vec<Population>| list.len() as u64 == seeds;
        match replays.len() == lists.len() && replays.iter().all(is_whole) {
            true => Ok(replays),
            false => Err(FitError::Stopped),
        }
    }
}

/// Progress is that of all calls together.
const fn no_progress(_replays: usize) {}

impl Replays for RecordedHost<'_> {
    fn vms(&self) -> &[HostVm] {
        &self.vms
    }

    fn cpus(&self) -> u32 {
        self.cpus
    }

    fn replay(&self, lists: &[Vec<VmCount>], seeds: u64) -> Result<Vec<Vec<Population>>, FitError> {
        self.replay_with(&self.changes, lists, seeds)
    }

    fn recorded(&self, seeds: u64) -> Result<Vec<Population>, FitError> {
        let replays = self.replay_with(&Plan::default(), &[Vec::new()], seeds)?;
        replays.into_iter().next().ok_or(FitError::Stopped)
    }

    fn is_changed(&self) -> bool {
        !self.changes.is_empty()
    }

    fn takers(&self, counts: &[VmCount], vm: &str) -> Result<Vec<Taker>, FitError> {
        let is_recorded = |count: &VmCount| {
            let vm = self.vms.iter().find(|vm| vm.name == count.vm);
            vm.is_some_and(|vm| vm.first == count.count)
        };
        if self.changes.is_empty() && counts.iter().all(is_recorded) {
            return Ok(cause::in_recording(&self.base.recorded.answers, vm));
        }
        let mut prepared = self.changes.prepare(self.base)?;
        for count in counts {
            let set = self.base.set_count(&mut prepared.counts, count);
            set.map_err(Error::from)?;
        }
        // One seed: the shares are named, not judged.
        let host = prepared.host(self.base, 1)?;
        let names = self.base.names();
        let name = |number: u32| {
            let vm = usize::try_from(number).ok()?;
            let copy = host.copies.iter().find(|copy| copy.vm == vm);
            let original = copy.map_or(vm, |copy| copy.original);
            names.get(original).cloned()
        };
        Ok(cause::in_replay(&host.config, vm, name).map_err(Error::from)?)
    }
}

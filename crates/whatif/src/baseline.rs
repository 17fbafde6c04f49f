//! A recording with the replay under the recorded knobs that fits it best.

use stealtime_lab::knobs::Part;
use stealtime_replay::Counts;
use stealtime_replay::host::{self, Assumed};
use stealtime_replay::predict::{self, Errors, Times};
use stealtime_simulator::Fault;
use stealtime_simulator::config::Config;

use crate::added::{AddError, AddedVm};
use crate::answerable;
use crate::apply::{apply, groups};
use crate::count::{CountError, VmCount, vm_index};
use crate::error::Error;
use crate::fit::Fit;
use crate::host_file::HostFacts;
use crate::preempt::PreemptSource;
use crate::question::Question;
use crate::recorded::Recorded;

/// A recording with the replay under the recorded knobs that fits it best.
#[derive(Debug)]
pub struct Baseline {
    pub(crate) recorded: Recorded,
    pub(crate) assumed: Assumed,
    /// The source of its preemption mode; `None` if the fit found it.
    pub(crate) preempt: Option<PreemptSource>,
    /// VMs are taken to have cgroups because a weight is asked for.
    pub(crate) groups_asked: bool,
    pub(crate) facts: HostFacts,
    /// VMs of other recordings. Their indexes follow those of the recorded VMs.
    pub(crate) added: Vec<AddedVm>,
    /// The host as recorded, with the recorded knobs.
    pub(crate) config: Config,
    pub(crate) replayed: Times,
    /// How the fit came to it.
    pub(crate) fit: Fit,
}

impl Baseline {
    /// Fits a replay to the recording. The question decides what the recording leaves open: a weight
    /// implies cgroups, a preemption mode implies that the host has the other one.
    ///
    /// # Errors
    ///
    /// A knob that the host does not take, or the simulator's.
    pub fn fit(
        mut recorded: Recorded,
        facts: HostFacts,
        question: &Question,
    ) -> Result<Self, Error> {
        if let Some(cgroups) = &facts.snapshot().cgroups {
            recorded.recording.limits.clone_from(&cgroups.limits);
        }
        let mut assumed = facts.assumed();
        let recording = &recorded.recording;
        let vms = &recorded.vms;
        let mut trial = host::as_recorded(recording, host::knobs(recording), &assumed, 0);
        let preempt = PreemptSource::find(&facts, question, &recorded, &trial);
        assumed.preempt = preempt.map(PreemptSource::preempt);
        apply(&mut trial, facts.settings(), vms)?;
        // A weight is a cgroup's: hosts without cgroups need not be tried.
        let groups_asked = assumed.groups.is_none() && weighs_ungrouped(question, &trial, vms);
        if groups_asked {
            assumed.groups = Some(true);
        }
        let configure = |config: &mut Config| -> Result<(), Error> {
            Ok(apply(config, facts.settings(), vms)?)
        };
        let fitted = stealtime_replay::fit::fit(recording, &recorded.times, &assumed, configure)?;
        let fit = Fit::new(&fitted, &recorded, &assumed, &facts);
        Ok(Self {
            recorded,
            assumed: fitted.assumed,
            preempt,
            groups_asked,
            facts,
            added: Vec::new(),
            config: fitted.config,
            replayed: fitted.times,
            fit,
        })
    }

    /// Adds a VM of another recording; hosts have none of it unless their counts say so.
    ///
    /// # Errors
    ///
    /// A VM of this name that was added before.
    pub fn add(&mut self, vm: AddedVm) -> Result<(), AddError> {
        if self.added.iter().any(|known| known.name == vm.name) {
            return Err(AddError::NameTaken(vm.name));
        }
        self.added.push(vm);
        Ok(())
    }

    /// Names of all VMs by their indexes: those of the recording, then those of others.
    pub(crate) fn names(&self) -> Vec<String> {
        let added = self.added.iter().map(|vm| vm.name.clone());
        self.recorded.vms.iter().cloned().chain(added).collect()
    }

    /// Sets how many there are of a VM.
    pub(crate) fn set_count(&self, counts: &mut Counts, count: &VmCount) -> Result<(), CountError> {
        let mut added = (self.recorded.vms.len()..).zip(&self.added);
        match added.find(|(_, vm)| vm.name == count.vm) {
            Some((index, _)) => counts.set_guest(index, count.count),
            None => counts.set(vm_index(&self.recorded, &count.vm)?, count.count),
        }
        Ok(())
    }

    /// What was read.
    #[must_use]
    pub const fn recorded(&self) -> &Recorded {
        &self.recorded
    }

    /// How far the replay is from the recording.
    pub(crate) fn errors(&self) -> Errors {
        let span_ns = self.recorded.recording.span_ns;
        Errors::between(&self.recorded.times, &self.replayed, span_ns)
    }

    /// Replays once more, to measure how long that takes.
    ///
    /// # Errors
    ///
    /// The simulator's.
    pub fn replay_once(&self) -> Result<(), Fault> {
        predict::replay(&self.recorded.recording, &self.config).map(drop)
    }
}

/// Whether a weight is asked for of VMs of which the host has none in a cgroup.
fn weighs_ungrouped(question: &Question, config: &Config, vms: &[String]) -> bool {
    let mut settings = question.settings();
    settings.any(|setting| {
        let is_weight = answerable::part(setting) == Some(Part::Weight);
        let named = setting.vms().filter(|_| is_weight);
        let groups = named.map_or_else(Vec::new, |name| groups(name, config, vms));
        !groups.is_empty() && groups.iter().all(Option::is_none)
    })
}

//! What is known of the recorded host: a file of lines `KEY = VALUE`, and its snapshot.

use std::collections::BTreeSet;

use stealtime_lab::knobs::{KnobError, Setting, split_setting, without_comment};
use stealtime_replay::host::{Assumed, Placement};
use stealtime_simulator::config::Config;

use crate::host_snapshot::SnapshotFacts;
use crate::question::FEATURES;
use crate::recorded::Recorded;

/// The source of a fact, as a clause.
pub(crate) const FROM_SNAPSHOT: &str = "as the host's snapshot says";

/// What is known of the recorded host beyond the recording.
#[derive(Debug, Clone, Default)]
pub struct HostFacts {
    settings: Vec<Setting>,
    groups: Option<bool>,
    vcpu_groups: Option<bool>,
    balanced: Option<bool>,
    placement: Option<Placement>,
    snapshot: SnapshotFacts,
}

/// A line that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}:{line}: {problem}")]
pub struct HostFileError {
    /// The file's name.
    pub file: String,
    /// Counted from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: HostFileProblem,
}

/// What is wrong with a line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostFileProblem {
    /// No key, or no value.
    #[error("expected KEY = VALUE")]
    Syntax,
    /// A key that an earlier line has.
    #[error("{0} is said twice: leave one out")]
    Twice(String),
    /// A flag with another value.
    #[error("{0} is true or false")]
    NotAFlag(&'static str),
    /// A placement of another name.
    #[error("placement is recorded or simulated")]
    Placement,
    /// An unknown knob, or a value that it does not take.
    #[error(transparent)]
    Knob(#[from] KnobError),
}

impl HostFacts {
    /// Parses the text of a file; `file` is its name for messages. KEY is a knob or one of these:
    ///
    /// - `groups`: VMs are in cgroups (true, false);
    /// - `vcpu_cgroups`: each vCPU is in one (true, false);
    /// - `balanced`: guests balance load between vCPUs (true, false);
    /// - `placement`: recorded, simulated.
    ///
    /// # Errors
    ///
    /// The first line that is wrong.
    pub fn parse(file: &str, text: &str, recorded: &Recorded) -> Result<Self, HostFileError> {
        let mut facts = Self::default();
        let mut trial = recorded.stub();
        let mut keys = BTreeSet::new();
        for (index, line) in text.lines().enumerate() {
            let line = without_comment(line).trim();
            if line.is_empty() {
                continue;
            }
            facts
                .line(line, &mut keys, &mut trial)
                .map_err(|problem| HostFileError {
                    file: file.to_owned(),
                    line: index + 1,
                    problem,
                })?;
        }
        Ok(facts)
    }

    fn line(
        &mut self,
        line: &str,
        keys: &mut BTreeSet<String>,
        trial: &mut Config,
    ) -> Result<(), HostFileProblem> {
        let (key, value) = split_setting(line).ok_or(HostFileProblem::Syntax)?;
        let unquoted = |text: &str| text.trim().trim_matches('"').to_owned();
        let (key, value) = (unquoted(key), unquoted(value));
        if key.is_empty() {
            return Err(HostFileProblem::Syntax);
        }
        // Features are switched one by one, on as many lines.
        if !keys.insert(key.clone()) && key != FEATURES {
            return Err(HostFileProblem::Twice(key));
        }
        let flag = |name| value.parse().map_err(|_| HostFileProblem::NotAFlag(name));
        match key.as_str() {
            "groups" => self.groups = Some(flag("groups")?),
            "vcpu_cgroups" => self.vcpu_groups = Some(flag("vcpu_cgroups")?),
            "balanced" => self.balanced = Some(flag("balanced")?),
            "placement" => {
                self.placement = Some(match value.as_str() {
                    "recorded" => Placement::Recorded,
                    "simulated" => Placement::Simulated,
                    _ => return Err(HostFileProblem::Placement),
                });
            }
            knob => {
                let setting = Setting::parse(trial, knob, &value)?;
                // Some values depend on the settings of earlier lines.
                setting.apply(trial)?;
                self.settings.push(setting);
            }
        }
        Ok(())
    }

    /// Adds a setting after those of the file.
    pub(crate) fn add_setting(&mut self, setting: Setting) {
        self.settings.push(setting);
    }

    /// What the host's snapshot says. The file says it later.
    pub(crate) fn set_snapshot(&mut self, mut facts: SnapshotFacts) {
        if self.groups.is_some() || self.vcpu_groups.is_some() {
            facts.cgroups = None;
        }
        self.snapshot = facts;
    }

    /// What the host's snapshot says.
    pub(crate) const fn snapshot(&self) -> &SnapshotFacts {
        &self.snapshot
    }

    /// Where a knob is from that it names, for a sentence.
    pub(crate) fn source(&self, knob: &str) -> &'static str {
        match self.snapshot.settings.contains(knob) {
            true => FROM_SNAPSHOT,
            false => "as given",
        }
    }

    /// The knobs that it names.
    pub(crate) fn settings(&self) -> &[Setting] {
        &self.settings
    }

    /// Whether it says what this knob is set to.
    pub(crate) fn has(&self, knob: &str) -> bool {
        self.settings.iter().any(|setting| setting.name() == knob)
    }

    /// Sets its knobs on a configuration.
    pub(crate) fn apply_settings(&self, config: &mut Config) -> Result<(), KnobError> {
        let mut settings = self.settings.iter();
        settings.try_for_each(|setting| setting.apply(config))
    }

    /// What a fit starts from: the fit finds the rest.
    pub(crate) fn assumed(&self) -> Assumed {
        let assumed = Assumed {
            groups: self.groups,
            vcpu_groups: self.vcpu_groups,
            balanced: self.balanced,
            placement: self.placement,
            affinity: self.snapshot.affinity.clone(),
            policies: self.snapshot.policies.clone(),
            wakeups_preempt: self.snapshot.wakeups_preempt,
            ..Assumed::default()
        };
        let Some(cgroups) = &self.snapshot.cgroups else {
            return assumed;
        };
        Assumed {
            groups: Some(cgroups.every_vm),
            vcpu_groups: Some(cgroups.per_vcpu),
            own_group: match cgroups.every_vm {
                true => BTreeSet::new(),
                false => cgroups.own.clone(),
            },
            slice: Some(cgroups.slice),
            weights: cgroups.weights.clone(),
            shared_groups: cgroups.shared_settings(),
            shared_by_vm: cgroups.shared_by_vm.clone(),
            weights_known: true,
            ..assumed
        }
    }
}

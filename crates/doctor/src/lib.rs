//! What the settings of a host do to guest time: findings with evidence, next step and commands. Each of
//! the five mechanisms has a row. Pure functions over a [`Snapshot`].

mod change;
mod contention;
mod decision;
mod host;
mod manager;
mod mechanism;
mod view;
mod vm;

use std::cmp::Reverse;

use serde::Serialize;
use stealtime_host::{Missing, Snapshot};

pub use change::{Change, present_text, present_value, shell_word, vendor};
pub use contention::{more_weight, own_cpus};
pub use decision::Decision;
pub use manager::{ByManager, GroupFile, Quota, VmSetting, by_manager, limit, merge};
pub use mechanism::{Mechanism, State};

use view::View;

/// What is found on a host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Diagnosis {
    /// Name of the host.
    pub host: Option<String>,
    /// Findings, the most urgent first; among equals the largest known loss first.
    pub findings: Vec<Finding>,
    /// Mechanisms that give time back to guests.
    pub mechanisms: Vec<Mechanism>,
    /// The one thing to do.
    pub decision: Decision,
    /// What the snapshot could not read: rules that need it find nothing.
    pub missing: Vec<Missing>,
}

/// How sure a setting costs guest time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Urgency {
    /// Counters of this host show the cost.
    Costs,
    /// The setting costs, by what it does; how much is not known.
    Likely,
    /// It depends on the guests: a recording shows it.
    Depends,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// Its id, listed in docs/doctor.md.
    pub id: &'static str,
    /// How sure it is.
    pub urgency: Urgency,
    /// The VMs that it is about, by name; none for the host.
    pub vms: Vec<String>,
    /// What is so.
    pub title: String,
    /// The values that show it.
    pub evidence: Vec<String>,
    /// The next step.
    pub advice: String,
    /// Commands that make the change.
    pub changes: Vec<Change>,
    /// Guest time lost by counters, in us; `None`: not counted.
    #[serde(skip)]
    lost_us: Option<u64>,
}

impl Finding {
    fn new(id: &'static str, urgency: Urgency, title: impl Into<String>) -> Self {
        Self {
            id,
            urgency,
            vms: Vec::new(),
            title: title.into(),
            evidence: Vec::new(),
            advice: String::new(),
            changes: Vec::new(),
            lost_us: None,
        }
    }

    fn about(self, vm: &str) -> Self {
        Self {
            vms: vec![vm.to_owned()],
            ..self
        }
    }

    fn losing(self, lost_us: u64) -> Self {
        Self {
            lost_us: Some(lost_us),
            ..self
        }
    }

    fn shown_by(mut self, evidence: impl Into<String>) -> Self {
        self.evidence.push(evidence.into());
        self
    }

    fn advising(self, advice: impl Into<String>) -> Self {
        Self {
            advice: advice.into(),
            ..self
        }
    }

    fn changing(mut self, change: Option<Change>) -> Self {
        self.changes.extend(change);
        self
    }
}

/// All findings of a snapshot.
#[must_use]
pub fn diagnose(snapshot: &Snapshot) -> Diagnosis {
    let view = View::new(snapshot);
    let mut findings = host::findings(&view);
    findings.extend(vm::findings(&view));
    // The order of rules is kept among equals.
    findings.sort_by_key(|finding| (finding.urgency, Reverse(finding.lost_us)));
    Diagnosis {
        decision: Decision::new(snapshot, &findings),
        host: snapshot.identity.hostname.clone(),
        findings,
        mechanisms: mechanism::all(&view),
        missing: snapshot.missing.clone(),
    }
}

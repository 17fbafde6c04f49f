//! What an answer ends with: the one thing to do, or that nothing is worth doing.

use std::fmt;

use serde::Serialize;
use stealtime_host::{Manager, Snapshot};

use crate::change::Change;
use crate::manager::ByManager;
use crate::{Finding, Urgency};

/// The one thing to do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Decision {
    /// Whether there is something to do.
    pub worth_doing: bool,
    /// The change in words, or why nothing is worth doing.
    pub what: String,
    /// The evidence; empty without something to do.
    pub why: String,
    /// Commands.
    pub set: Vec<String>,
    /// Those that undo it; empty where nothing changes.
    pub undo: Vec<String>,
    /// The manager of the VMs, if all commands are for it.
    pub manager: Option<Manager>,
}

impl Decision {
    /// Nothing, for this reason.
    #[must_use]
    pub fn nothing(reason: impl Into<String>) -> Self {
        Self {
            worth_doing: false,
            what: reason.into(),
            why: String::new(),
            set: Vec::new(),
            undo: Vec::new(),
            manager: None,
        }
    }

    /// A command that looks further and changes nothing.
    #[must_use]
    pub fn look(
        change: impl Into<String>,
        evidence: impl Into<String>,
        command: impl Into<String>,
    ) -> Self {
        Self {
            worth_doing: true,
            what: change.into(),
            why: evidence.into(),
            set: vec![command.into()],
            undo: Vec::new(),
            manager: None,
        }
    }

    /// Changes of one variant: by the VM's manager where one keeps each of them, else on the host.
    #[must_use]
    pub fn apply(changes: &[Change], evidence: impl Into<String>) -> Self {
        let names: Vec<&str> = changes
            .iter()
            .map(|change| change.change.as_str())
            .collect();
        let chosen: Vec<_> = changes.iter().map(by_manager).collect();
        let mut managers = chosen
            .iter()
            .map(|(commands, _)| commands.map(|commands| commands.manager));
        let first = managers.next().flatten();
        let manager = first.filter(|_| managers.all(|manager| manager == first));
        let steps = |side: fn(&ByManager) -> &Vec<String>, on_host: fn(&Change) -> &Vec<String>| {
            let lists = chosen
                .iter()
                .map(|(commands, change)| commands.map_or_else(|| on_host(change), side));
            lists.flatten().cloned().collect()
        };
        Self {
            worth_doing: true,
            what: names.join(", "),
            why: evidence.into(),
            set: steps(|commands| &commands.set, |change| &change.set),
            undo: steps(|commands| &commands.undo, |change| &change.undo),
            manager,
        }
    }

    /// Of a host's findings: the first that counters show, if a command changes it.
    pub(crate) fn new(snapshot: &Snapshot, findings: &[Finding]) -> Self {
        let costly = || {
            findings
                .iter()
                .filter(|finding| finding.urgency == Urgency::Costs)
        };
        let possible = |finding: &&Finding| finding.changes.iter().any(Change::is_possible);
        if let Some(finding) = costly().find(possible) {
            let change = finding.changes.iter().filter(|change| change.is_possible());
            let change: Vec<Change> = change.take(1).cloned().collect();
            let values = finding.evidence.join(", ");
            let evidence = format!("{} ({values}). {}", finding.title, finding.advice);
            return Self::apply(&change, evidence);
        }
        if let Some(finding) = costly().next() {
            let command =
                "stealtime record -o trace.dat --seconds 10; stealtime whatif trace.dat --auto";
            return Self::look(
                "record the host, and replay changes",
                finding.title.clone(),
                command,
            );
        }
        Self::nothing(match (snapshot.vms.is_empty(), findings.len()) {
            (true, _) => "no VM runs here".to_owned(),
            (false, 0) => "no setting is found that costs guests time".to_owned(),
            (false, _) => "no counter of this host shows that guests lose time".to_owned(),
        })
    }
}

/// The change by its manager where that acts at once; commands of several managers are each a part of it.
fn by_manager(change: &Change) -> (Option<&ByManager>, &Change) {
    let commands = match change.managers.as_slice() {
        [commands] if commands.acts_at_once() => Some(commands),
        _ => None,
    };
    (commands, change)
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.worth_doing {
            true => write!(f, "do this: {}", self.set.join("; ")),
            false => write!(f, "nothing here is worth doing: {}", self.what),
        }
    }
}

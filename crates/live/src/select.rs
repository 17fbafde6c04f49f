//! The tracepoints that are recorded on this kernel, and those that are missing.

use serde::Serialize;

use crate::RecordError;
use crate::need::{NEEDS, former};
use crate::tracefs::Folder;

/// A tracepoint of this kernel.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tracepoint {
    /// The folder in `events`.
    pub system: String,
    /// Its name on this kernel.
    pub name: String,
}

impl Tracepoint {
    /// Whether it is the one without which nothing is recorded.
    pub(crate) fn is_switch(&self) -> bool {
        self.system == "sched" && self.name == "sched_switch"
    }

    /// A file in its folder.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("events/{}/{}/{name}", self.system, self.name)
    }
}

/// Why a tracepoint is not recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// This kernel does not have it.
    Absent,
    /// The module `kvm` is not loaded.
    NoKvm,
    /// The kernel refuses to switch it on.
    Refused,
}

impl Reason {
    /// The reason as part of a sentence.
    #[must_use]
    pub const fn text(self) -> &'static str {
        match self {
            Self::Absent => "this kernel does not have it",
            Self::NoKvm => "the module kvm is not loaded",
            Self::Refused => "the kernel refuses to record it",
        }
    }
}

/// Tracepoints of one purpose that are not recorded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// Their names, `system:name`.
    pub events: Vec<String>,
    /// Why.
    pub reason: Reason,
    /// The loss of an answer.
    pub without: &'static str,
}

/// Tracepoints to record, and missing ones.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// In the order of [`NEEDS`].
    pub tracepoints: Vec<Tracepoint>,
    /// By purpose.
    pub missing: Vec<Missing>,
}

impl Selection {
    /// Looks for the tracepoints in tracefs.
    ///
    /// # Errors
    /// `sched_switch` is missing.
    pub fn probe(tracefs: &Folder) -> Result<Self, RecordError> {
        let mut selection = Self::default();
        let has_kvm = tracefs.has("events/kvm");
        for need in NEEDS {
            for name in need.events {
                let names = [Some(*name), former(name)];
                let found = names
                    .into_iter()
                    .flatten()
                    .find(|name| tracefs.has(&format!("events/{}/{name}/format", need.system)));
                match found {
                    Some(name) => selection.tracepoints.push(Tracepoint {
                        system: need.system.to_owned(),
                        name: name.to_owned(),
                    }),
                    None if need.system == "kvm" && !has_kvm => {
                        selection.miss(need.system, name, Reason::NoKvm, need.without);
                    }
                    None => selection.miss(need.system, name, Reason::Absent, need.without),
                }
            }
        }
        match selection.tracepoints.iter().any(Tracepoint::is_switch) {
            true => Ok(selection),
            false => Err(RecordError::NoSwitches),
        }
    }

    /// Leaves out all but those that `is_wanted`, by system and name.
    pub(crate) fn keep(&mut self, is_wanted: impl Fn(&str, &str) -> bool) {
        self.tracepoints
            .retain(|point| is_wanted(&point.system, &point.name));
        for row in &mut self.missing {
            row.events.retain(|event| {
                let (system, name) = event.split_once(':').unwrap_or_default();
                is_wanted(system, name)
            });
        }
        self.missing.retain(|row| !row.events.is_empty());
    }

    /// Switches the tracepoints on in an instance. Those that the kernel refuses are missing.
    pub(crate) fn enable(&mut self, instance: &Folder) -> Result<(), RecordError> {
        let mut refused = Vec::new();
        for point in &self.tracepoints {
            let enabled = instance.write(&point.file("enable"), "1", "switch an event on");
            match enabled {
                Ok(()) => {}
                // Without switches there is nothing to analyze, and the kernel's reason is the message.
                Err(error) if point.is_switch() => return Err(error),
                Err(_) => refused.push(point.clone()),
            }
        }
        self.refuse(&refused);
        Ok(())
    }

    /// Takes tracepoints out that the kernel refuses.
    pub(crate) fn refuse(&mut self, refused: &[Tracepoint]) {
        self.tracepoints.retain(|point| !refused.contains(point));
        for point in refused {
            let is_named =
                |name: &str| name == point.name || former(name) == Some(point.name.as_str());
            let need = NEEDS
                .iter()
                .find(|need| need.events.iter().any(|name| is_named(name)));
            let loss = need.map_or("", |need| need.without);
            self.miss(&point.system, &point.name, Reason::Refused, loss);
        }
    }

    fn miss(&mut self, system: &str, name: &str, reason: Reason, loss: &'static str) {
        let event = format!("{system}:{name}");
        let mut rows = self.missing.iter_mut();
        match rows.find(|row| row.reason == reason && row.without == loss) {
            Some(row) => row.events.push(event),
            None => self.missing.push(Missing {
                events: vec![event],
                reason,
                without: loss,
            }),
        }
    }
}

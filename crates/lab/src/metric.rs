//! What a run is judged by: a list of named numbers.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Metrics of a VM that say where its vCPUs' time went. All but "spinning", which is a part of "in guest",
/// add up to all of it.
pub const VCPU_TIME: [&str; 6] = [
    "in guest",
    "spinning",
    "in exits",
    "halt polling",
    "steal",
    "asleep",
];

/// Which way a metric should go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// Less is better.
    Lower,
    /// More is better.
    Higher,
    /// Neither: it explains the others.
    Neither,
}

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Things.
    Count,
    /// Things a second of simulated time.
    PerSecond,
    /// Time in ns.
    Ns,
    /// Hundredths.
    Percent,
}

impl Unit {
    /// Whether a run without such a metric has counted nothing, which is 0. A [`Self::Count`] may be a ratio:
    /// without an operation the exits per operation are unknown.
    #[must_use]
    pub const fn is_counted(self) -> bool {
        matches!(self, Self::PerSecond)
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Count => "",
            Self::PerSecond => "/s",
            Self::Ns => "ns",
            Self::Percent => "%",
        })
    }
}

/// The VM, task or host that a metric is of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "kind", content = "name")]
pub enum Subject {
    /// The host and all on it.
    Host,
    /// A VM or a group of equal VMs.
    Vm(String),
    /// A task of the host or a group of them.
    Task(String),
}

/// One number that a run gave.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    /// Its name (`throughput`, `exits HLT`).
    pub name: String,
    /// The VM, task or host that it is of.
    pub of: Subject,
    /// What it counts.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// The value; not a number means that there was nothing to measure.
    pub value: f64,
}

impl Metric {
    /// A metric of the host.
    #[must_use]
    pub fn host(name: impl Into<String>, unit: Unit, better: Better, value: f64) -> Self {
        Self {
            name: name.into(),
            of: Subject::Host,
            unit,
            better,
            value,
        }
    }

    /// The same metric of another subject.
    #[must_use]
    pub fn of(self, subject: Subject) -> Self {
        Self {
            of: subject,
            ..self
        }
    }
}

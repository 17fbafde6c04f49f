//! How close the replay of a recording is: a row of `--self-test`.

use serde::Serialize;

use crate::baseline::Baseline;
use crate::result::{Closeness, Waits};

/// A recording's row.
#[derive(Debug, Serialize)]
pub struct SelfTestRow {
    /// The file.
    pub path: String,
    /// Length of the recording in ns.
    pub span_ns: u64,
    /// vCPUs that were replayed.
    pub vcpus: usize,
    /// Events that were lost, as far as is known, and gaps of unknown loss.
    pub lost: u64,
    /// Waits by what ended them.
    pub waits: Option<Waits>,
    /// How far the replay is from the recording.
    pub error: Option<Closeness>,
    /// Why it cannot be replayed.
    pub problem: Option<String>,
}

impl SelfTestRow {
    /// The row of a recording that was replayed.
    #[must_use]
    pub fn replayed(path: String, base: &Baseline) -> Self {
        let source = &base.recorded.answers.source;
        Self {
            path,
            span_ns: base.recorded.recording.span_ns,
            vcpus: base.recorded.times.vcpus.len(),
            lost: source.lost + source.lost_gaps,
            waits: Some(Waits::new(base.recorded.recording.resolved)),
            error: Some(Closeness::new(&base.errors())),
            problem: None,
        }
    }

    /// The row of a recording that cannot be replayed.
    #[must_use]
    pub const fn failed(path: String, problem: String) -> Self {
        Self {
            path,
            span_ns: 0,
            vcpus: 0,
            lost: 0,
            waits: None,
            error: None,
            problem: Some(problem),
        }
    }
}

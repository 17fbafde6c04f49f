//! The answer with the recording that it is of.

use serde::Serialize;

use crate::assumptions;
use crate::baseline::Baseline;
use crate::capacity::curve::Curve;
use crate::capacity::document::Capacity;
use crate::capacity::memory::Memory;
use crate::coverage::{self, Lack};
use crate::plan::Plan;
use crate::result::Closeness;

/// The answer with the recording that it is of.
#[derive(Debug, Clone, Serialize)]
pub struct FitDocument {
    /// The recording.
    pub path: String,
    /// Less of the recording was read than was recorded.
    pub recording_partial: bool,
    /// Length of the recording in ns.
    pub span_ns: u64,
    /// CPUs of the host.
    pub cpus: u32,
    /// Events of the recording.
    pub events: u64,
    /// Changes of the host that the answer takes for made: `KNOB=VALUE`, `pin VM=CPUS`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changes: Option<String>,
    /// How far the replay under the recorded knobs is from the recording.
    pub error: Closeness,
    /// What the replay takes for true, with the source of each.
    pub assumed: Vec<String>,
    /// What the recording lacks.
    pub lacks: Vec<Lack>,
    /// VMs with threads that are a guess.
    pub guessed: Vec<String>,
    /// Memory of the host, where its snapshot has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// Replays of a count that is near a limit.
    pub seeds: u64,
    /// Replays that were run.
    pub replays: usize,
    /// The answer.
    #[serde(flatten)]
    pub capacity: Capacity,
}

impl FitDocument {
    /// How many more of the counted VMs the host's memory holds; `None` where that is not known.
    #[must_use]
    pub fn memory_sentence(&self) -> Option<String> {
        self.memory.as_ref()?.sentence(&self.capacity.curves)
    }

    /// The answer of a curve, with what memory says against it.
    #[must_use]
    pub fn answer(&self, curve: &Curve) -> String {
        let excess = self.memory.as_ref().and_then(|memory| memory.excess(curve));
        match excess {
            Some(excess) => format!("{} {excess}", curve.sentence),
            None => curve.sentence.clone(),
        }
    }

    /// Joins the answer with its recording.
    #[must_use]
    pub fn new(
        path: String,
        base: &Baseline,
        changes: &Plan,
        seeds: u64,
        replays: usize,
        capacity: Capacity,
    ) -> Self {
        let recorded = &base.recorded;
        let names = recorded.vms.iter().enumerate();
        let guessed = names.filter(|(vm, _)| recorded.is_guessed(*vm));
        Self {
            path,
            recording_partial: recorded.answers.source.partial,
            span_ns: recorded.recording.span_ns,
            cpus: recorded.recording.cpus,
            events: recorded.answers.source.events,
            changes: (!changes.is_empty()).then(|| changes.name()),
            error: Closeness::new(&base.errors()),
            assumed: assumptions::lines(base)
                .into_iter()
                .chain(base.added.iter().map(|vm| vm.source.clone()))
                .collect(),
            lacks: coverage::lacks(recorded),
            guessed: guessed.map(|(_, name)| name.clone()).collect(),
            memory: Memory::of(base),
            seeds,
            replays,
            capacity,
        }
    }
}

//! The document of all results.

use serde::Serialize;
use stealtime_replay::predict::VcpuTimes;

use crate::assumptions;
use crate::auto::Auto;
use crate::baseline::Baseline;
use crate::coverage::{self, Lack};
use crate::fit::Fit;
use crate::known::{self, Fact};
use crate::observed::Observed;
use crate::presence::Presence;
use crate::result::{Closeness, Exits, ReplayedVcpu, Shares, Variant, Waits};

/// All results. Terminal, HTML and JSON are renderings of it.
#[derive(Debug, Clone, Serialize)]
pub struct Document {
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
    /// Waits by what ended them.
    pub waits: Waits,
    /// What the replay takes for true, with the source of each.
    pub assumed: Vec<String>,
    /// What is known of the host and what was fitted, each once.
    pub facts: Vec<Fact>,
    /// The fit that chose what the recording leaves open.
    pub fit: Fit,
    /// What the recording lacks.
    pub lacks: Vec<Lack>,
    /// VMs, vCPUs and tasks that are present for a part of the recording.
    pub presence: Presence,
    /// How far the replay under the recorded knobs is from the recording.
    pub error: Closeness,
    /// Each vCPU, recorded and replayed.
    pub vcpus: Vec<ReplayedVcpu>,
    /// Exits by reason, recorded and replayed.
    pub exits: Vec<Exits>,
    /// What to record where a verdict is `not answerable`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// It was stopped: missing variants were not replayed.
    pub partial: bool,
    /// What each variant changes.
    pub variants: Vec<Variant>,
    /// Predictions next to recordings made with the change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<Observed>,
    /// Knobs that were asked for and cannot be answered.
    pub not_answerable: Vec<String>,
    /// What `--auto` tried; its variants are in the order of the ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto: Option<Auto>,
    /// Files that were written with it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub exported: Vec<String>,
}

impl Document {
    /// What is known before variants are replayed.
    #[must_use]
    pub fn new(path: String, base: &Baseline, not_answerable: Vec<String>) -> Self {
        let recorded = &base.recorded;
        Self {
            path,
            recording_partial: recorded.answers.source.partial,
            span_ns: recorded.recording.span_ns,
            cpus: recorded.recording.cpus,
            events: recorded.answers.source.events,
            waits: Waits::new(recorded.recording.resolved),
            assumed: assumptions::lines(base),
            facts: known::facts(base),
            fit: base.fit.clone(),
            lacks: coverage::lacks(recorded),
            presence: Presence::new(recorded),
            error: Closeness::new(&base.errors()),
            vcpus: vcpus(base),
            exits: Exits::new(&recorded.times, &base.replayed),
            advice: None,
            partial: false,
            variants: Vec::new(),
            seen: None,
            not_answerable,
            auto: None,
            exported: Vec::new(),
        }
    }
}

/// Each vCPU, recorded and replayed.
fn vcpus(base: &Baseline) -> Vec<ReplayedVcpu> {
    let recorded = &base.recorded;
    let span_ns = recorded.recording.span_ns;
    debug_assert_eq!(
        recorded.times.vcpus.len(),
        base.replayed.vcpus.len(),
        "a replay has the vCPUs of its recording"
    );
    let task = |vm: usize, vcpu: u32| {
        let mut tasks = recorded.recording.tasks.iter();
        tasks.find(|task| task.vcpu == Some((vm, vcpu)))
    };
    let pair = |(measured, replayed): (&VcpuTimes, &VcpuTimes)| {
        let task = task(measured.vm, measured.vcpu);
        ReplayedVcpu {
            vm: recorded.vms.get(measured.vm).cloned().unwrap_or_default(),
            vm_guessed: recorded.is_guessed(measured.vm),
            vcpu: measured.vcpu,
            from_ns: task.and_then(|task| task.begins).map(|begins| begins.at_ns),
            to_ns: task.and_then(|task| task.ends_ns),
            recorded: Shares::new(measured, span_ns),
            replayed: Shares::new(replayed, span_ns),
            done_percent: replayed.done_permille as f64 / 10.0,
        }
    };
    let pairs = recorded.times.vcpus.iter().zip(&base.replayed.vcpus);
    pairs.map(pair).collect()
}

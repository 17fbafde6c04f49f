//! A recording that was read.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::VcpuTime;
use stealtime_host::Snapshot;
use stealtime_replay::Recording;
use stealtime_replay::host::{self, Assumed};
use stealtime_replay::predict::{self, Times};
use stealtime_simulator::config::{Config, VmConfig};
use stealtime_simulator::script::Scripts;

use crate::result::Measured;

/// A recording that was read twice: for its answers, then for what its tasks did.
#[derive(Debug)]
pub struct Recorded {
    pub(crate) answers: Answers,
    pub(crate) recording: Recording,
    pub(crate) times: Times,
    /// Names of VMs, in the order of the answers.
    pub(crate) vms: Vec<String>,
    /// Of the recorded host.
    pub(crate) snapshot: Option<Snapshot>,
}

impl Recorded {
    /// Joins the answers with the demand that was extracted with them.
    #[must_use]
    pub fn new(answers: Answers, recording: Recording) -> Self {
        let times = predict::recorded(&recording, &answers);
        let vms = answers.vms.iter().map(|vm| vm.vm.clone()).collect();
        Self {
            answers,
            recording,
            times,
            vms,
            snapshot: None,
        }
    }

    /// Adds the snapshot of the recorded host, for names of control groups and managers.
    #[must_use]
    pub fn with_snapshot(self, snapshot: Option<Snapshot>) -> Self {
        Self { snapshot, ..self }
    }

    /// What `analyze` says of it.
    #[must_use]
    pub const fn answers(&self) -> &Answers {
        &self.answers
    }

    /// Its demand.
    #[must_use]
    pub const fn recording(&self) -> &Recording {
        &self.recording
    }

    /// Whether the threads of a VM are a guess.
    pub(crate) fn is_guessed(&self, vm: usize) -> bool {
        self.answers.vms.get(vm).is_some_and(|vm| vm.guessed)
    }

    /// The recording in the quantities that replays are measured by.
    pub(crate) fn measured(&self) -> Measured {
        Measured::new(&self.times, self.vms.len(), self.recording.span_ns)
    }

    /// The same, with the CPU time that halts take beyond polling, as replays have it.
    pub(crate) fn measured_with_halts(&self) -> Measured {
        let span = self.recording.span_ns.max(1) as f64;
        let in_halts = |vm: &String| {
            let vcpus = self.answers.vcpus.iter().filter(|time| &time.vm == vm);
            let ns: u64 = vcpus.map(in_halts_ns).sum();
            ns as f64 / span * 1_000.0
        };
        let in_halts = self.vms.iter().map(in_halts).collect();
        self.measured().with_in_halts(in_halts)
    }

    /// A host with VMs of these names and the recorded knobs, to parse and check settings on.
    pub(crate) fn stub(&self) -> Config {
        let knobs = host::knobs(&self.recording);
        let config = host::as_recorded(&self.recording, knobs, &Assumed::default(), 0);
        let vm = |name: &String| VmConfig {
            name: name.clone(),
            ..VmConfig::default()
        };
        Config {
            vms: self.vms.iter().map(vm).collect(),
            scripts: Scripts::default(),
            ..config
        }
    }

    /// The CPUs of the host, for messages: `0-3`.
    pub(crate) fn cpu_range(&self) -> String {
        format!("0-{}", self.recording.cpus.saturating_sub(1))
    }
}

/// On a CPU in halts: polling, going to sleep and coming back.
fn in_halts_ns(time: &VcpuTime) -> u64 {
    let exits = time.exit_ns_by_reason.iter();
    let halts = exits.filter(|exit| exit.reason.eq_ignore_ascii_case("hlt"));
    time.poll_ns.unwrap_or(0) + halts.map(|exit| exit.ns).sum::<u64>()
}

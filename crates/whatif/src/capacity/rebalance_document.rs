//! The moves between hosts with the recordings that they are of.

use serde::Serialize;

use crate::assumptions;
use crate::baseline::Baseline;
use crate::capacity::HostVm;
use crate::capacity::document::unknown;
use crate::capacity::fleet::FleetVms;
use crate::capacity::rebalance::{HostChange, Rebalance};
use crate::capacity::recorded_vms;
use crate::coverage::{self, Lack};
use crate::result::Closeness;

/// Above this share of its time, in percent, waiting hides what a VM demands.
const MUCH_WAITING: f64 = 20.0;

/// A host of the answer.
#[derive(Debug, Clone, Serialize)]
pub struct HostRecording {
    /// Its name: what its path differs in.
    pub host: String,
    /// Its recording.
    pub path: String,
    /// Less of the recording was read than was recorded.
    pub recording_partial: bool,
    /// Length of the recording in ns.
    pub span_ns: u64,
    /// CPUs.
    pub cpus: u32,
    /// Events of the recording.
    pub events: u64,
    /// How far the replay as recorded is from the recording.
    pub error: Closeness,
    /// What the replay takes for true, with the source of each.
    pub assumed: Vec<String>,
    /// What the recording lacks.
    pub lacks: Vec<Lack>,
    /// VMs with threads that are a guess.
    pub guessed: Vec<String>,
}

impl HostRecording {
    fn new(host: &str, path: &str, base: &Baseline) -> Self {
        let recorded = &base.recorded;
        let names = recorded.vms.iter().enumerate();
        let guessed = names.filter(|(vm, _)| recorded.is_guessed(*vm));
        Self {
            host: host.to_owned(),
            path: path.to_owned(),
            recording_partial: recorded.answers.source.partial,
            span_ns: recorded.recording.span_ns,
            cpus: recorded.recording.cpus,
            events: recorded.answers.source.events,
            error: Closeness::new(&base.errors()),
            assumed: assumptions::lines(base)
                .into_iter()
                .chain(base.added.iter().map(|vm| vm.source.clone()))
                .collect(),
            lacks: coverage::lacks(recorded),
            guessed: guessed.map(|(_, name)| name.clone()).collect(),
        }
    }
}

/// The moves between hosts with the recordings that they are of.
#[derive(Debug, Clone, Serialize)]
pub struct RebalanceDocument {
    /// The recordings, in the order in which they were given.
    pub recordings: Vec<HostRecording>,
    /// Pairs of hosts between which no VM moves, with the reason.
    pub refused: Vec<String>,
    /// The VMs that take all the CPU time that they get.
    pub elastic: Vec<String>,
    /// Replays of a host that is near a limit.
    pub seeds: u64,
    /// Replays that were run.
    pub replays: usize,
    /// The answer.
    #[serde(flatten)]
    pub rebalance: Rebalance,
    /// What the answer leaves out.
    pub unknown: Vec<String>,
}

impl RebalanceDocument {
    /// Joins the answer with its recordings. `wakeups`: the recorded ones of each host's VMs.
    #[must_use]
    pub fn new(
        paths: &[String],
        hosts: &[Baseline],
        fleet: FleetVms,
        wakeups: &[Vec<usize>],
        seeds: u64,
        replays: usize,
        rebalance: Rebalance,
    ) -> Self {
        let recorded = hosts.iter().flat_map(|base| recorded_vms(&base.recorded));
        let vms = recorded.zip(&fleet.vms).map(|(figures, vm)| HostVm {
            name: vm.name.clone(),
            ..figures
        });
        let vms: Vec<HostVm> = vms.collect();
        let spans = hosts.iter().map(|base| base.recorded.recording.span_ns);
        let own_wakeups = hosts.iter().zip(wakeups);
        // Those of VMs to add follow.
        let own_wakeups =
            own_wakeups.flat_map(|(base, wakeups)| wakeups.iter().take(base.recorded.vms.len()));
        let own_wakeups: Vec<usize> = own_wakeups.copied().collect();
        let mut unknown = unknown(&vms, spans.min().unwrap_or(0), &own_wakeups);
        unknown.extend(unknown_of_moves(&vms));
        let elastic = vms.iter().filter(|vm| vm.is_elastic);
        let facts = |(change, (path, base)): (&HostChange, (&String, &Baseline))| {
            HostRecording::new(&change.host, path, base)
        };
        let changes = rebalance.hosts.iter();
        let recordings = changes.zip(paths.iter().zip(hosts)).map(facts).collect();
        Self {
            recordings,
            refused: fleet.refused,
            elastic: elastic.map(|vm| vm.name.clone()).collect(),
            seeds,
            replays,
            rebalance,
            unknown,
        }
    }
}

/// What an answer about moves leaves out in addition.
fn unknown_of_moves(vms: &[HostVm]) -> Vec<String> {
    let mut lines = vec![
        "The moves themselves: what a migration takes of CPUs, networks and time, and whether storage and \
         networks of the other host allow it."
            .to_owned(),
        "Loads of one moment: recordings of two hosts are not of one time, so that peaks that come together \
         are not seen."
            .to_owned(),
        "Pins, weights and limits of a moved VM: it may use every CPU of its new host, with the default \
         weight and no limit."
            .to_owned(),
    ];
    let waiting = vms
        .iter()
        .filter(|vm| !vm.is_elastic && vm.ready_percent > MUCH_WAITING);
    let waiting: Vec<&str> = waiting.map(|vm| vm.name.as_str()).collect();
    if !waiting.is_empty() {
        lines.push(format!(
            "What {} would do on a host with more time: recorded waiting for over {MUCH_WAITING:.0} % of its \
             time, a VM may have left work undone.",
            waiting.join(", ")
        ));
    }
    lines
}

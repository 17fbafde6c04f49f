//! What a sweep varies in addition to knobs: sizes, workloads by name, and how long runs are.
//!
//! In a scenario file these have places of their own. Variants are compared with each other and keep
//! to one host and one duration; a sweep's points need not.

use stealtime_simulator::config::{Config, WorkloadConfig};

use super::{guests, settings};
use crate::knobs::{KnobError, ValueError};
use crate::spelling::suggestion;
use crate::units::{Plain, show_time, time};

/// The most of each level of the topology, as in `[host]`.
const MOST: u32 = 4096;
/// The longest run, in ns, as in `[run]`.
const LONGEST_NS: u64 = 1_000_000_000_000_000;

/// Names that [`apply`] takes in addition to knobs.
const SIZES: [&str; 7] = [
    "host.cpus",
    "host.sockets",
    "host.llcs_per_socket",
    "host.cores_per_llc",
    "host.threads_per_core",
    "run.duration",
    "run.warmup",
];

/// What can be varied in addition to knobs, and which of them are times.
pub fn sizes() -> impl Iterator<Item = (&'static str, bool)> {
    SIZES
        .into_iter()
        .map(|name| (name, name.starts_with("run.")))
}

/// Sets a knob, a size, a group's workload or how long a run is.
pub(super) fn apply(
    config: &mut Config,
    counts: &mut [u32],
    name: &str,
    value: &str,
) -> Result<(), KnobError> {
    let wrong = |problem| KnobError::Value {
        name: name.to_owned(),
        problem,
    };
    let group = name
        .strip_prefix("vm.")
        .and_then(|rest| rest.strip_suffix(".workload"));
    if let Some(index) = group.and_then(|group| config.vms.iter().position(|vm| vm.name == group)) {
        let known = guests::workloads();
        if !known.contains(&value) {
            let help = suggestion(value, &known);
            return Err(wrong(format!("no workload {value:?}; {help}")));
        }
        if let Some(vm) = config.vms.get_mut(index) {
            vm.workload = WorkloadConfig::named(value);
        }
        return Ok(());
    }
    if !SIZES.contains(&name) {
        return settings::apply(config, counts, name, value);
    }
    if let Some(run) = name.strip_prefix("run.") {
        let (least, field) = match run {
            "duration" => (1_000, &mut config.run.duration_ns),
            _ => (0, &mut config.run.warmup_ns),
        };
        *field = duration(value, least).map_err(|error| wrong(error.to_string()))?;
        return Ok(());
    }
    size(config, name, value).map_err(|error| wrong(error.to_string()))
}

fn duration(text: &str, least: u64) -> Result<u64, ValueError> {
    match time(text, Plain::Refused)? {
        ns if (least..=LONGEST_NS).contains(&ns) => Ok(ns),
        _ => Err(ValueError::OutOfRange {
            value: text.to_owned(),
            min: show_time(least),
            max: show_time(LONGEST_NS),
        }),
    }
}

/// Why a host cannot have a size.
#[derive(Debug, thiserror::Error)]
enum SizeError {
    #[error(transparent)]
    Value(#[from] ValueError),
    #[error(
        "the host has several last-level caches: vary host.sockets, host.llcs_per_socket or \
         host.cores_per_llc"
    )]
    SeveralCaches,
    #[error("{cpus} CPUs are no whole cores of {threads} threads")]
    PartOfCore { cpus: u32, threads: u32 },
    #[error("{0} CPUs: {MOST} at most")]
    TooManyCpus(u64),
}

fn size(config: &mut Config, name: &str, text: &str) -> Result<(), SizeError> {
    let number = text.parse::<u32>().ok();
    let number = number.filter(|number| (1..=MOST).contains(number));
    let number = number.ok_or_else(|| ValueError::out_of_range(text, 1, MOST))?;
    let topology = &mut config.host.topology;
    match name {
        "host.sockets" => topology.sockets = number,
        "host.llcs_per_socket" => topology.llcs_per_socket = number,
        "host.cores_per_llc" => topology.cores_per_llc = number,
        "host.threads_per_core" => topology.threads_per_core = number,
        _ => {
            let threads = topology.threads_per_core.max(1);
            if topology.sockets != 1 || topology.llcs_per_socket != 1 {
                return Err(SizeError::SeveralCaches);
            }
            if number % threads != 0 {
                let cpus = number;
                return Err(SizeError::PartOfCore { cpus, threads });
            }
            topology.cores_per_llc = number / threads;
        }
    }
    let topology = &config.host.topology;
    let factors = [
        topology.sockets,
        topology.llcs_per_socket,
        topology.cores_per_llc,
        topology.threads_per_core,
    ];
    // Each factor is within 13 bits.
    match factors.into_iter().map(u64::from).product::<u64>() {
        cpus if cpus > u64::from(MOST) => Err(SizeError::TooManyCpus(cpus)),
        _ => Ok(()),
    }
}

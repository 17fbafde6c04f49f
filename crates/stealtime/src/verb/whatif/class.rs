//! What one of the two fair classes has and the other has not.

use stealtime_replay::host;
use stealtime_simulator::config::{Cfs, Config};

use super::Base;
use super::ask::Setting;

/// The knob that chooses one.
const FAIR: &str = "sched.fair";

/// Knobs of EEVDF, or of what came with it or later.
const OF_EEVDF: [&str; 4] = [
    "sched.base_slice_ns",
    "sched.pick",
    "sched.preempt",
    "sched.yield_forfeits",
];

/// Knobs of CFS.
const OF_CFS: [&str; 3] = [
    "sched.latency_ns",
    "sched.min_granularity_ns",
    "sched.wakeup_granularity_ns",
];

/// Whether the host has CFS with these settings.
fn is_cfs(settings: &[Setting], base: &Base) -> bool {
    let chosen = settings.iter().rev().find(|setting| setting.0 == FAIR);
    chosen.map_or(base.config.knobs.sched.cfs.is_some(), |setting| {
        setting.1 == "cfs"
    })
}

/// Why one of the settings says nothing of the class that the host has with them, if so.
pub(super) fn lacks(settings: &[Setting], base: &Base) -> Option<String> {
    let cfs = is_cfs(settings, base);
    let (has, other) = if cfs {
        ("CFS", "eevdf")
    } else {
        ("EEVDF", "cfs")
    };
    let of_other = |(name, value): &&Setting| match (cfs, name.as_str()) {
        (true, "sched.features") => {
            let words = value.split([' ', ',']).filter(|word| !word.is_empty());
            let mut names = words.map(|word| word.strip_prefix("NO_").unwrap_or(word));
            !names.all(|name| Cfs::FEATURES.iter().any(|feature| feature.name() == name))
        }
        (true, name) => OF_EEVDF.contains(&name) || name.starts_with("sched.lag_credit."),
        (false, name) => OF_CFS.contains(&name),
    };
    let (name, value) = settings.iter().find(of_other)?;
    Some(format!(
        "{name}={value}: {has} has nothing of it; with --set {FAIR}={other} too it is answered"
    ))
}

/// Makes a host ready for settings that change its class: what it has of the other class alone is undone.
pub(super) fn change(config: &mut Config, settings: &[Setting]) {
    let sched = &mut config.knobs.sched;
    let to_cfs = settings
        .iter()
        .any(|(name, to)| name == FAIR && to == "cfs");
    if to_cfs && sched.cfs.is_none() {
        host::to_cfs(sched);
    }
}

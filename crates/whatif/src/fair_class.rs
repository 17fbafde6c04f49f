//! Knobs that only one of the two fair classes has.

use stealtime_lab::knobs::{Setting, Value};
use stealtime_replay::host;
use stealtime_simulator::config::{Cfs, Config};

use crate::baseline::Baseline;
use crate::question::{FEATURES, feature, words};

/// The knob that chooses the class.
const FAIR: &str = "sched.fair";

/// Knobs of EEVDF, or of kernels that have it.
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

/// Whether a setting chooses CFS; `None` if it chooses no class.
fn chooses_cfs(setting: &Setting) -> Option<bool> {
    let is_cfs = |value: &Value| matches!(value, Value::Words(word) if word == "cfs");
    (setting.name() == FAIR).then(|| setting.value().is_some_and(is_cfs))
}

/// Whether the host has CFS with these settings.
fn is_cfs(settings: &[Setting], base: &Baseline) -> bool {
    // The last one holds.
    let chosen = settings.iter().rev().find_map(chooses_cfs);
    chosen.unwrap_or(base.config.knobs.sched.cfs.is_some())
}

/// Why one of the settings has no effect on the class that the host has with them, if so.
pub(crate) fn lacks(settings: &[Setting], base: &Baseline) -> Option<String> {
    let cfs = is_cfs(settings, base);
    let (class, other) = match cfs {
        true => ("CFS", "eevdf"),
        false => ("EEVDF", "cfs"),
    };
    let is_foreign = |setting: &&Setting| match (cfs, setting.name()) {
        (true, FEATURES) => !words(setting.text()).map(feature).all(cfs_has),
        (true, name) => OF_EEVDF.contains(&name) || name.starts_with("sched.lag_credit."),
        (false, name) => OF_CFS.contains(&name),
    };
    let setting = settings.iter().find(is_foreign)?;
    Some(format!(
        "{setting}: {class} has nothing of it; with --set {FAIR}={other} too it is answered"
    ))
}

/// Whether CFS has the feature of this name.
fn cfs_has(name: &str) -> bool {
    Cfs::FEATURES.iter().any(|feature| feature.name() == name)
}

/// Prepares a host for settings that change its class to CFS: EEVDF's own state is undone.
pub(crate) fn change(config: &mut Config, settings: &[Setting]) {
    let sched = &mut config.knobs.sched;
    let to_cfs = settings.iter().filter_map(chooses_cfs).any(|cfs| cfs);
    if to_cfs && sched.cfs.is_none() {
        host::to_cfs(sched);
    }
}

//! Knobs that only one of the schedulers has.

use stealtime_lab::knobs::{FairClass, Setting, Value};
use stealtime_replay::host;
use stealtime_simulator::config::{Cfs, Config, SchedPolicy};

use crate::baseline::Baseline;
use crate::plan::Plan;
use crate::question::{FEATURES, feature, words};

/// The knob that chooses the class.
const FAIR: &str = "sched.fair";

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

/// The knob that chooses the scheduler.
const POLICY: &str = "sched.policy";

/// Whether the host has `scx_stealtime` with these settings.
fn is_scx(settings: &[Setting], base: &Baseline) -> bool {
    let is_fair = |value: &Value| matches!(value, Value::Words(word) if word == "fair");
    let mut policies = settings
        .iter()
        .rev()
        .filter(|setting| setting.name() == POLICY);
    match policies.next() {
        Some(setting) => !setting.value().is_some_and(is_fair),
        None => base.config.knobs.sched.policy != SchedPolicy::Fair,
    }
}

/// What replays of these plans do with recorded moves, where one has `scx_stealtime`.
pub(crate) fn dropped_moves(plans: &[Plan], base: &Baseline) -> Option<String> {
    let has_scx = |plan: &Plan| {
        let settings: Vec<Setting> = plan.settings().cloned().collect();
        is_scx(&settings, base)
    };
    plans.iter().any(has_scx).then(|| {
        format!(
            "with {POLICY}=scx-stealtime recorded moves between CPUs are dropped: the queue that CPUs of a cache \
             share places tasks"
        )
    })
}

/// Whether `scx_stealtime` knows a knob of the fair class.
fn scx_has(setting: &Setting) -> bool {
    let name = setting.name();
    let is_of_class = name == FAIR || name == FEATURES;
    name == "sched.base_slice_ns"
        || !is_of_class && setting.knob().is_none_or(|knob| knob.class.is_none())
}

/// Why one of the settings has no effect on the class that the host has with them, if so.
pub(crate) fn lacks(settings: &[Setting], base: &Baseline) -> Option<String> {
    if is_scx(settings, base) {
        let setting = settings.iter().find(|setting| !scx_has(setting))?;
        return Some(format!(
            "{setting}: scx_stealtime has nothing of it; with {POLICY}=fair it is answered"
        ));
    }
    let cfs = is_cfs(settings, base);
    let (class, alternative) = match cfs {
        true => ("CFS", "eevdf"),
        false => ("EEVDF", "cfs"),
    };
    let foreign = if cfs {
        FairClass::Eevdf
    } else {
        FairClass::Cfs
    };
    let is_foreign = |setting: &&Setting| match setting.name() {
        FEATURES => cfs && !words(setting.text()).map(feature).all(cfs_has),
        _ => setting.knob().and_then(|knob| knob.class) == Some(foreign),
    };
    let setting = settings.iter().find(is_foreign)?;
    Some(format!(
        "{setting}: {class} has nothing of it; with --set {FAIR}={alternative} too it is answered"
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

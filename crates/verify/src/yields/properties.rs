//! What must hold of directed yields, and how their state is shown.

use super::{Local, THIRD, VCPUS, WINDOW_NS, Wrong};
use crate::model::Violation;

/// What is wrong with a state.
pub(super) fn violation(local: &Local) -> Option<Violation> {
    let (property, sentence) = match local.wrong? {
        Wrong::Sums { cpu } => (
            "sums-agree",
            format!("the sums of CPU {cpu}'s queues are not what their members add up to"),
        ),
        Wrong::Lag { lag, bound } => (
            "lag-in-bounds",
            format!("a credited target has a lag of {lag} ns; it must be within [0, {bound}]"),
        ),
        Wrong::Forced { cpu, apart_ns } => (
            "forced-once",
            format!(
                "CPU {cpu} was forced to reschedule twice within {apart_ns} ns; once per \
                 {WINDOW_NS} ns is allowed"
            ),
        ),
        Wrong::NoSuchTarget { spinner, named } => (
            "hint-exists",
            format!("vCPU {spinner} yields to vCPU {named} of {VCPUS}"),
        ),
    };
    Some(Violation::new(property, sentence))
}

fn name(task: Option<u8>) -> String {
    match task {
        Some(n) if usize::from(n) == THIRD => "third party".to_owned(),
        Some(n) => format!("vCPU {n}"),
        None => "idle".to_owned(),
    }
}

/// The model's own state.
pub(super) fn shown(local: &Local) -> Vec<(&'static str, String)> {
    let forced = |time_ns: Option<u64>| time_ns.map_or("never".to_owned(), |ns| format!("{ns} ns"));
    vec![
        ("CPU 0 runs", name(local.sched.running(0))),
        ("CPU 1 runs", name(local.sched.running(1))),
        ("time", format!("{} ns", local.now_ns)),
        ("CPU 0 forced", forced(local.forced[0])),
        ("CPU 1 forced", forced(local.forced[1])),
    ]
}

/// A shared word's content.
pub(super) fn word(slot: usize, value: u64) -> String {
    if slot >= VCPUS {
        return format!("{value:#x}");
    }
    let flags = ["ready", "preempted", "in kernel", "spins", "eligible"];
    let set = flags
        .iter()
        .enumerate()
        .filter(|(bit, _)| value >> bit & 1 != 0);
    let names: Vec<&str> = set.map(|(_, name)| *name).collect();
    format!("{{{}}}", names.join(", "))
}

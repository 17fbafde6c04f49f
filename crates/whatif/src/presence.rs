//! VMs, vCPUs and tasks that are present for a part of the recording, or never ran.

use std::collections::BTreeSet;

use serde::Serialize;
use stealtime_replay::Recording;
use stealtime_track::names::vcpu_in_name;

use crate::recorded::Recorded;

/// A vCPU or a VM, or tasks of the host, that the recording has for a part of its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Partly {
    /// `vm1`, `vm1 vCPU 0`.
    pub who: String,
    /// When it begins, in ns of the recording; `None` with the recording, or before.
    pub from_ns: Option<u64>,
    /// Whether its fork was recorded; otherwise it was first seen then.
    pub begin_is_recorded: bool,
    /// When it ends; `None` with the recording, or after.
    pub to_ns: Option<u64>,
}

/// The subject that is present for a part of the time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Presence {
    /// VMs and vCPUs that begin or end in the middle.
    pub partly: Vec<Partly>,
    /// Tasks that are no vCPUs and begin in the middle.
    pub tasks_begin: usize,
    /// Tasks that are no vCPUs and end in the middle.
    pub tasks_end: usize,
    /// vCPUs that never ran.
    pub never_ran: Vec<String>,
}

impl Presence {
    /// Of the whole recording.
    pub(crate) fn new(recorded: &Recorded) -> Self {
        let recording = &recorded.recording;
        let mut partly = Vec::new();
        for (vm, name) in recorded.vms.iter().enumerate() {
            of_vm(recording, vm, name, &mut partly);
        }
        let non_vcpus = || recording.tasks.iter().filter(|task| task.vcpu.is_none());
        let begins = non_vcpus().filter(|task| task.begins.is_some_and(|begins| begins.is_seen));
        Self {
            partly,
            tasks_begin: begins.count(),
            tasks_end: non_vcpus().filter(|task| task.ends_ns.is_some()).count(),
            never_ran: never_ran(recorded),
        }
    }

    /// As sentences.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
        let mut lines: Vec<String> = self
            .partly
            .iter()
            .map(|row| {
                let begin = row.from_ns.map(|ns| match row.begin_is_recorded {
                    true => format!("begins at {}", seconds(ns)),
                    false => format!("is first seen at {}", seconds(ns)),
                });
                let end = row.to_ns.map(|ns| format!("ends at {}", seconds(ns)));
                let limits: Vec<String> = begin.into_iter().chain(end).collect();
                format!(
                    "{} {}: so it does in replays, and is not counted as halted meanwhile",
                    row.who,
                    limits.join(" and ")
                )
            })
            .collect();
        if self.tasks_begin + self.tasks_end > 0 {
            lines.push(format!(
                "of the tasks that are no vCPUs {} begin in the middle and {} end, in replays too",
                self.tasks_begin, self.tasks_end
            ));
        }
        if !self.never_ran.is_empty() {
            lines.push(format!(
                "never ran: {}. Nothing is known of what they would do: they are left out",
                self.never_ran.join(", ")
            ));
        }
        lines
    }
}

/// A VM as a whole if all of its vCPUs begin and end together, to 100 ms; else one by one.
fn of_vm(recording: &Recording, vm: usize, name: &str, partly: &mut Vec<Partly>) {
    const TOGETHER_NS: u64 = 100_000_000;
    let mut vcpus = Vec::new();
    for task in &recording.tasks {
        if let Some((_, number)) = task.vcpu.filter(|vcpu| vcpu.0 == vm) {
            vcpus.push(Partly {
                who: format!("{name} vCPU {number}"),
                from_ns: task.begins.map(|begins| begins.at_ns),
                begin_is_recorded: task.begins.is_none_or(|begins| begins.is_seen),
                to_ns: task.ends_ns,
            });
        }
    }
    let near = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= TOGETHER_NS,
        (a, b) => a == b,
    };
    let (Some(first), true) = (vcpus.first().cloned(), vcpus.len() > 1) else {
        partly.extend(vcpus.into_iter().filter(is_partly));
        return;
    };
    let together = |vcpu: &Partly| {
        near(vcpu.from_ns, first.from_ns)
            && near(vcpu.to_ns, first.to_ns)
            && vcpu.begin_is_recorded == first.begin_is_recorded
    };
    if vcpus.iter().all(together) {
        let whole = Partly {
            who: name.to_owned(),
            from_ns: vcpus.iter().filter_map(|vcpu| vcpu.from_ns).min(),
            to_ns: vcpus.iter().filter_map(|vcpu| vcpu.to_ns).max(),
            ..first
        };
        vcpus = vec![whole];
    }
    partly.extend(vcpus.into_iter().filter(is_partly));
}

fn is_partly(row: &Partly) -> bool {
    row.from_ns.is_some() || row.to_ns.is_some()
}

/// vCPUs that never got a CPU. The recording has their threads' names or events of other tasks about
/// them; of others only the numbers are missing among those of a VM.
fn never_ran(recorded: &Recorded) -> Vec<String> {
    let recording = &recorded.recording;
    let mut found: Vec<(usize, u32)> = recording.never_ran.clone();
    for (vm, of_vm) in recorded.answers.vms.iter().enumerate() {
        let numbers: Vec<u32> = recorded
            .answers
            .vcpus
            .iter()
            .filter(|time| time.vm == of_vm.vm)
            .map(|time| time.vcpu)
            .collect();
        found.extend(missing(&numbers).into_iter().map(|number| (vm, number)));
        let threads = recording.unseen.iter();
        let of_process = threads.filter(|thread| Some(thread.process) == of_vm.pid);
        let named = of_process.filter_map(|thread| vcpu_in_name(&thread.name));
        found.extend(
            named
                .filter(|id| !numbers.contains(&id.0))
                .map(|id| (vm, id.0)),
        );
    }
    found.sort_unstable();
    found.dedup();
    let name = |&(vm, number): &(usize, u32)| {
        let vm = recorded.vms.get(vm).map_or("?", String::as_str);
        format!("{vm} vCPU {number}")
    };
    found.iter().map(name).collect()
}

/// The numbers below the last one of a VM's vCPUs that none of them has. vCPUs are numbered from 0, but
/// ids of some topologies have gaps. Where gaps are as many as vCPUs, no number counts as missing.
fn missing(numbers: &[u32]) -> Vec<u32> {
    let present: BTreeSet<u32> = numbers.iter().copied().collect();
    let Some(&last) = present.last() else {
        return Vec::new();
    };
    // Counted before they are listed: a broken recording may have any number.
    if last as usize + 1 - present.len() >= numbers.len() {
        return Vec::new();
    }
    (0..last)
        .filter(|number| !present.contains(number))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn numbers_are_missing_where_most_are_there() {
        assert_eq!(missing(&[0, 1, 3]), [2]);
        assert_eq!(missing(&[8, 0, 4, 6, 2]), [1, 3, 5, 7]);
        // As many as there are: a topology's gaps.
        assert!(missing(&[1, 3]).is_empty());
        assert!(missing(&[0, 1, u32::MAX - 1]).is_empty());
        assert!(missing(&[]).is_empty());
        // The one that is not known is the highest there is.
        assert!(missing(&[0, 1, 4_160_749_568, u32::MAX]).is_empty());
    }
}

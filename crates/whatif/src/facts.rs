//! What `analyze` says of a recording, as sums that knobs are chosen by.

use std::collections::BTreeMap;

use stealtime_analysis::{Answers, per_mille, rounded_per_mille};

/// A VM's time, in ns of all its vCPUs.
#[derive(Debug, Clone, Default)]
pub(crate) struct Vm {
    pub(crate) name: String,
    pub(crate) vcpus: u32,
    pub(crate) lived: u64,
    pub(crate) on_cpu: u64,
    pub(crate) woken: u64,
    pub(crate) preempted: u64,
    pub(crate) polled: u64,
    pub(crate) wasted: u64,
    /// Waiting for a CPU by its cause.
    causes: BTreeMap<String, u64>,
}

impl Vm {
    pub(crate) fn waited_for(&self, cause: &str) -> u64 {
        self.causes.get(cause).copied().unwrap_or(0)
    }

    /// Whether so much time of it is worth a try: from 1 % of its vCPUs' time on.
    pub(crate) fn minds(&self, ns: u64) -> bool {
        per_mille(ns, self.lived) >= WORTH_PER_MILLE
    }
}

/// From this share of vCPUs' time on something is worth a try: less is not distinguished from what replays
/// are off by.
const WORTH_PER_MILLE: u64 = 10;

/// A recording's time.
#[derive(Debug)]
pub(crate) struct Facts {
    pub(crate) vms: Vec<Vm>,
    /// Waiting of all vCPUs for tasks of these names, by the cause.
    pub(crate) by_task: BTreeMap<(String, String), u64>,
    lived: u64,
}

impl Facts {
    /// Of the whole recording.
    pub(crate) fn new(answers: &Answers) -> Self {
        let mut vms: Vec<Vm> = Vec::new();
        for vm in &answers.vms {
            let mut facts = Vm {
                name: vm.vm.clone(),
                ..Vm::default()
            };
            for time in answers.vcpus.iter().filter(|time| time.vm == vm.vm) {
                facts.vcpus += 1;
                facts.lived += time.span_ns;
                facts.on_cpu += time.on_cpu_ns;
                facts.woken += time.wake_wait_ns;
                facts.preempted += time.preempted_ns;
                facts.polled += time.poll_ns.unwrap_or(0);
                facts.wasted += time.poll_wasted_ns;
            }
            for ready in answers.ready.iter().filter(|row| row.vm == vm.vm) {
                *facts.causes.entry(ready.cause.clone()).or_default() += ready.ns;
            }
            vms.push(facts);
        }
        let mut by_task = BTreeMap::new();
        for ready in answers.ready.iter().filter(|row| !row.who.is_empty()) {
            let key = (ready.cause.clone(), ready.who.clone());
            *by_task.entry(key).or_default() += ready.ns;
        }
        let lived = vms.iter().map(|vm| vm.lived).sum();
        Self {
            vms,
            by_task,
            lived,
        }
    }

    /// The sum over all VMs.
    pub(crate) fn all(&self, time: impl Fn(&Vm) -> u64) -> u64 {
        self.vms.iter().map(time).sum()
    }

    /// Whether so much time of all vCPUs is worth a try.
    pub(crate) fn minds(&self, ns: u64) -> bool {
        per_mille(ns, self.lived) >= WORTH_PER_MILLE
    }

    /// `12.3% of vCPUs' time (456 ms)`
    pub(crate) fn share(&self, ns: u64) -> String {
        share(ns, self.lived)
    }
}

/// `12.3% of vCPUs' time (456 ms)`
pub(crate) fn share(ns: u64, lived: u64) -> String {
    let tenths = rounded_per_mille(ns, lived);
    let (whole, tenth) = (tenths / 10, tenths % 10);
    let ms = ns.saturating_add(500_000) / 1_000_000;
    format!("{whole}.{tenth}% of vCPUs' time ({ms} ms)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_as_in_tables() {
        assert_eq!(share(2_000_000, 3_000_000), "66.7% of vCPUs' time (2 ms)");
        assert_eq!(share(1_500_000, 0), "0.0% of vCPUs' time (2 ms)");
    }
}

//! Sums over all samples, by VM.

use std::collections::BTreeMap;

use stealtime_collector::{Buckets, Classes, Sample, Times, Vm};
use stealtime_host::{Scheduler, Share};

use crate::watched::{Cost, VmFacts};

/// Exit reasons of a VM that are kept apart; further ones are [`OTHERS`].
pub(super) const MAX_REASONS: usize = 64;
/// Longest value of a label, in characters.
const MAX_LABEL: usize = 200;
/// A VM that no sample had for so long, in ns of the trace's clock, has ended.
const GONE_NS: u64 = 600_000_000_000;
/// The name of what is not kept apart.
const OTHERS: &str = "(others)";

/// Labels of a VM: names and values.
pub(super) type Labels = Vec<(&'static str, String)>;

/// Sums of one VM.
#[derive(Debug, Clone, Default)]
pub(super) struct VmTotals {
    pub(super) labels: Labels,
    /// The manager, and the process.
    pub(super) manager: String,
    pub(super) pid: Option<i32>,
    /// vCPUs in the latest sample.
    pub(super) vcpus: u64,
    pub(super) times: Times,
    pub(super) wakeups: Classes,
    pub(super) wakeup_buckets: Buckets,
    pub(super) stalls: Classes,
    pub(super) stall_buckets: Buckets,
    /// Numbers of exits and their time in ns, by reason.
    pub(super) exits: BTreeMap<String, (u64, u64)>,
    /// End of the latest sample that has it, in ns.
    seen: u64,
}

/// Sums of a host.
#[derive(Debug, Clone, Default)]
pub(super) struct Totals {
    /// By the VM's name.
    pub(super) vms: BTreeMap<String, VmTotals>,
    /// Time of the host's CPUs with vCPU threads, other tasks, and without any, in ns.
    pub(super) cpu_ns: [u64; 3],
    pub(super) cpus: u64,
    pub(super) events: u64,
    pub(super) lost: u64,
    pub(super) lost_gaps: u64,
    pub(super) samples: u64,
    pub(super) partial: u64,
    /// What collecting has cost.
    pub(super) cost: Cost,
    /// What scx_stealtime has counted, if it schedules the host.
    pub(super) scheduler: Option<Scheduler>,
    /// Shares of CPU time between its latest two counts with run time.
    shares: Vec<Share>,
    max_vms: usize,
}

impl Totals {
    /// No sums yet, of so many VMs at most.
    pub(super) fn new(max_vms: usize) -> Self {
        Self {
            max_vms,
            ..Self::default()
        }
    }

    /// VMs, and control groups, with metrics of their own.
    pub(super) const fn max_vms(&self) -> usize {
        self.max_vms
    }

    /// Takes the counts of the loaded scheduler, if there is one.
    pub(super) fn set_scheduler(&mut self, scheduler: Option<Scheduler>) {
        let recent = scheduler
            .as_ref()
            .map(|now| now.since(self.scheduler.as_ref()));
        let shares = recent.map(|recent| recent.shares());
        // A file that was not written since shows no run time.
        if shares.as_ref().is_none_or(|shares| !shares.is_empty()) {
            self.shares = shares.unwrap_or_default();
        }
        self.scheduler = scheduler;
    }

    /// Shares of CPU time by control group, with those that are due.
    pub(super) fn shares(&self) -> &[Share] {
        &self.shares
    }

    /// Adds a sample. `facts` knows the VMs of processes.
    pub(super) fn add<'f>(
        &mut self,
        sample: &Sample,
        cost: &Cost,
        facts: impl Fn(i32) -> Option<&'f VmFacts>,
    ) {
        self.vms.values_mut().for_each(|totals| totals.vcpus = 0);
        for vm in &sample.vms {
            self.add_vm(vm, sample.end_ns, vm.pid.and_then(&facts));
        }
        let end = sample.end_ns;
        self.vms.retain(|_, vm| {
            // The clock may have been set back.
            vm.seen = vm.seen.min(end);
            end - vm.seen <= GONE_NS
        });
        for cpu in &sample.cpus {
            let parts = [cpu.vcpu_ns, cpu.other_ns, cpu.idle_ns];
            let sums = self.cpu_ns.iter_mut().zip(parts);
            sums.for_each(|(sum, ns)| *sum += ns);
        }
        self.cpus = sample.cpus.len() as u64;
        self.events += sample.events;
        self.lost += sample.lost;
        self.lost_gaps += sample.lost_gaps;
        self.samples += 1;
        self.partial += u64::from(sample.partial);
        self.cost.add(cost);
    }

    fn add_vm(&mut self, vm: &Vm, end: u64, facts: Option<&VmFacts>) {
        // Its sums from before its name was known.
        let fallback = vm.pid.map(|pid| format!("pid{pid}"));
        let fallback = fallback.filter(|fallback| *fallback != vm.vm);
        let unnamed = fallback.and_then(|fallback| self.vms.remove(&fallback));
        let apart = self.vms.len() - usize::from(self.vms.contains_key(OTHERS));
        let is_kept = self.vms.contains_key(&vm.vm) || apart < self.max_vms;
        let key = if is_kept { vm.vm.as_str() } else { OTHERS };
        let totals = self.vms.entry(key.to_owned()).or_default();
        totals.seen = end;
        totals.vcpus += vm.vcpus.iter().filter(|vcpu| !vcpu.has_ended).count() as u64;
        totals.labels = vec![("vm", shortened(key))];
        if let Some(facts) = facts.filter(|_| is_kept) {
            let named = [
                ("domain", &facts.domain),
                ("namespace", &facts.namespace),
                ("pod", &facts.pod),
            ];
            for (label, value) in named {
                totals
                    .labels
                    .extend(value.iter().map(|value| (label, shortened(value))));
            }
            totals.manager.clone_from(&facts.manager);
        }
        totals.pid = vm.pid.filter(|_| is_kept);
        if let Some(unnamed) = unnamed {
            totals.merge(&unnamed);
        }
        totals.times.add(&vm.times);
        totals.wakeups.add(&vm.wakeup_classes);
        totals.wakeup_buckets.add(&vm.wakeup_buckets);
        totals.stalls.add(&vm.stall_classes);
        totals.stall_buckets.add(&vm.stall_buckets);
        for row in &vm.exits_by_reason {
            let has_room =
                totals.exits.contains_key(&row.reason) || totals.exits.len() < MAX_REASONS;
            let reason = if has_room {
                row.reason.as_str()
            } else {
                OTHERS
            };
            let sums = totals.exits.entry(reason.to_owned()).or_default();
            sums.0 += row.count;
            sums.1 += row.ns;
        }
    }
}

impl VmTotals {
    /// Adds the sums of another.
    fn merge(&mut self, added: &Self) {
        self.times.add(&added.times);
        self.wakeups.add(&added.wakeups);
        self.wakeup_buckets.add(&added.wakeup_buckets);
        self.stalls.add(&added.stalls);
        self.stall_buckets.add(&added.stall_buckets);
        for (reason, sums) in &added.exits {
            let sum = self.exits.entry(reason.clone()).or_default();
            sum.0 += sums.0;
            sum.1 += sums.1;
        }
    }
}

/// A label's value. One that is too long is cut, and ends with a hash of the whole. Otherwise two series
/// could have the same labels, which Prometheus refuses.
pub(super) fn shortened(value: &str) -> String {
    if value.chars().count() <= MAX_LABEL {
        return value.to_owned();
    }
    let end = format!("~{:08x}", hash(value));
    let begin = value.chars().take(MAX_LABEL - end.len());
    begin.chain(end.chars()).collect()
}

/// FNV-1a, which is the same in each version of this program: labels stay as they are.
fn hash(text: &str) -> u32 {
    let bytes = text.bytes().map(u32::from);
    bytes.fold(0x811c_9dc5, |hash, byte| {
        (hash ^ byte).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn sample(name: &str, end_ns: u64) -> Sample {
        let times = Times {
            guest_ns: 10,
            ..Times::default()
        };
        Sample {
            end_ns,
            vms: vec![Vm {
                vm: name.to_owned(),
                pid: Some(7),
                times,
                ..Vm::default()
            }],
            ..Sample::default()
        }
    }

    #[test]
    fn a_vm_keeps_its_sums_when_its_name_is_found() {
        let mut totals = Totals::new(10);
        for name in ["pid7", "pid7", "web"] {
            totals.add(&sample(name, 1), &Cost::default(), |_| None);
        }
        let names: Vec<&String> = totals.vms.keys().collect();
        assert_eq!(names, ["web"]);
        assert_eq!(totals.vms["web"].times.guest_ns, 30);
    }

    #[test]
    fn a_clock_that_jumps_takes_no_counter_back() {
        const HOUR: u64 = 3_600_000_000_000;
        let mut totals = Totals::new(10);
        let mut former = 0;
        for (number, hour) in [1, 5, 2, 2, 9, 0].into_iter().enumerate() {
            let mut sample = sample("web", hour * HOUR);
            if number == 1 {
                sample.vms.push(Vm {
                    vm: "old".to_owned(),
                    ..Vm::default()
                });
            }
            totals.add(&sample, &Cost::default(), |_| None);
            let guest = totals.vms["web"].times.guest_ns;
            assert_eq!(guest, former + 10, "hour {hour}");
            former = guest;
            // A VM that has ended goes with time, though its last sample is from the future.
            assert_eq!(totals.vms.contains_key("old"), matches!(number, 1..=3));
        }
    }

    #[test]
    fn long_values_are_cut_and_stay_apart() {
        let long = "x".repeat(MAX_LABEL);
        assert_eq!(shortened(&long), long);
        let labels = ["0", "1"].map(|end| shortened(&format!("{long}{end}")));
        assert_eq!(
            labels.each_ref().map(|label| label.len()),
            [MAX_LABEL, MAX_LABEL]
        );
        assert_ne!(labels[0], labels[1]);
        // The reference value of FNV-1a.
        assert_eq!(hash("foobar"), 0xbf9c_f968);
        let mut totals = Totals::new(10);
        for end in ["0", "1"] {
            let mut sample = sample(&format!("{long}{end}"), 1);
            sample.vms[0].pid = None;
            totals.add(&sample, &Cost::default(), |_| None);
        }
        let labels: BTreeSet<&Labels> = totals.vms.values().map(|vm| &vm.labels).collect();
        assert_eq!(labels.len(), 2);
    }

    #[test]
    fn the_number_of_series_is_bounded() {
        let mut totals = Totals::new(2);
        for number in 0..100 {
            let mut sample = sample(&format!("vm{number}"), 1);
            sample.vms[0].pid = None;
            sample.vms[0].exits_by_reason = (0..10)
                .map(|reason| stealtime_collector::Exits {
                    reason: format!("{number}-{reason}"),
                    count: 1,
                    ns: 1,
                })
                .collect();
            totals.add(&sample, &Cost::default(), |_| None);
        }
        assert_eq!(totals.vms.len(), 3);
        let all: u64 = totals.vms.values().map(|vm| vm.times.guest_ns).sum();
        assert_eq!(all, 1000);
        assert!(totals.vms[OTHERS].exits.len() <= MAX_REASONS + 1);
        // A VM that is gone goes with its series.
        totals.add(&sample("late", GONE_NS + 2), &Cost::default(), |_| None);
        assert!(totals.vms.len() <= 2, "{}", totals.vms.len());
    }
}

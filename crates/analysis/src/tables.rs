//! The tables of the answers, made of what was counted per vCPU thread.

use std::collections::BTreeMap;

use stealtime_events::Names;
use stealtime_events::exit_reason::Class;

use crate::Analysis;
use crate::account::Account;
use crate::answers::{
    Bucket, HaltPolls, Interrupts, KeyRow, Latency, Ready, ReasonTime, VcpuTime, Yields,
};
use crate::interrupts::vector_name;
use crate::keys::{IOPORT_MARKS, Key, KeyTable, MMIO_MARKS, MSR_MARKS, Marks, shown};
use crate::latency::{BACKENDS, WAKERS};
use crate::stats::{Durations, Histogram, finish_rows};
use crate::vms::Group;
use crate::yields::OTHER_TARGETS;
use stealtime_track::names::is_kernel_name;
use stealtime_track::{Cause, Thread, ThreadIndex, VcpuIndex};

/// `kthreadd`, which all threads of the kernel descend from.
const KTHREADD: i32 = 2;

/// Everything that the tables are made of.
pub(crate) struct Tables<'a> {
    pub(crate) analysis: &'a Analysis,
    pub(crate) names: &'a dyn Names,
    /// All VMs, selected or not.
    pub(crate) groups: &'a [Group],
    /// VMM threads and their VMs.
    pub(crate) vmm: &'a BTreeMap<ThreadIndex, Option<usize>>,
    /// The VM of each vCPU, by index.
    pub(crate) vm_of: &'a BTreeMap<VcpuIndex, usize>,
}

impl<'a> Tables<'a> {
    /// Whether a VM is selected.
    pub(crate) fn has_vm(&self, name: &str) -> bool {
        let vms = &self.analysis.sums().options.selection.vms;
        vms.is_empty() || vms.iter().any(|vm| vm == name)
    }

    /// The selected vCPUs of a VM.
    pub(crate) fn vcpus_of(&self, group: &'a Group) -> impl Iterator<Item = VcpuIndex> {
        let selected = &self.analysis.sums().options.selection.vcpus;
        let analysis = self.analysis;
        (group.vcpus.iter().copied())
            .filter(move |&vcpu| selected.is_empty() || selected.contains(&analysis.id(vcpu)))
    }

    /// Their accounts.
    pub(crate) fn accounts(&self, group: &'a Group) -> impl Iterator<Item = &'a Account> {
        let analysis = self.analysis;
        self.vcpus_of(group).map(|vcpu| analysis.account(vcpu))
    }

    /// The selected VMs.
    pub(crate) fn selected(&self) -> impl Iterator<Item = &'a Group> {
        let groups = self.groups;
        groups.iter().filter(|group| self.has_vm(&group.name))
    }

    /// Exits by VM and reason, and by reason.
    pub(crate) fn exits(&self) -> (Vec<KeyRow>, Vec<KeyRow>) {
        let mut totals = BTreeMap::<String, Durations>::new();
        let mut rows = Vec::new();
        for group in self.selected() {
            for (name, durations) in self.exits_of(group) {
                rows.push(durations.row(&group.name, &name));
                totals.entry(name).or_default().merge(&durations);
            }
        }
        let total = totals
            .iter()
            .map(|(name, durations)| durations.row("*", name));
        (finished(rows), finished(total.collect()))
    }

    /// Exits of a VM by reason.
    fn exits_of(&self, group: &'a Group) -> BTreeMap<String, Durations> {
        let mut reasons = BTreeMap::<String, Durations>::new();
        for account in self.accounts(group) {
            for (reason, counted) in account.reasons() {
                if counted.durations.stats.n > 0 {
                    let name = self.analysis.reason_name(reason);
                    reasons.entry(name).or_default().merge(&counted.durations);
                }
            }
        }
        reasons
    }

    /// One of the further tables of perf, over all VMs selected.
    pub(crate) fn keys(&self, table: &KeyTable, marks: Marks) -> Vec<KeyRow> {
        let mut rows = BTreeMap::<String, Durations>::new();
        for (key, durations) in table.rows() {
            if self.has_key(key) {
                rows.entry(shown(key, marks)).or_default().merge(durations);
            }
        }
        finished(
            rows.iter()
                .map(|(name, durations)| durations.row("*", name))
                .collect(),
        )
    }

    fn has_key(&self, key: Key) -> bool {
        let vcpu = VcpuIndex(key.vcpu);
        let Some(&vm) = self.vm_of.get(&vcpu) else {
            // The row of keys beyond the limit is no vCPU's.
            return key.vcpu == u32::MAX;
        };
        let selected = &self.analysis.sums().options.selection.vcpus;
        let group = self.groups.get(vm);
        group.is_some_and(|group| self.has_vm(&group.name))
            && (selected.is_empty() || selected.contains(&self.analysis.id(vcpu)))
    }

    /// msr, ioport and mmio.
    pub(crate) fn all_keys(&self) -> [Vec<KeyRow>; 3] {
        let keys = &self.analysis.sums().keys;
        [
            self.keys(&keys.msr, MSR_MARKS),
            self.keys(&keys.ioport, IOPORT_MARKS),
            self.keys(&keys.mmio, MMIO_MARKS),
        ]
    }

    /// The time split of each vCPU.
    pub(crate) fn vcpus(&self) -> Vec<VcpuTime> {
        let mut rows = Vec::new();
        for group in self.selected() {
            rows.extend(self.vcpus_of(group).map(|vcpu| self.vcpu(group, vcpu)));
        }
        rows
    }

    fn vcpu(&self, group: &Group, vcpu: VcpuIndex) -> VcpuTime {
        let account = self.analysis.account(vcpu);
        let time = &account.time;
        let thread = self.analysis.thread_of(vcpu);
        let poll = time.poll_useful + time.poll_wasted;
        let exit: u64 = account.slots.iter().map(|slot| slot.ns).sum();
        let on_cpu = time.guest + exit + poll + time.mode_unknown;
        let reasons = self.analysis.tracker.reasons();
        let spun = (account.reasons())
            .filter(|entry| reasons.class(entry.0) == Class::Pause)
            .map(|entry| entry.1.ns);
        let spin = time.spin + spun.sum::<u64>();
        VcpuTime {
            vm: group.name.clone(),
            vm_guessed: false,
            vcpu: self.analysis.id(vcpu),
            task: shown_name(thread, self.names),
            tid: thread.tid.0,
            span_ns: on_cpu + time.halt + time.preempted + time.wake_wait,
            on_cpu_ns: on_cpu,
            guest_ns: account.has_exits.then_some(time.guest),
            exit_ns: account.has_exits.then_some(exit),
            poll_ns: Some(poll),
            halt_ns: time.halt,
            preempted_ns: time.preempted,
            wake_wait_ns: time.wake_wait,
            blocked_ns: time.blocked,
            poll_useful_ns: time.poll_useful,
            poll_wasted_ns: time.poll_wasted,
            polls_at_first: account.polls_at_first(),
            spin_ns: account.has_exits.then_some(spin),
            unknown_ns: time.unknown,
            exit_ns_by_reason: self.reason_times(account),
        }
    }

    fn reason_times(&self, account: &Account) -> Vec<ReasonTime> {
        let mut by_name = BTreeMap::<String, (u64, u64)>::new();
        for (reason, counted) in account.reasons() {
            if counted.count > 0 || counted.ns > 0 {
                let sums = by_name
                    .entry(self.analysis.reason_name(reason))
                    .or_default();
                sums.0 += counted.count;
                sums.1 += counted.ns;
            }
        }
        let mut rows: Vec<ReasonTime> = by_name
            .into_iter()
            .map(|(reason, (count, ns))| ReasonTime { reason, count, ns })
            .collect();
        rows.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.reason.cmp(&b.reason)));
        rows
    }

    /// What had the CPU while each vCPU waited.
    pub(crate) fn ready(&self) -> Vec<Ready> {
        let mut rows = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            if !self.has_vm(&group.name) {
                continue;
            }
            for vcpu in self.vcpus_of(group) {
                let mut causes = BTreeMap::<(&'static str, String), u64>::new();
                for (&cause, &ns) in &self.analysis.account(vcpu).ready {
                    *causes.entry(self.cause(cause, number)).or_default() += ns;
                }
                let mut waits: Vec<Ready> = causes
                    .into_iter()
                    .map(|((cause, occupant), ns)| Ready {
                        vm: group.name.clone(),
                        vm_guessed: false,
                        vcpu: self.analysis.id(vcpu),
                        cause: cause.to_owned(),
                        who: occupant,
                        ns,
                    })
                    .collect();
                waits.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.who.cmp(&b.who)));
                rows.append(&mut waits);
            }
        }
        rows
    }

    pub(crate) fn cause(&self, cause: Cause, waiting: usize) -> (&'static str, String) {
        if let Some(softirq) = cause.softirq_name() {
            return ("irq", softirq.to_owned());
        }
        match cause {
            Cause::HARDIRQ => ("irq", "hardirq".to_owned()),
            Cause::THROTTLED => ("throttled", String::new()),
            Cause::OTHERS => ("host_task", "(others)".to_owned()),
            _ => match cause.thread() {
                Some(ThreadIndex::IDLE) => ("idle", String::new()),
                Some(thread) => self.task_cause(thread, waiting),
                None => ("unknown", String::new()),
            },
        }
    }

    fn task_cause(&self, id: ThreadIndex, waiting: usize) -> (&'static str, String) {
        let thread = self.analysis.tracker.threads().get(id);
        let name = shown_name(thread, self.names);
        let vm = thread.vcpu.and_then(|vcpu| self.vm_of.get(&vcpu)).copied();
        if let Some(vm) = vm {
            return if vm == waiting {
                ("vcpu_same_vm", name)
            } else {
                let name = self.groups.get(vm).map_or("", |group| &group.name);
                ("vcpu_other_vm", name.to_owned())
            };
        }
        if self.vmm.contains_key(&id) {
            ("vmm_thread", name)
        } else if thread.parent.0 == KTHREADD || is_kernel_name(&name) {
            ("kernel_thread", name)
        } else {
            ("host_task", name)
        }
    }

    /// Latencies by VM and kind.
    pub(crate) fn latencies(&self) -> Vec<Latency> {
        let mut rows = Vec::new();
        for group in self.selected() {
            let kinds = self.latencies_of(group).into_iter();
            rows.extend(kinds.map(|((kind, detail), histogram)| Latency {
                vm: group.name.clone(),
                vm_guessed: false,
                kind: kind.to_owned(),
                detail: detail.to_owned(),
                count: histogram.count(),
                p50_ns: histogram.quantile(500),
                p90_ns: histogram.quantile(900),
                p99_ns: histogram.quantile(990),
                max_ns: histogram.max(),
            }));
        }
        rows
    }

    /// Latencies of a VM by kind and detail.
    fn latencies_of(&self, group: &'a Group) -> BTreeMap<(&'static str, &'static str), Histogram> {
        let mut table = BTreeMap::<(&'static str, &'static str), Histogram>::new();
        for account in self.accounts(group) {
            let latencies = &account.latencies;
            let wakeups = WAKERS.iter().zip(&latencies.wakeup);
            let timers = BACKENDS.iter().zip(&latencies.timer);
            let named = [
                ("ipi_accept", &latencies.ipi_accept),
                ("ipi_inject", &latencies.ipi_inject),
                ("ipi_eoi", &latencies.ipi_eoi),
                ("injection", &latencies.injection),
                ("timer_expire", &latencies.timer_expire),
            ];
            let histograms = named
                .into_iter()
                .map(|(kind, histogram)| ((kind, ""), histogram))
                .chain(wakeups.map(|(&waker, histogram)| (("wakeup", waker), histogram)))
                .chain(timers.map(|(&backend, histogram)| (("timer", backend), histogram)));
            for (key, histogram) in histograms.filter(|(_, histogram)| histogram.count() > 0) {
                table.entry(key).or_default().merge(histogram);
            }
        }
        table
    }

    /// Distributions by VM, of the tables `exits`, `waits` and `latency`; none unless they are wanted.
    pub(crate) fn histograms(&self) -> Vec<Bucket> {
        let mut rows = Vec::new();
        if !self.analysis.sums().options.histograms {
            return rows;
        }
        for group in self.selected() {
            let mut add = |table: &str, key: &str, detail: &str, histogram: &Histogram| {
                let bounds = histogram.bounds().into_iter();
                rows.extend(bounds.map(|(up_to_ns, count)| Bucket {
                    vm: group.name.clone(),
                    vm_guessed: false,
                    table: table.to_owned(),
                    key: key.to_owned(),
                    detail: detail.to_owned(),
                    up_to_ns,
                    count,
                }));
            };
            for (reason, durations) in self.exits_of(group) {
                add("exits", &reason, "", &durations.histogram);
            }
            add("waits", "", "", &self.lengths(group));
            for ((kind, detail), histogram) in self.latencies_of(group) {
                add("latency", kind, detail, &histogram);
            }
        }
        rows
    }

    /// Spinning and directed yield by VM.
    pub(crate) fn yields(&self) -> Vec<Yields> {
        let mut rows = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            if !self.has_vm(&group.name) {
                continue;
            }
            let mut row = Yields {
                vm: group.name.clone(),
                ..Yields::default()
            };
            for account in self.accounts(group) {
                row.pause_exits += account.tally.pause_exits;
                row.ple_grow += account.tally.ple_grow;
                row.ple_shrink += account.tally.ple_shrink;
                row.ple_window_max = row.ple_window_max.max(account.tally.ple_window_max);
                for (&target, &count) in account.spinning.yielded_to() {
                    if self.is_vcpu_of(target, number) {
                        row.switched_to_same_vm += count;
                    } else {
                        row.switched_elsewhere += count;
                    }
                }
            }
            rows.push(row);
        }
        rows
    }

    fn is_vcpu_of(&self, thread: ThreadIndex, vm: usize) -> bool {
        if thread == OTHER_TARGETS {
            return false;
        }
        let vcpu = self.analysis.tracker.threads().get(thread).vcpu;
        vcpu.and_then(|vcpu| self.vm_of.get(&vcpu)).copied() == Some(vm)
    }

    /// Halt polling by VM.
    pub(crate) fn halt_polls(&self) -> Vec<HaltPolls> {
        let mut rows = Vec::new();
        for group in self.selected() {
            let mut row = HaltPolls {
                vm: group.name.clone(),
                ..HaltPolls::default()
            };
            for account in self.accounts(group) {
                let tally = &account.tally;
                row.halts += tally.halts;
                row.poll_success += tally.poll_success;
                row.poll_fail += tally.poll_fail;
                row.poll_success_ns = row.poll_success_ns.saturating_add(tally.poll_success_ns);
                row.poll_fail_ns = row.poll_fail_ns.saturating_add(tally.poll_fail_ns);
                row.grow += tally.poll_grow;
                row.shrink += tally.poll_shrink;
            }
            rows.push(row);
        }
        rows
    }

    /// Host interrupts by VM and vector, most frequent first.
    pub(crate) fn interrupts(&self) -> Vec<Interrupts> {
        let mut rows = Vec::new();
        for group in self.selected() {
            let mut counts = BTreeMap::<(Option<u8>, &'static str), u64>::new();
            for account in self.accounts(group) {
                for (vector, count) in account.hits.vectors() {
                    *counts
                        .entry((Some(vector), vector_name(vector)))
                        .or_default() += count;
                }
                *counts.entry((None, "device")).or_default() += account.hits.devices;
                *counts.entry((None, "unknown")).or_default() += account.hits.unknown;
            }
            let mut table: Vec<Interrupts> = counts
                .into_iter()
                .filter(|&(_, count)| count > 0)
                .map(|((vector, name), count)| Interrupts {
                    vm: group.name.clone(),
                    vm_guessed: false,
                    vector,
                    name: name.to_owned(),
                    count,
                })
                .collect();
            table.sort_by_key(|row| std::cmp::Reverse(row.count));
            rows.append(&mut table);
        }
        rows
    }
}

/// A task's name, or its id where it has none.
pub(crate) fn shown_name(thread: &Thread, names: &dyn Names) -> String {
    match names.name(thread.name) {
        "" => format!("tid {}", thread.tid.0),
        name => name.to_owned(),
    }
}

fn finished(mut rows: Vec<KeyRow>) -> Vec<KeyRow> {
    finish_rows(&mut rows);
    rows
}

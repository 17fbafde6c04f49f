//! The tables of the answers, made of what was counted per vCPU thread.

use std::collections::BTreeMap;

use stealtime_events::Names;

use crate::Analysis;
use crate::answers::{HaltPolls, Interrupts, KeyRow, Latency, Ready, ReasonTime, VcpuTime, Yields};
use crate::interrupts::vector_name;
use crate::keys::{Key, KeyTable, MMIO_WRITE, shown};
use crate::latency::{BACKENDS, WAKERS};
use crate::ready::Cause;
use crate::stats::{Durations, Histogram, finish_rows};
use crate::threads::{IDLE, ThreadId, is_kernel_name, shown_name};
use crate::vcpu::Vcpu;
use crate::vms::Group;
use crate::yields::OTHER_TARGETS;

/// `kthreadd`, which all threads of the kernel descend from.
const KTHREADD: i32 = 2;

/// Everything that the tables are made of.
pub(crate) struct Tables<'a> {
    pub(crate) analysis: &'a Analysis,
    pub(crate) names: &'a dyn Names,
    /// All VMs, selected or not.
    pub(crate) groups: &'a [Group],
    /// VMM threads and their VMs.
    pub(crate) vmm: &'a BTreeMap<ThreadId, Option<usize>>,
    /// The VM of each vCPU, by index.
    pub(crate) vm_of: &'a BTreeMap<u32, usize>,
}

impl<'a> Tables<'a> {
    /// Whether a VM is selected.
    pub(crate) fn has_vm(&self, name: &str) -> bool {
        let vms = &self.analysis.options.selection.vms;
        vms.is_empty() || vms.iter().any(|vm| vm == name)
    }

    /// The selected vCPUs of a VM.
    pub(crate) fn of_group(&self, group: &'a Group) -> impl Iterator<Item = &'a Vcpu> {
        let selected = &self.analysis.options.selection.vcpus;
        let vcpus = &self.analysis.vcpus;
        (group.vcpus.iter())
            .filter_map(|&index| vcpus.get(index as usize))
            .filter(move |vcpu| selected.is_empty() || selected.contains(&vcpu.id.0))
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
            let mut reasons = BTreeMap::<String, Durations>::new();
            for vcpu in self.of_group(group) {
                for (slot, counted) in vcpu.slots.iter().enumerate() {
                    if counted.durations.stats.n > 0 {
                        let name = self.analysis.reasons.name(slot);
                        reasons.entry(name).or_default().merge(&counted.durations);
                    }
                }
            }
            for (name, durations) in reasons {
                rows.push(durations.row(&group.name, &name));
                totals.entry(name).or_default().merge(&durations);
            }
        }
        let total = totals
            .iter()
            .map(|(name, durations)| durations.row("*", name));
        (finished(rows), finished(total.collect()))
    }

    /// One of the further tables of perf, over all VMs selected.
    pub(crate) fn keys(&self, table: &KeyTable, write: u8, marks: (&str, &str)) -> Vec<KeyRow> {
        let mut rows = BTreeMap::<String, Durations>::new();
        for (key, durations) in table.rows() {
            if self.has_key(key) {
                rows.entry(shown(key, write, marks))
                    .or_default()
                    .merge(durations);
            }
        }
        finished(
            rows.iter()
                .map(|(name, durations)| durations.row("*", name))
                .collect(),
        )
    }

    fn has_key(&self, key: Key) -> bool {
        let Some(&vm) = self.vm_of.get(&key.vcpu) else {
            // The row of keys beyond the limit is nobody's.
            return key.vcpu == u32::MAX;
        };
        let selected = &self.analysis.options.selection.vcpus;
        let id = self
            .analysis
            .vcpus
            .get(key.vcpu as usize)
            .map(|vcpu| vcpu.id.0);
        self.groups
            .get(vm)
            .is_some_and(|group| self.has_vm(&group.name))
            && (selected.is_empty() || id.is_some_and(|id| selected.contains(&id)))
    }

    /// msr, ioport and mmio.
    pub(crate) fn all_keys(&self) -> [Vec<KeyRow>; 3] {
        let keys = &self.analysis.keys;
        [
            self.keys(&keys.msr, 1, ("R", "W")),
            self.keys(&keys.ioport, 1, ("PIN", "POUT")),
            self.keys(&keys.mmio, MMIO_WRITE, ("R", "W")),
        ]
    }

    /// The time split of each vCPU.
    pub(crate) fn vcpus(&self) -> Vec<VcpuTime> {
        let mut rows = Vec::new();
        for group in self.selected() {
            rows.extend(self.of_group(group).map(|vcpu| self.vcpu(group, vcpu)));
        }
        rows
    }

    fn vcpu(&self, group: &Group, vcpu: &Vcpu) -> VcpuTime {
        let time = &vcpu.time;
        let thread = self.analysis.threads.get(vcpu.thread);
        let poll = time.poll_useful + time.poll_wasted;
        let exit: u64 = vcpu.slots.iter().map(|slot| slot.ns).sum();
        let on_cpu = time.guest + exit + poll + time.mode_unknown;
        let is_pause = |slot: usize| {
            self.analysis.reasons.class(slot) == stealtime_events::exit_reason::Class::Pause
        };
        let spun = vcpu
            .slots
            .iter()
            .enumerate()
            .filter(|entry| is_pause(entry.0));
        let spin = time.spin + spun.map(|entry| entry.1.ns).sum::<u64>();
        VcpuTime {
            vm: group.name.clone(),
            vm_guessed: false,
            vcpu: vcpu.id.0,
            task: shown_name(thread, self.names),
            tid: thread.tid.0,
            span_ns: on_cpu + time.halt + time.preempted + time.wake_wait,
            on_cpu_ns: on_cpu,
            guest_ns: vcpu.has_exits.then_some(time.guest),
            exit_ns: vcpu.has_exits.then_some(exit),
            poll_ns: Some(poll),
            halt_ns: time.halt,
            preempted_ns: time.preempted,
            wake_wait_ns: time.wake_wait,
            blocked_ns: time.blocked,
            poll_useful_ns: time.poll_useful,
            poll_wasted_ns: time.poll_wasted,
            spin_ns: vcpu.has_exits.then_some(spin),
            unknown_ns: time.unknown,
            exit_ns_by_reason: self.reason_times(vcpu),
        }
    }

    fn reason_times(&self, vcpu: &Vcpu) -> Vec<ReasonTime> {
        let mut by_name = BTreeMap::<String, (u64, u64)>::new();
        for (slot, counted) in vcpu.slots.iter().enumerate() {
            if counted.count > 0 || counted.ns > 0 {
                let sums = by_name.entry(self.analysis.reasons.name(slot)).or_default();
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

    /// Who had the CPU while each vCPU waited.
    pub(crate) fn ready(&self) -> Vec<Ready> {
        let mut rows = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            if !self.has_vm(&group.name) {
                continue;
            }
            for vcpu in self.of_group(group) {
                let mut causes = BTreeMap::<(&'static str, String), u64>::new();
                for (&key, &ns) in &vcpu.ready {
                    *causes
                        .entry(self.cause(Cause::from_key(key), number))
                        .or_default() += ns;
                }
                let mut waits: Vec<Ready> = causes
                    .into_iter()
                    .map(|((cause, who), ns)| Ready {
                        vm: group.name.clone(),
                        vm_guessed: false,
                        vcpu: vcpu.id.0,
                        cause: cause.to_owned(),
                        who,
                        ns,
                    })
                    .collect();
                waits.sort_by(|a, b| b.ns.cmp(&a.ns).then_with(|| a.who.cmp(&b.who)));
                rows.append(&mut waits);
            }
        }
        rows
    }

    fn cause(&self, cause: Cause, waiting: usize) -> (&'static str, String) {
        if let Some(softirq) = cause.softirq_name() {
            return ("irq", softirq.to_owned());
        }
        match cause {
            Cause::HARDIRQ => ("irq", "hardirq".to_owned()),
            Cause::THROTTLED => ("throttled", String::new()),
            Cause::OTHERS => ("host_task", "(others)".to_owned()),
            _ => match cause.thread() {
                Some(IDLE) => ("idle", String::new()),
                Some(thread) => self.task_cause(thread, waiting),
                None => ("unknown", String::new()),
            },
        }
    }

    fn task_cause(&self, id: ThreadId, waiting: usize) -> (&'static str, String) {
        let thread = self.analysis.threads.get(id);
        let name = shown_name(thread, self.names);
        let vm = thread.vcpu.and_then(|vcpu| self.vm_of.get(&vcpu)).copied();
        if let Some(vm) = vm {
            return if vm == waiting {
                ("vcpu_same_vm", name)
            } else {
                let other = self.groups.get(vm).map_or("", |group| &group.name);
                ("vcpu_other_vm", other.to_owned())
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
            let mut table = BTreeMap::<(&'static str, &'static str), Histogram>::new();
            for vcpu in self.of_group(group) {
                let kept = &vcpu.latencies;
                let wakeups = WAKERS.iter().zip(&kept.wakeup);
                let timers = BACKENDS.iter().zip(&kept.timer);
                let named = [
                    ("ipi_accept", &kept.ipi_accept),
                    ("ipi_inject", &kept.ipi_inject),
                    ("ipi_eoi", &kept.ipi_eoi),
                    ("injection", &kept.injection),
                    ("timer_expire", &kept.timer_expire),
                ];
                let all = named
                    .into_iter()
                    .map(|(kind, histogram)| ((kind, ""), histogram))
                    .chain(wakeups.map(|(&waker, histogram)| (("wakeup", waker), histogram)))
                    .chain(timers.map(|(&backend, histogram)| (("timer", backend), histogram)));
                for (key, histogram) in all.filter(|(_, histogram)| histogram.count() > 0) {
                    table.entry(key).or_default().merge(histogram);
                }
            }
            rows.extend(
                table
                    .into_iter()
                    .map(|((kind, detail), histogram)| Latency {
                        vm: group.name.clone(),
                        vm_guessed: false,
                        kind: kind.to_owned(),
                        detail: detail.to_owned(),
                        count: histogram.count(),
                        p50_ns: histogram.quantile(500),
                        p90_ns: histogram.quantile(900),
                        p99_ns: histogram.quantile(990),
                        max_ns: histogram.max(),
                    }),
            );
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
            for vcpu in self.of_group(group) {
                row.pause_exits += vcpu.tally.pause_exits;
                row.ple_grow += vcpu.tally.ple_grow;
                row.ple_shrink += vcpu.tally.ple_shrink;
                row.ple_window_max = row.ple_window_max.max(vcpu.tally.ple_window_max);
                for (&target, &count) in &vcpu.yielded_to {
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

    fn is_vcpu_of(&self, thread: ThreadId, vm: usize) -> bool {
        let vcpu = self.analysis.threads.get(thread).vcpu;
        thread != OTHER_TARGETS && vcpu.and_then(|vcpu| self.vm_of.get(&vcpu)).copied() == Some(vm)
    }

    /// Halt polling by VM.
    pub(crate) fn halt_polls(&self) -> Vec<HaltPolls> {
        let mut rows = Vec::new();
        for group in self.selected() {
            let mut row = HaltPolls {
                vm: group.name.clone(),
                ..HaltPolls::default()
            };
            for vcpu in self.of_group(group) {
                let tally = &vcpu.tally;
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
            for vcpu in self.of_group(group) {
                for (vector, count) in vcpu.hits.vectors() {
                    *counts
                        .entry((Some(vector), vector_name(vector)))
                        .or_default() += count;
                }
                *counts.entry((None, "device")).or_default() += vcpu.hits.devices;
                *counts.entry((None, "unknown")).or_default() += vcpu.hits.unknown;
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

fn finished(mut rows: Vec<KeyRow>) -> Vec<KeyRow> {
    finish_rows(&mut rows);
    rows
}

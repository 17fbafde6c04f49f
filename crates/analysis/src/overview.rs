//! The tables of what an operator looks at first.

use std::collections::BTreeMap;

use stealtime_track::{Run, ThreadIndex, VcpuIndex, Wait};

use crate::answers::{
    CpuOverTime, CpuUse, Host, OverTime, Stall, VmOverTime, VmState, VmmThreads, WaitClass, Waits,
};
use crate::cpus::CpuAccount;
use crate::series::{Combined, Series};
use crate::stats::Histogram;
use crate::tables::{Tables, shown_name};
use crate::vms::Group;
use crate::waits::EDGES;

impl Tables<'_> {
    /// Length of the selection, in ns.
    fn length(&self) -> u64 {
        let window = &self.analysis.sums().window;
        window.length(self.analysis.tracker.now())
    }

    /// The selected CPUs that were seen.
    fn cpus(&self) -> impl Iterator<Item = (u16, &CpuAccount)> {
        let sums = self.analysis.sums();
        let list = (0..=u16::MAX).zip(sums.cpus.list());
        list.filter(|(cpu, _)| sums.window.has_cpu(*cpu))
    }

    /// The host.
    pub(crate) fn host(&self) -> Host {
        let has_switches = self.analysis.tracker.has_switches();
        let known = |ns: u64| has_switches.then_some(ns);
        let cpus = self.cpus().map(|(cpu, account)| CpuUse {
            cpu,
            vcpu_ns: known(account.vcpu),
            other_ns: known(account.others),
            idle_ns: known(account.idle),
            waiting_ns: known(account.waiting_over_time.total()),
            switches: account.switches,
        });
        let cpus: Vec<CpuUse> = cpus.collect();
        let vcpus = self.selected().map(|group| self.vcpus_of(group).count());
        Host {
            vcpus: u32::try_from(vcpus.sum::<usize>()).unwrap_or(u32::MAX),
            switches: cpus.iter().map(|cpu| cpu.switches).sum(),
            span_ns: self.length(),
            cpus,
        }
    }

    /// The longest waits, longest first.
    pub(crate) fn stalls(&self) -> Vec<Stall> {
        let wanted = self.analysis.sums().options.longest;
        let mut found: Vec<(usize, VcpuIndex, Wait)> = Vec::new();
        for (number, group) in self.groups.iter().enumerate() {
            if !self.has_vm(&group.name) {
                continue;
            }
            for vcpu in self.vcpus_of(group) {
                let waits = self.analysis.account(vcpu).waits.longest().iter();
                let limit = wanted.longer_than_ns.unwrap_or(0);
                let waits = waits.filter(|wait| wait.ns > limit);
                found.extend(waits.map(|wait| (number, vcpu, *wait)));
            }
        }
        found.sort_by_key(|(_, vcpu, wait)| (std::cmp::Reverse(wait.ns), wait.start, *vcpu));
        found.truncate(wanted.kept);
        let stalls = found.into_iter();
        stalls
            .map(|(vm, vcpu, wait)| self.stall(vm, vcpu, wait))
            .collect()
    }

    fn stall(&self, vm: usize, vcpu: VcpuIndex, wait: Wait) -> Stall {
        let (cause, occupant) = self.cause(wait.cause, vm);
        let task = wait.cause.thread().filter(|task| task.is_single());
        let task = task.map(|task| self.analysis.tracker.threads().get(task));
        Stall {
            vm: self
                .groups
                .get(vm)
                .map_or_else(String::new, |group| group.name.clone()),
            vm_guessed: false,
            vcpu: self.analysis.id(vcpu),
            tid: self.analysis.thread_of(vcpu).tid.0,
            start_ns: wait.start,
            ns: wait.ns,
            kind: match wait.run {
                Run::Waking => "waking",
                _ => "preempted",
            }
            .to_owned(),
            cpu: wait.cpu,
            cause: cause.to_owned(),
            who: occupant,
            task: task.map(|task| shown_name(task, self.names)),
            task_tid: task.map(|task| task.tid.0),
            cause_ns: wait.cause_ns,
            export: None,
        }
    }

    /// Single waits, by VM.
    pub(crate) fn waits(&self) -> Vec<Waits> {
        self.selected().map(|group| self.waits_of(group)).collect()
    }

    /// The lengths of a VM's single waits.
    pub(crate) fn lengths(&self, group: &Group) -> Histogram {
        let mut lengths = Histogram::default();
        for account in self.accounts(group) {
            lengths.merge(&account.waits.lengths);
        }
        lengths
    }

    fn waits_of(&self, group: &Group) -> Waits {
        let limit = self.analysis.sums().options.longest.longer_than_ns;
        let lengths = self.lengths(group);
        let mut classes = [0_u64; EDGES.len() + 1];
        let (mut ns, mut longer) = (0_u64, (0_u64, 0_u64));
        for account in self.accounts(group) {
            ns = ns.saturating_add(account.waits.ns);
            let sums = classes.iter_mut().zip(account.waits.classes);
            sums.for_each(|(sum, count)| *sum += count);
            longer.0 += account.waits.longer.0;
            longer.1 = longer.1.saturating_add(account.waits.longer.1);
        }
        let edges = || EDGES.into_iter();
        let starts = std::iter::once(0).chain(edges());
        let ends = edges().map(Some).chain([None]);
        let classes = starts.zip(ends).zip(classes);
        Waits {
            vm: group.name.clone(),
            vm_guessed: false,
            count: lengths.count(),
            ns,
            p50_ns: lengths.quantile(500),
            p90_ns: lengths.quantile(900),
            p99_ns: lengths.quantile(990),
            max_ns: lengths.max(),
            longer: limit.map(|_| longer.0),
            longer_ns: limit.map(|_| longer.1),
            classes: classes
                .map(|((from_ns, below_ns), count)| WaitClass {
                    from_ns,
                    below_ns,
                    count,
                })
                .collect(),
        }
    }

    /// CPU time of VMM threads, by VM and role.
    pub(crate) fn vmm_threads(&self) -> Vec<VmmThreads> {
        let cpus = &self.analysis.sums().cpus;
        let mut rows = BTreeMap::<(usize, &'static str), VmmThreads>::new();
        for (&id, &vm) in self.vmm {
            let ns = cpus.thread(id);
            let group = vm.and_then(|vm| self.groups.get(vm));
            let name = group.map_or("", |group| group.name.as_str());
            let is_selected = self.has_vm(name);
            if ns == 0 || !is_selected {
                continue;
            }
            let (role, task, tid) = self.vmm_thread(id);
            let row = rows.entry((vm.unwrap_or(usize::MAX), role));
            let row = row.or_insert_with(|| VmmThreads {
                vm: name.to_owned(),
                role: role.to_owned(),
                ..VmmThreads::default()
            });
            row.threads += 1;
            row.cpu_ns = row.cpu_ns.saturating_add(ns);
            if ns > row.task_ns {
                (row.task, row.tid, row.task_ns) = (task, tid, ns);
            }
        }
        rows.into_values().collect()
    }

    fn vmm_thread(&self, id: ThreadIndex) -> (&'static str, String, i32) {
        let thread = self.analysis.tracker.threads().get(id);
        let name = shown_name(thread, self.names);
        (role(&name), name, thread.tid.0)
    }

    /// The states of whole VMs.
    pub(crate) fn vm_states(&self) -> Vec<VmState> {
        let end = self.length();
        let state = |group: &Group| {
            let accounts: Vec<_> = self.accounts(group).collect();
            let samples = accounts.iter().map(|account| &account.states);
            let combined = Combined::of(samples, end);
            VmState {
                vm: group.name.clone(),
                vm_guessed: false,
                vcpus: u32::try_from(accounts.len()).unwrap_or(u32::MAX),
                instants: combined.instants,
                full_run: combined.full_run,
                partial_run: combined.partial_run,
                concurrency_hazard: combined.concurrency_hazard,
                full_contention: combined.full_contention,
                partial_contention: combined.partial_contention,
                blocked: combined.blocked,
                unknown: combined.unknown,
            }
        };
        self.selected().map(state).collect()
    }

    /// Steal and use of CPUs over time.
    pub(crate) fn over_time(&self) -> OverTime {
        let length = self.length();
        let groups: Vec<&Group> = self.selected().collect();
        let accounts = groups.iter().flat_map(|group| self.accounts(group));
        // A clock that jumps can lead beyond the end.
        let shift = accounts
            .map(|account| account.steal_over_time.shift())
            .chain([Series::shift_for(length)])
            .max()
            .unwrap_or(0);
        let buckets = usize::try_from(length.saturating_sub(1) >> shift).unwrap_or(0) + 1;
        let vms = groups.iter().map(|group| {
            let mut steal_ns = vec![0_u64; buckets];
            let mut vcpus = 0;
            for account in self.accounts(group) {
                let part = account.steal_over_time.at_width(shift, buckets);
                let sums = steal_ns.iter_mut().zip(part);
                sums.for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
                vcpus += 1;
            }
            VmOverTime {
                vm: group.name.clone(),
                vm_guessed: false,
                vcpus,
                steal_ns,
            }
        });
        let cpus = self.cpus().map(|(cpu, account)| CpuOverTime {
            cpu,
            busy_ns: account.busy_over_time.at_width(shift, buckets),
            vcpu_ns: account.vcpu_over_time.at_width(shift, buckets),
            waiting_ns: account.waiting_over_time.at_width(shift, buckets),
        });
        OverTime {
            start_ns: self.analysis.sums().window.origin(),
            width_ns: 1 << shift,
            buckets: u32::try_from(buckets).unwrap_or(u32::MAX),
            vms: vms.collect(),
            cpus: match self.analysis.tracker.has_switches() {
                true => cpus.collect(),
                false => Vec::new(),
            },
        }
    }
}

/// What a VMM's thread is for, by its name: QEMU calls iothreads `IO iothread1`, the kernel calls its own
/// ones `vhost-1234` and `kvm-pit/1234`.
fn role(name: &str) -> &'static str {
    let begins = |starts: &[&str]| starts.iter().any(|start| name.starts_with(start));
    if begins(&["vhost"]) {
        "vhost"
    } else if begins(&["IO ", "iothread"]) {
        "iothread"
    } else if begins(&["kvm-"]) {
        "kernel"
    } else {
        "emulator"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_a_vmm_have_roles() {
        let names = [
            "vhost-3210",
            "IO iothread1",
            "kvm-pit/77",
            "qemu-system-x86",
            "worker",
        ];
        let roles = ["vhost", "iothread", "kernel", "emulator", "emulator"];
        assert_eq!(names.map(role), roles);
    }
}

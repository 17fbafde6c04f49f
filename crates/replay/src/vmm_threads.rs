//! Which VM a thread that is no vCPU works for: it competes in that VM's cgroup.

use std::collections::{BTreeMap, BTreeSet};

/// So many wakeups between a task and vCPUs of a VM are more than chance.
const MET_FROM: u32 = 10;
/// Of a thread that raises interrupts of some VM, so many are enough.
const MET_FROM_EMULATOR: u32 = 1;
/// What begins the name of a kernel's thread that raises interrupts for any VM (`irqfd_inject`).
const KWORKER: &str = "kworker/";

/// What is seen of threads other than vCPUs.
#[derive(Clone, Debug, Default)]
pub(crate) struct VmmThreads {
    /// Wakeups between a thread and vCPUs, by VM.
    met: BTreeMap<i32, BTreeMap<usize, u32>>,
    /// Threads that raise interrupts (`kvm_set_irq`): VMMs' own.
    emulators: BTreeSet<i32>,
    /// Threads' processes, where they are known.
    processes: BTreeMap<i32, i32>,
    /// Threads and their VMs as the host states them.
    stated: BTreeMap<i32, usize>,
}

impl VmmThreads {
    /// The host states these threads' VMs.
    pub(crate) fn stated(&mut self, threads: BTreeMap<i32, usize>) {
        self.stated = threads;
    }

    /// One of them woke the other, which is a vCPU of this VM, or the other way round.
    pub(crate) fn wakes(&mut self, tid: i32, vm: usize) {
        *self.met.entry(tid).or_default().entry(vm).or_default() += 1;
    }

    /// A thread raises an interrupt.
    pub(crate) fn emulates(&mut self, tid: i32) {
        self.emulators.insert(tid);
    }

    /// A thread is of this process; 0 is none that is known.
    pub(crate) fn belongs(&mut self, tid: i32, process: i32) {
        if process != 0 {
            self.processes.insert(tid, process);
        }
    }

    /// The VMs that threads work for. That is the stated one, that of their process, or the one of nearly
    /// all vCPUs that they wake or are woken by. If one emulator is left and one VM that has none, they
    /// belong together.
    pub(crate) fn found(
        &self,
        vcpus: &BTreeMap<i32, (usize, u32)>,
        names: &BTreeMap<i32, &str>,
    ) -> BTreeMap<i32, usize> {
        let vcpu = |(tid, vcpu): (&i32, &(usize, u32))| Some((*self.processes.get(tid)?, vcpu.0));
        let vm_of: BTreeMap<i32, usize> = vcpus.iter().filter_map(vcpu).collect();
        let mut emulators = self.emulators.clone();
        emulators.retain(|tid| {
            let any_vms = names.get(tid).is_some_and(|name| name.starts_with(KWORKER));
            !vcpus.contains_key(tid) && !any_vms
        });
        let mut found = self.stated.clone();
        for (&tid, process) in &self.processes {
            if let Some(&vm) = vm_of.get(process) {
                found.entry(tid).or_insert(vm);
            }
        }
        for (&tid, met) in &self.met {
            let least = match emulators.contains(&tid) {
                true => MET_FROM_EMULATOR,
                false => MET_FROM,
            };
            if let Some(vm) = most(met, least) {
                found.entry(tid).or_insert(vm);
            }
        }
        let mut vms: BTreeSet<usize> = vcpus.values().map(|vcpu| vcpu.0).collect();
        for tid in &emulators {
            if let Some(vm) = found.get(tid) {
                vms.remove(vm);
            }
        }
        emulators.retain(|tid| !found.contains_key(tid));
        if let (1, 1, Some(&tid), Some(&vm)) =
            (emulators.len(), vms.len(), emulators.first(), vms.first())
        {
            found.insert(tid, vm);
        }
        found
    }
}

/// The VM of nine in ten wakeups, `least` of them or more.
fn most(met: &BTreeMap<usize, u32>, least: u32) -> Option<usize> {
    let total: u32 = met.values().sum();
    let (&vm, &count) = met.iter().max_by_key(|entry| entry.1)?;
    (count >= least && u64::from(count) * 10 >= u64::from(total) * 9).then_some(vm)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vcpus() -> BTreeMap<i32, (usize, u32)> {
        BTreeMap::from([(20, (0, 0)), (21, (0, 1)), (30, (1, 0)), (40, (2, 0))])
    }

    fn found(threads: &VmmThreads) -> BTreeMap<i32, usize> {
        threads.found(
            &vcpus(),
            &BTreeMap::from([(7, "kworker/0:1"), (10, "qemu")]),
        )
    }

    #[test]
    fn a_thread_that_often_wakes_one_vms_vcpus_works_for_it() {
        let mut threads = VmmThreads::default();
        (0..9).for_each(|_| threads.wakes(10, 1));
        assert!(found(&threads).is_empty());
        threads.wakes(10, 1);
        assert_eq!(found(&threads), BTreeMap::from([(10, 1)]));
        // Others as well.
        (0..2).for_each(|_| threads.wakes(10, 0));
        assert!(found(&threads).is_empty());
    }

    #[test]
    fn one_wakeup_finds_an_emulators_vm_and_the_last_one_is_left() {
        let mut threads = VmmThreads::default();
        for tid in [10, 11, 12, 7] {
            threads.emulates(tid);
        }
        threads.wakes(10, 1);
        threads.wakes(7, 2);
        assert_eq!(found(&threads), BTreeMap::from([(10, 1)]));
        threads.wakes(12, 0);
        assert_eq!(found(&threads), BTreeMap::from([(10, 1), (11, 2), (12, 0)]));
    }

    #[test]
    fn what_the_host_states_is_not_guessed() {
        let mut threads = VmmThreads::default();
        (0..10).for_each(|_| threads.wakes(10, 0));
        threads.stated(BTreeMap::from([(10, 1), (50, 2)]));
        assert_eq!(found(&threads), BTreeMap::from([(10, 1), (50, 2)]));
    }

    #[test]
    fn a_process_has_one_vm() {
        let mut threads = VmmThreads::default();
        for (tid, process) in [(20, 20), (30, 9), (10, 9), (11, 0), (12, 5)] {
            threads.belongs(tid, process);
        }
        (0..10).for_each(|_| threads.wakes(10, 0));
        assert_eq!(found(&threads), BTreeMap::from([(10, 1), (20, 0), (30, 1)]));
    }
}

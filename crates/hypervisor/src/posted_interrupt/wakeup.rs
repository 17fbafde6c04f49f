//! The per-CPU lists of blocked vCPUs and the handler of the wakeup vector.

use alloc::vec::Vec;
use core::cell::RefCell;

use super::shared::{CpuId, SharedVcpu, VcpuId};
use crate::events::Events;
use crate::word::AtomicWord;

/// The vCPUs that blocked on one CPU, in order.
///
/// Upstream links the vCPUs themselves. This list needs room in advance for every vCPU that may
/// block on the CPU, because its lock is a spinlock, taken with interrupts off.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuList {
    vcpus: Vec<VcpuId>,
}

impl CpuList {
    /// An empty list with room for so many vCPUs.
    #[must_use]
    pub fn with_room(vcpus: usize) -> Self {
        Self {
            vcpus: Vec::with_capacity(vcpus),
        }
    }
    /// Number of vCPUs that fit without an allocation.
    #[must_use]
    pub fn room(&self) -> usize {
        self.vcpus.capacity()
    }
    /// Moves to the memory of `larger`, which receives the old memory. As vCPUs are created, make
    /// `larger` before taking the lock, and drop it after releasing the lock.
    pub fn move_to(&mut self, larger: &mut Self) {
        larger.vcpus.clear();
        larger.vcpus.extend_from_slice(&self.vcpus);
        core::mem::swap(self, larger);
    }
    /// Adds a vCPU at the end. Allocates only beyond the list's [room](Self::room).
    pub fn append(&mut self, vcpu: VcpuId) {
        self.vcpus.push(vcpu);
    }
    /// Removes a vCPU; whether it was in the list.
    pub fn remove(&mut self, vcpu: VcpuId) -> bool {
        let index = self.vcpus.iter().position(|&v| v == vcpu);
        if let Some(index) = index {
            self.vcpus.remove(index);
        }
        index.is_some()
    }
    /// The vCPUs in order.
    #[must_use]
    pub fn vcpus(&self) -> &[VcpuId] {
        &self.vcpus
    }
}

/// The lists of all CPUs, each under its own lock.
pub trait WakeupLists {
    /// Runs `body` on a CPU's list with that list locked and interrupts off: the wakeup IRQ takes
    /// the same lock. `None` if there is no such CPU.
    fn locked<R>(&self, cpu: CpuId, body: impl FnOnce(&mut CpuList) -> R) -> Option<R>;
}

/// Lists for one thread, as in a simulator.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLists {
    lists: RefCell<Vec<CpuList>>,
}

impl LocalLists {
    /// Empty lists of `cpus` CPUs, each with room for `vcpus`.
    #[must_use]
    pub fn new(cpus: CpuId, vcpus: usize) -> Self {
        Self {
            lists: RefCell::new((0..cpus).map(|_| CpuList::with_room(vcpus)).collect()),
        }
    }
    /// A copy of a CPU's list.
    #[must_use]
    pub fn of(&self, cpu: CpuId) -> Option<CpuList> {
        self.locked(cpu, |list| list.clone())
    }
}

impl WakeupLists for LocalLists {
    fn locked<R>(&self, cpu: CpuId, body: impl FnOnce(&mut CpuList) -> R) -> Option<R> {
        // A `body` that locks a second list finds all of them locked.
        let mut lists = self.lists.try_borrow_mut().ok()?;
        lists.get_mut(usize::try_from(cpu).ok()?).map(body)
    }
}

/// The handler of the wakeup vector on `cpu` (`pi_wakeup_handler`): calls `wake` for each vCPU on
/// the CPU's list with ON set. Load removes vCPUs from the list, and synchronization clears ON.
/// Returns the number of woken vCPUs; `None` if there is no such CPU.
pub fn wakeup_handler<'a, W: AtomicWord + 'a>(
    cpu: CpuId,
    lists: &impl WakeupLists,
    vcpu_of: impl Fn(VcpuId) -> Option<&'a SharedVcpu<W>>,
    events: &impl Events,
    mut wake: impl FnMut(VcpuId),
) -> Option<u32> {
    lists.locked(cpu, |list| {
        let mut woken = 0;
        for &id in list.vcpus() {
            if vcpu_of(id).is_some_and(|vcpu| vcpu.desc.test_on()) {
                woken += 1;
                events.wakeup_handler_wakes();
                wake(id);
            }
        }
        woken
    })
}

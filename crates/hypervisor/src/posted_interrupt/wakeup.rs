//! The per-CPU lists of blocked vCPUs and the handler of the wakeup vector.

#[cfg(feature = "alloc")]
use alloc::vec::Vec;
#[cfg(feature = "alloc")]
use core::cell::RefCell;

use super::shared::{CpuId, SharedVcpu, VcpuId};
use crate::events::Events;
use crate::word::AtomicWord;

/// The vCPUs that blocked on one CPU, in order.
///
/// Upstream links the vCPUs themselves, as a hypervisor without an allocator does too. Its list has room for
/// every vCPU that may block on the CPU, because its lock is a spinlock, taken with interrupts off.
pub trait WakeupList {
    /// Adds a vCPU at the end.
    fn append(&mut self, vcpu: VcpuId);
    /// Removes a vCPU; whether it was in the list.
    fn remove(&mut self, vcpu: VcpuId) -> bool;
    /// Calls `visit` for each vCPU, in order.
    fn for_each(&self, visit: impl FnMut(VcpuId));
}

/// A list in memory of its own, for vCPUs that are not linked.
///
/// Upstream links the vCPUs themselves. This list needs room in advance for every vCPU that may
/// block on the CPU, because its lock is a spinlock, taken with interrupts off.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuList {
    vcpus: Vec<VcpuId>,
}

#[cfg(feature = "alloc")]
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

#[cfg(feature = "alloc")]
impl WakeupList for CpuList {
    fn append(&mut self, vcpu: VcpuId) {
        Self::append(self, vcpu);
    }
    fn remove(&mut self, vcpu: VcpuId) -> bool {
        Self::remove(self, vcpu)
    }
    fn for_each(&self, visit: impl FnMut(VcpuId)) {
        self.vcpus.iter().copied().for_each(visit);
    }
}

/// The lists of all CPUs, each under its own lock.
pub trait WakeupLists {
    /// The list of one CPU.
    type List: WakeupList;
    /// Runs `body` on a CPU's list with that list locked and interrupts off: the wakeup IRQ takes
    /// the same lock. `None` if there is no such CPU.
    fn locked<R>(&self, cpu: CpuId, body: impl FnOnce(&mut Self::List) -> R) -> Option<R>;
}

/// Lists for one thread, as in a simulator.
#[cfg(feature = "alloc")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalLists {
    lists: RefCell<Vec<CpuList>>,
}

#[cfg(feature = "alloc")]
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

#[cfg(feature = "alloc")]
impl WakeupLists for LocalLists {
    type List = CpuList;

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
        list.for_each(|id| {
            if vcpu_of(id).is_some_and(|vcpu| vcpu.desc.test_on()) {
                woken += 1;
                events.wakeup_handler_wakes();
                wake(id);
            }
        });
        woken
    })
}

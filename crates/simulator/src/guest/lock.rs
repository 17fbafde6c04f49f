//! Spinlocks and mutexes of the guest.

use super::{Micro, SpinOn, ThreadState};
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, ThreadNr, VcpuNr, VmNr};
use crate::kvm::VcpuRun;
use crate::machine::{Machine, Message};
use crate::program::{MutexId, SpinId};

impl Machine<'_> {
    /// `queued_spin_lock`: taken, or waits its turn spinning.
    pub(crate) fn guest_try_lock(&mut self, vcpu: VcpuNr, lock: SpinId) -> Sim {
        let v = &mut self.vcpus[vcpu];
        let index = v.index;
        v.guest.preempt_off += 1;
        let locked = u64::from(self.costs.locked_shared_ns);
        let l = &mut self.vms[v.vm].kernel.spinlocks[lock.0 as usize];
        v.guest.push_next(Micro::Run {
            ns: locked,
            kernel: true,
        });
        if l.owner.is_none() {
            l.owner = Some(index);
        } else {
            l.waiters.push_back(index);
            self.stats.lock_waits += 1;
            v.guest.push_next(Micro::Spin(SpinOn::Lock(lock)));
        }
        Ok(())
    }

    /// `queued_spin_unlock`: the next in the queue has it.
    pub(crate) fn guest_unlock(&mut self, _cpu: CpuNr, vcpu: VcpuNr, lock: SpinId) -> Sim {
        let v = &mut self.vcpus[vcpu];
        let vm = v.vm;
        v.guest.preempt_off = v.guest.preempt_off.saturating_sub(1);
        v.guest.push_next(Micro::CheckResched);
        let own = u64::from(self.costs.locked_own_ns);
        v.guest.push_next(Micro::Run {
            ns: own,
            kernel: true,
        });
        let l = &mut self.vms[vm].kernel.spinlocks[lock.0 as usize];
        l.owner = l.waiters.pop_front();
        if let Some(next) = l.owner {
            let waiter = self.vcpu_of(vm, next);
            self.end_spin(waiter);
        }
        Ok(())
    }

    /// `mutex_lock`: taken; or spins while the owner runs; or sleeps.
    pub(crate) fn guest_try_mutex(&mut self, vcpu: VcpuNr, mutex: MutexId) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let Some(thread) = v.guest.current else {
            return self.broken("the idle thread takes a mutex");
        };
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        match m.owner {
            None => m.owner = Some(thread),
            Some(owner) if owner == thread => {}
            Some(owner) => {
                let on = self.vms[vm].kernel.threads[owner].vcpu;
                let runs = self.vcpus[self.vcpu_of(vm, on)].guest.current == Some(owner);
                let wanted =
                    self.vcpus[vcpu].guest.resched != stealtime_hypervisor::eevdf::Resched::None;
                let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
                if runs && !wanted && m.waiters.is_empty() {
                    m.spinners.push(index);
                    let g = &mut self.vcpus[vcpu].guest;
                    g.push_next(Micro::TryMutex(mutex));
                    g.push_next(Micro::Spin(SpinOn::Mutex(mutex)));
                    return Ok(());
                }
                m.waiters.push_back(thread);
                return self.guest_block(vcpu, ThreadState::WaitsMutex(mutex.0));
            }
        }
        let locked = u64::from(self.costs.locked_shared_ns);
        self.vcpus[vcpu].guest.push_next(Micro::Run {
            ns: locked,
            kernel: true,
        });
        Ok(())
    }

    pub(crate) fn guest_unlock_mutex(&mut self, _cpu: CpuNr, vcpu: VcpuNr, mutex: MutexId) -> Sim {
        let vm = self.vcpus[vcpu].vm;
        let own = u64::from(self.costs.locked_own_ns);
        self.vcpus[vcpu].guest.push_next(Micro::Run {
            ns: own,
            kernel: true,
        });
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        m.owner = m.waiters.pop_front();
        let next = m.owner;
        self.end_mutex_spins(vm, mutex);
        match next {
            Some(thread) => self.guest_wake(vcpu, thread),
            None => Ok(()),
        }
    }

    /// Those who spin for a mutex look again.
    fn end_mutex_spins(&mut self, vm: VmNr, mutex: MutexId) {
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        for index in core::mem::take(&mut m.spinners) {
            let waiter = self.vcpu_of(vm, index);
            self.end_spin(waiter);
        }
    }

    /// What a vCPU spins for has happened. It sees that when the line reaches it, or when it runs
    /// again.
    pub(crate) fn end_spin(&mut self, vcpu: VcpuNr) {
        let v = &mut self.vcpus[vcpu];
        let since = self.now;
        let on = SpinOn::Call;
        let spin = v.guest.spin.get_or_insert(super::Spin {
            on,
            over: false,
            since_ns: since,
        });
        if spin.over {
            return;
        }
        spin.over = true;
        let in_guest = v.run == VcpuRun::Guest && matches!(v.guest.running, Some(Micro::Spin(_)));
        if in_guest {
            v.guest.spin_turn = v.guest.spin_turn.wrapping_add(1);
            let turn = v.guest.spin_turn;
            let at = self.now + u64::from(self.costs.cache_line_ns);
            self.post(at, Message::SpinOver { vcpu, turn });
        }
    }

    pub(crate) fn spin_over(&mut self, vcpu: VcpuNr, turn: u32) -> Sim {
        let v = &self.vcpus[vcpu];
        let cpu = self.tasks[v.task].cpu;
        let spins = v.run == VcpuRun::Guest && matches!(v.guest.running, Some(Micro::Spin(_)));
        if !spins || v.guest.spin_turn != turn || self.guest_on(cpu) != Some(vcpu) {
            return Ok(());
        }
        self.stop_guest(cpu, vcpu);
        self.guest_resume(cpu, vcpu)
    }

    /// The vCPU that a spinning one waits for, as only the simulator can know.
    pub(crate) fn spin_awaits(&self, vcpu: VcpuNr) -> Option<VcpuNr> {
        let v = &self.vcpus[vcpu];
        let kernel = &self.vms[v.vm].kernel;
        let index = match v.guest.spin?.on {
            SpinOn::Lock(lock) => kernel.spinlocks[lock.0 as usize].owner?,
            SpinOn::Mutex(mutex) => {
                let owner: ThreadNr = kernel.mutexes[mutex.0 as usize].owner?;
                kernel.threads[owner].vcpu
            }
            SpinOn::Call => {
                let n = self.vms[v.vm].vcpus;
                let waits = (0..n).find(|&index| {
                    self.vcpus[self.vcpu_of(v.vm, index)]
                        .guest
                        .calls
                        .contains(&v.index)
                });
                waits?
            }
        };
        debug_assert!((index as usize) < self.vcpus.len());
        debug_assert!(vcpu.index() < self.vcpus.len());
        Some(self.vcpu_of(v.vm, index))
    }
}

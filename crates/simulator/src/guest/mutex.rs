//! Mutexes that sleep, with optimistic spinning (`kernel/locking/mutex.c`, `osq_lock.c`).
//!
//! Who finds the owner running spins instead of sleeping: in a queue, of which only the first looks
//! at the owner. A spinner gives up when the owner does not run, as far as the guest knows, when
//! its predecessor does not, or when another thread should run. A release leaves the mutex free and
//! wakes the first sleeper; who comes first has it. A sleeper that was woken in vain has it handed
//! over the next time.

use super::{Micro, SpinOn, ThreadState};
use crate::fault::Sim;
use crate::ids::{ThreadNr, VcpuNr, VmNr};
use crate::machine::Machine;
use crate::program::MutexId;

impl Machine<'_> {
    /// `mutex_lock`: taken; or spins while the owner runs; or sleeps.
    pub(crate) fn guest_try_mutex(&mut self, vcpu: VcpuNr, mutex: MutexId) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let Some(thread) = v.guest.current else {
            return self.broken("the idle thread takes a mutex");
        };
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        match m.owner {
            None => {
                m.owner = Some(thread);
                self.leave_spinners(vm, index, mutex);
                self.mutex_taken(vcpu, thread, mutex);
                return Ok(());
            }
            Some(owner) if owner == thread => {
                let what = format!("takes mutex {}, which it holds already", m.name);
                return self.wrong_program(vcpu, &what);
            }
            Some(_) => {}
        }
        if self.mutex_may_spin(vcpu, mutex) {
            let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
            if !m.spinners.contains(&index) {
                m.spinners.push_back(index);
            }
            let g = &mut self.vcpus[vcpu].guest;
            g.push_next(Micro::TryMutex(mutex));
            g.push_next(Micro::Spin(SpinOn::Mutex(mutex)));
            return Ok(());
        }
        self.leave_spinners(vm, index, mutex);
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        m.waiters.push_back(thread);
        self.stats.mutex_waits += 1;
        self.vcpus[vcpu].guest.push_next(Micro::RetryMutex(mutex));
        self.guest_block(vcpu, ThreadState::WaitsMutex(mutex.0))
    }

    /// A sleeper was woken: takes the mutex, or spins as the first sleeper, or sleeps again.
    pub(crate) fn guest_retry_mutex(&mut self, vcpu: VcpuNr, mutex: MutexId) -> Sim {
        let v = &self.vcpus[vcpu];
        let vm = v.vm;
        let Some(thread) = v.guest.current else {
            return self.broken("the idle thread waits for a mutex");
        };
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        if m.owner.is_none_or(|owner| owner == thread) {
            m.owner = Some(thread);
            m.waiters.retain(|&waiter| waiter != thread);
            m.handoff = false;
            self.mutex_taken(vcpu, thread, mutex);
            return Ok(());
        }
        let first = m.waiters.front() == Some(&thread);
        m.handoff |= first;
        let may_spin = first && self.mutex_may_spin(vcpu, mutex);
        let g = &mut self.vcpus[vcpu].guest;
        g.push_next(Micro::RetryMutex(mutex));
        if may_spin {
            g.push_next(Micro::Spin(SpinOn::Mutex(mutex)));
            return Ok(());
        }
        self.guest_block(vcpu, ThreadState::WaitsMutex(mutex.0))
    }

    fn mutex_taken(&mut self, vcpu: VcpuNr, thread: ThreadNr, mutex: MutexId) {
        let vm = self.vcpus[vcpu].vm;
        self.vms[vm].kernel.threads[thread].holds.push(mutex);
        let ns = u64::from(self.costs.locked_shared_ns);
        self.vcpus[vcpu]
            .guest
            .push_next(Micro::Run { ns, kernel: true });
    }

    /// `mutex_unlock`.
    pub(crate) fn guest_unlock_mutex(&mut self, vcpu: VcpuNr, mutex: MutexId) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, thread) = (v.vm, v.guest.current);
        let kernel = &mut self.vms[vm].kernel;
        let m = &mut kernel.mutexes[mutex.0 as usize];
        let Some(thread) = thread.filter(|_| m.owner == thread) else {
            let what = format!("releases mutex {}, which it does not hold", m.name);
            return self.wrong_program(vcpu, &what);
        };
        let first = m.waiters.front().copied();
        m.owner = first.filter(|_| m.handoff);
        kernel.threads[thread].holds.retain(|&held| held != mutex);
        let ns = u64::from(self.costs.locked_own_ns);
        self.vcpus[vcpu]
            .guest
            .push_next(Micro::Run { ns, kernel: true });
        self.poke_spinners(vm, mutex);
        match first {
            Some(thread) => self.guest_wake(vcpu, thread),
            None => Ok(()),
        }
    }

    /// The first who spins for a mutex, and the first sleeper if it spins, look again; and so do
    /// all whose predecessor may have lost its CPU.
    pub(crate) fn poke_spinners(&mut self, vm: VmNr, mutex: MutexId) {
        let kernel = &self.vms[vm].kernel;
        let m = &kernel.mutexes[mutex.0 as usize];
        let first = m.waiters.front().map(|&thread| kernel.threads[thread].vcpu);
        for place in 0..m.spinners.len() {
            let spinner = self.vms[vm].kernel.mutexes[mutex.0 as usize]
                .spinners
                .get(place)
                .copied();
            if let Some(index) = spinner {
                self.poke(self.vcpu_of(vm, index));
            }
        }
        if let Some(index) = first {
            self.poke(self.vcpu_of(vm, index));
        }
    }

    /// Leaves the queue of spinners, if it is in it: the next one looks.
    fn leave_spinners(&mut self, vm: VmNr, index: u32, mutex: MutexId) {
        let m = &mut self.vms[vm].kernel.mutexes[mutex.0 as usize];
        let Some(place) = m.spinners.iter().position(|&spinner| spinner == index) else {
            return;
        };
        m.spinners.remove(place);
        let next = m.spinners.get(place).copied();
        if let Some(next) = next {
            self.poke(self.vcpu_of(vm, next));
        }
    }

    /// Whether spinning makes sense (`mutex_can_spin_on_owner`, `osq_lock`): the owner runs, and
    /// so does whom this vCPU waits behind, and nothing else should run here.
    pub(crate) fn mutex_may_spin(&self, vcpu: VcpuNr, mutex: MutexId) -> bool {
        let v = &self.vcpus[vcpu];
        if v.guest.resched != stealtime_hypervisor::eevdf::Resched::None {
            return false;
        }
        let kernel = &self.vms[v.vm].kernel;
        let m = &kernel.mutexes[mutex.0 as usize];
        let runs = |index: u32| !self.guest_sees_preempted(self.vcpu_of(v.vm, index));
        let owner_runs = m.owner.is_none_or(|owner| {
            let on = kernel.threads[owner].vcpu;
            let on_cpu = self.vcpus[self.vcpu_of(v.vm, on)].guest.current == Some(owner);
            on_cpu && runs(on)
        });
        let sleeper = v.guest.current.is_some() && m.waiters.front() == v.guest.current.as_ref();
        if sleeper {
            return owner_runs;
        }
        let place = m.spinners.iter().position(|&spinner| spinner == v.index);
        let before = match place {
            Some(place) => place.checked_sub(1).and_then(|p| m.spinners.get(p)),
            None => m.spinners.back(),
        };
        owner_runs && before.is_none_or(|&index| runs(index))
    }

    /// Whether this vCPU's thread could take the mutex now.
    pub(crate) fn mutex_is_free(&self, vcpu: VcpuNr, mutex: MutexId) -> bool {
        let v = &self.vcpus[vcpu];
        let m = &self.vms[v.vm].kernel.mutexes[mutex.0 as usize];
        if m.owner.is_some() && m.owner == v.guest.current {
            return true;
        }
        let sleeper = m.waiters.front() == v.guest.current.as_ref();
        m.owner.is_none() && (sleeper || m.spinners.front() == Some(&v.index))
    }

    /// A vCPU's thread lost its CPU: who spins since the vCPU ran may see that.
    pub(crate) fn guest_lost_cpu(&mut self, vcpu: VcpuNr) {
        let v = &self.vcpus[vcpu];
        let vm = v.vm;
        if !self.vms[vm].cfg.guest.steal_time {
            return;
        }
        let spins = match v.guest.spin {
            Some(spin) => match spin.on {
                SpinOn::Mutex(mutex) => Some(mutex),
                _ => None,
            },
            None => None,
        };
        if let Some(mutex) = spins {
            self.poke_spinners(vm, mutex);
        }
        self.owner_off_cpu(vcpu);
    }

    /// The vCPU's thread does not run any more: spinners for what it holds look.
    pub(crate) fn owner_off_cpu(&mut self, vcpu: VcpuNr) {
        let v = &self.vcpus[vcpu];
        let vm = v.vm;
        let Some(thread) = v.guest.current else {
            return;
        };
        for place in 0..self.vms[vm].kernel.threads[thread].holds.len() {
            let held = self.vms[vm].kernel.threads[thread]
                .holds
                .get(place)
                .copied();
            if let Some(mutex) = held {
                self.poke_spinners(vm, mutex);
            }
        }
    }
}

//! Spinlocks of the kinds that a guest can have (`kernel/locking/qspinlock.c`,
//! `qspinlock_paravirt.h`, `virt_spin_lock`; `arch/s390/lib/spinlock.c`).
//!
//! | kind | where | who gets a free lock |
//! |---|---|---|
//! | paravirtual | the hypervisor offers the kick (`KVM_FEATURE_PV_UNHALT`) | the first waiter |
//! | test and set | it does not | whoever looks first |
//! | native | `nopvspin`, or one vCPU | the first waiter, even if its vCPU does not run |
//! | that yields | `spin_yield` | whoever looks first |
//!
//! A waiter for a lock that yields gives its CPU to the owner's vCPU, if that does not run: when it
//! begins to wait, and after each round of spinning.
//!
//! A waiter for a paravirtual lock that has spun long enough halts, and so does one whose
//! predecessor has halted; the one who unlocks kicks the first waiter once if that has halted, and
//! until it has woken up anybody may take the lock.

use super::kernel::{Holder, Waiter};
use super::spin::Look;
use super::{Micro, SpinOn};
use crate::fault::Sim;
use crate::ids::{VcpuNr, VmNr};
use crate::kvm::Exit;
use crate::machine::Machine;
use crate::program::SpinId;

/// How a guest's spinlocks work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// `pv_queued_spin_lock_slowpath`.
    Paravirtual,
    /// `virt_spin_lock`.
    TestAndSet,
    /// `native_queued_spin_lock_slowpath`.
    Native,
    /// `arch_spin_lock_wait_classic` of s390.
    Yielding,
}

impl Kind {
    /// Whether whoever looks first takes a free lock.
    const fn is_unfair(self) -> bool {
        matches!(self, Self::TestAndSet | Self::Yielding)
    }
}

impl Machine<'_> {
    /// `native_pv_lock_init`, `kvm_spinlock_init`: KVM does not offer the kick where HLT does not
    /// exit, and one vCPU has nobody to wait for.
    fn lock_kind(&self, vm: VmNr) -> Kind {
        let vm = &self.vms[vm];
        let guest = &vm.cfg.guest;
        if guest.spin_yield {
            Kind::Yielding
        } else if guest.nopvspin || vm.vcpus == 1 {
            Kind::Native
        } else if guest.pv_spinlocks && !guest.hlt_in_guest && !guest.mwait_in_guest {
            Kind::Paravirtual
        } else {
            Kind::TestAndSet
        }
    }

    /// How one lock works: one of a program is a word that its threads exchange.
    fn kind_of(&self, vm: VmNr, lock: SpinId) -> Kind {
        match self.is_user_lock(vm, lock) {
            true => Kind::TestAndSet,
            false => self.lock_kind(vm),
        }
    }

    pub(crate) fn is_user_lock(&self, vm: VmNr, lock: SpinId) -> bool {
        self.vms[vm].kernel.spinlocks[lock.0 as usize].user
    }

    /// Whether waiters for this lock yield to its owner.
    pub(crate) fn yields_to_owner(&self, vm: VmNr, lock: SpinId) -> bool {
        self.kind_of(vm, lock) == Kind::Yielding
    }

    /// Whether waiters for this lock halt.
    pub(crate) fn halts_for_lock(&self, vm: VmNr, lock: SpinId) -> bool {
        self.kind_of(vm, lock) == Kind::Paravirtual
    }

    /// `queued_spin_lock`: taken, or waits its turn.
    pub(crate) fn guest_try_lock(&mut self, vcpu: VcpuNr, lock: SpinId) -> Sim {
        let v = &self.vcpus[vcpu];
        let (vm, index, thread) = (v.vm, v.index, v.guest.current);
        if let Some(owner) = self.vms[vm].kernel.spinlocks[lock.0 as usize].owner {
            self.cut(self.vcpu_of(vm, owner.vcpu));
        }
        let user = self.is_user_lock(vm, lock);
        let v = &mut self.vcpus[vcpu];
        v.guest.preempt_off += 1;
        v.guest.user_locks += u16::from(user);
        let locked = u64::from(self.costs.locked_shared_ns);
        v.guest.push_next(Micro::Run {
            ns: locked,
            kernel: !user,
        });
        let unfair = self.kind_of(vm, lock).is_unfair();
        let l = &mut self.vms[vm].kernel.spinlocks[lock.0 as usize];
        if l.owner.is_some_and(|owner| owner.vcpu == index) {
            let what = format!("takes spinlock {}, which its vCPU holds already", l.name);
            return self.wrong_program(vcpu, &what);
        }
        // A first waiter that does not look leaves the pending bit clear: the lock can be stolen.
        let next = l.waiters.front();
        let free = l.owner.is_none() && (unfair || next.is_none_or(|first| first.halted));
        if free {
            l.owner = Some(Holder {
                vcpu: index,
                thread,
            });
            return Ok(());
        }
        l.waiters.push_back(Waiter {
            vcpu: index,
            thread,
            halted: false,
            kicked: false,
        });
        self.stats.lock_waits += 1;
        let spin = Micro::Spin(SpinOn::Lock(lock));
        self.vcpus[vcpu].guest.push_next(spin);
        Ok(())
    }

    /// `queued_spin_unlock`: the first waiter has it, or is kicked to come and take it.
    pub(crate) fn guest_unlock(&mut self, vcpu: VcpuNr, lock: SpinId) -> Sim {
        let v = &mut self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let own = u64::from(self.costs.locked_own_ns);
        let l = &mut self.vms[vm].kernel.spinlocks[lock.0 as usize];
        if l.owner.is_none_or(|owner| owner.vcpu != index) {
            let what = format!("releases spinlock {}, which it does not hold", l.name);
            return self.wrong_program(vcpu, &what);
        }
        l.owner = None;
        let first = l.waiters.front().copied();
        if let Some(first) = l.waiters.front_mut() {
            // `_Q_SLOW_VAL` is gone with this unlock.
            first.kicked |= first.halted;
        }
        let (unfair, user) = (
            self.kind_of(vm, lock).is_unfair(),
            self.is_user_lock(vm, lock),
        );
        let v = &mut self.vcpus[vcpu];
        v.guest.preempt_off = v.guest.preempt_off.saturating_sub(1);
        v.guest.user_locks -= u16::from(user);
        v.guest.push_next(Micro::CheckResched);
        match first {
            Some(first) if first.kicked => {}
            Some(first) if first.halted => {
                self.stats.pv_kicks += 1;
                let kick = Exit::KickCpu { vcpu: first.vcpu };
                v.guest.push_next(Micro::Exit(kick));
            }
            Some(_) if unfair => self.poke_waiters(vm, lock),
            Some(first) => {
                self.give_lock(vm, lock);
                self.poke(self.vcpu_of(vm, first.vcpu));
            }
            None => {}
        }
        self.vcpus[vcpu].guest.push_next(Micro::Run {
            ns: own,
            kernel: !user,
        });
        Ok(())
    }

    /// All who wait for a lock see that it is free.
    fn poke_waiters(&mut self, vm: VmNr, lock: SpinId) {
        for place in 0.. {
            let l = &self.vms[vm].kernel.spinlocks[lock.0 as usize];
            let Some(index) = l.waiters.get(place).map(|waiter| waiter.vcpu) else {
                return;
            };
            self.poke(self.vcpu_of(vm, index));
        }
    }

    /// The first waiter gets a free lock; the next one becomes the first, with new patience.
    fn give_lock(&mut self, vm: VmNr, lock: SpinId) {
        let l = &mut self.vms[vm].kernel.spinlocks[lock.0 as usize];
        let Some(first) = l.waiters.pop_front() else {
            return;
        };
        l.owner = Some(Holder {
            vcpu: first.vcpu,
            thread: first.thread,
        });
        let next = l.waiters.front().map(|next| next.vcpu);
        if let Some(next) = next {
            let next = self.vcpu_of(vm, next);
            if let Some(spin) = &mut self.vcpus[next].guest.spin {
                spin.spun_ns = 0;
            }
        }
    }

    /// A waiter looks.
    pub(crate) fn look_at_lock(&mut self, vcpu: VcpuNr, lock: SpinId) -> Look {
        let v = &self.vcpus[vcpu];
        let (vm, index) = (v.vm, v.index);
        let kind = self.kind_of(vm, lock);
        let l = &mut self.vms[vm].kernel.spinlocks[lock.0 as usize];
        let Some(place) = l.waiters.iter().position(|waiter| waiter.vcpu == index) else {
            return Look::Over;
        };
        if kind.is_unfair() {
            if let Some(owner) = l.owner {
                return match kind {
                    Kind::Yielding => self.wait_or_yield(vcpu, owner.vcpu),
                    _ => Look::Wait,
                };
            }
            let taker = l.waiters.remove(place);
            l.owner = taker.map(|Waiter { vcpu, thread, .. }| Holder { vcpu, thread });
            return Look::Over;
        }
        if place == 0 && l.owner.is_none() {
            self.give_lock(vm, lock);
            return Look::Over;
        }
        if kind == Kind::Native {
            return Look::Wait;
        }
        let patience = self.spin_threshold_ns();
        let spun = self.vcpus[vcpu].guest.spin.map_or(0, |spin| spin.spun_ns);
        let l = &mut self.vms[vm].kernel.spinlocks[lock.0 as usize];
        let early = place > 0 && l.waiters[place - 1].halted;
        l.waiters[place].halted = early || spun >= patience;
        l.waiters[place].kicked = false;
        if !l.waiters[place].halted {
            return Look::Wait;
        }
        self.stats.pv_waits += 1;
        let next = l.waiters.get(place + 1).map(|next| next.vcpu);
        if let Some(spin) = &mut self.vcpus[vcpu].guest.spin {
            spin.spun_ns = 0;
        }
        if let Some(next) = next {
            // `pv_wait_early`: who waits behind a halted waiter halts too.
            self.poke(self.vcpu_of(vm, next));
        }
        Look::Halt
    }

    /// A waiter for a lock that yields has found it taken.
    fn wait_or_yield(&mut self, vcpu: VcpuNr, owner: u32) -> Look {
        let waits_for = self.vcpu_of(self.vcpus[vcpu].vm, owner);
        let preempted = self.guest_sees_preempted(waits_for);
        let (now, round) = (self.now, self.spin_retry_ns());
        let Some(spin) = &mut self.vcpus[vcpu].guest.spin else {
            return Look::Wait;
        };
        let begins = spin.since_ns == now && spin.spun_ns == 0;
        if (begins && preempted) || spin.spun_ns >= round {
            spin.spun_ns = 0;
            return Look::Yield(owner);
        }
        Look::Wait
    }

    /// Whether a waiter would do anything but go on, if it looked.
    pub(crate) fn lock_wants_look(&self, vcpu: VcpuNr, lock: SpinId) -> bool {
        let v = &self.vcpus[vcpu];
        let l = &self.vms[v.vm].kernel.spinlocks[lock.0 as usize];
        let Some(place) = l.waiters.iter().position(|waiter| waiter.vcpu == v.index) else {
            return true;
        };
        let kind = self.kind_of(v.vm, lock);
        let first = place == 0 || kind.is_unfair();
        let behind_halted = place > 0 && l.waiters[place - 1].halted;
        (first && l.owner.is_none()) || (behind_halted && kind == Kind::Paravirtual)
    }
}

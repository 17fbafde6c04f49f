//! Spinlocks of the kinds that a guest can have (`kernel/locking/qspinlock.c`,
//! `qspinlock_paravirt.h`, `virt_spin_lock`; `arch/s390/lib/spinlock.c`).
//!
//! | kind | where | next owner of a free lock |
//! |---|---|---|
//! | paravirtual | the hypervisor offers the kick (`KVM_FEATURE_PV_UNHALT`) | the first waiter |
//! | test and set | it does not | whoever looks first |
//! | native | `nopvspin`, or one vCPU | the first waiter, even if its vCPU does not run |
//! | that yields | `spin_yield` | whoever looks first |
//!
//! A waiter for a lock that yields gives its CPU to a preempted owner's vCPU. It does so when it
//! begins to wait, and after each round of spinning.
//!
//! A waiter for a paravirtual lock halts after spinning long enough, or when its predecessor has
//! halted. An unlock kicks a halted first waiter once. Until that waiter is awake, any vCPU may take
//! the lock.

use super::kernel::{Holder, Waiter};
use super::spin::{Look, spin_retry_ns, spin_threshold_ns};
use super::{Guests, Micro, SpinOn, clock, spin, stretch};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::{VcpuNr, VmNr};
use crate::kvm::Exit;
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

/// `native_pv_lock_init`, `kvm_spinlock_init`: KVM does not offer the kick where HLT does not
/// exit, and a guest with one vCPU has no waiters.
fn lock_kind(guests: &Guests, vm: VmNr) -> Kind {
    let vm = &guests.vms[vm];
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
fn kind_of(guests: &Guests, vm: VmNr, lock: SpinId) -> Kind {
    match is_user_lock(guests, vm, lock) {
        true => Kind::TestAndSet,
        false => lock_kind(guests, vm),
    }
}

pub(crate) fn is_user_lock(guests: &Guests, vm: VmNr, lock: SpinId) -> bool {
    guests.vms[vm].kernel.spinlocks[lock.0 as usize].user
}

/// Whether waiters for this lock yield to its owner.
pub(crate) fn yields_to_owner(guests: &Guests, vm: VmNr, lock: SpinId) -> bool {
    kind_of(guests, vm, lock) == Kind::Yielding
}

/// Whether waiters for this lock halt.
pub(crate) fn halts_for_lock(guests: &Guests, vm: VmNr, lock: SpinId) -> bool {
    kind_of(guests, vm, lock) == Kind::Paravirtual
}

/// `queued_spin_lock`: taken, or waits its turn.
pub(crate) fn try_lock(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    lock: SpinId,
) -> Sim {
    let v = &guests.cpus[vcpu];
    let (vm, index, thread) = (v.vm, v.index, v.current);
    // The owner may release the lock within its stretch: that is carried out up to now before the
    // owner counts.
    if let Some(owner) = guests.vms[vm].kernel.spinlocks[lock.0 as usize].owner {
        stretch::cut(guests, host, guests.vcpu_of(vm, owner.vcpu));
    }
    let user = is_user_lock(guests, vm, lock);
    let v = &mut guests.cpus[vcpu];
    // `preempt_disable` comes before the attempt (`__raw_spin_lock`).
    v.preempt_off += 1;
    v.user_locks += u16::from(user);
    let locked = u64::from(host.costs().locked_shared_ns);
    v.push_next(Micro::Run {
        ns: locked,
        kernel: !user,
    });
    let unfair = kind_of(guests, vm, lock).is_unfair();
    let l = &mut guests.vms[vm].kernel.spinlocks[lock.0 as usize];
    if l.owner.is_some_and(|owner| owner.vcpu == index) {
        let message = format!("takes spinlock {}, which its vCPU holds already", l.name);
        return spin::wrong_program(guests, vcpu, &message);
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
    host.stats_mut().lock_waits += 1;
    let spin = Micro::Spin(SpinOn::Lock(lock));
    guests.cpus[vcpu].push_next(spin);
    Ok(())
}

/// `queued_spin_unlock`: the first waiter has it, or is kicked to come and take it.
pub(crate) fn unlock(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, lock: SpinId) -> Sim {
    let v = &mut guests.cpus[vcpu];
    let (vm, index) = (v.vm, v.index);
    let own_ns = u64::from(host.costs().locked_own_ns);
    let l = &mut guests.vms[vm].kernel.spinlocks[lock.0 as usize];
    if l.owner.is_none_or(|owner| owner.vcpu != index) {
        let message = format!("releases spinlock {}, which it does not hold", l.name);
        return spin::wrong_program(guests, vcpu, &message);
    }
    l.owner = None;
    let first = l.waiters.front().copied();
    if let Some(first) = l.waiters.front_mut() {
        // `_Q_SLOW_VAL` is gone with this unlock.
        first.kicked |= first.halted;
    }
    let (unfair, user) = (
        kind_of(guests, vm, lock).is_unfair(),
        is_user_lock(guests, vm, lock),
    );
    let v = &mut guests.cpus[vcpu];
    v.preempt_off = v.preempt_off.saturating_sub(1);
    v.user_locks -= u16::from(user);
    v.push_next(Micro::CheckResched);
    match first {
        // An earlier unlock has kicked it. It is not awake yet, and one kick is enough.
        Some(first) if first.kicked => {}
        Some(first) if first.halted => {
            host.stats_mut().pv_kicks += 1;
            let kick = Exit::KickCpu { vcpu: first.vcpu };
            v.push_next(Micro::Exit(kick));
        }
        Some(_) if unfair => poke_waiters(guests, host, vm, lock),
        Some(first) => {
            hand_over(guests, vm, lock);
            spin::poke(guests, host, guests.vcpu_of(vm, first.vcpu));
        }
        None => {}
    }
    guests.cpus[vcpu].push_next(Micro::Run {
        ns: own_ns,
        kernel: !user,
    });
    Ok(())
}

/// All waiters for a lock see that it is free.
fn poke_waiters(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, lock: SpinId) {
    for position in 0..guests.vms[vm].kernel.spinlocks[lock.0 as usize]
        .waiters
        .len()
    {
        let index = guests.vms[vm].kernel.spinlocks[lock.0 as usize].waiters[position].vcpu;
        spin::poke(guests, host, guests.vcpu_of(vm, index));
    }
}

/// The first waiter gets a free lock; the next one becomes the first, with new patience.
fn hand_over(guests: &mut Guests, vm: VmNr, lock: SpinId) {
    let l = &mut guests.vms[vm].kernel.spinlocks[lock.0 as usize];
    let Some(first) = l.waiters.pop_front() else {
        debug_assert!(false, "a lock without waiters is handed over");
        return;
    };
    l.owner = Some(Holder {
        vcpu: first.vcpu,
        thread: first.thread,
    });
    // `pv_wait_head_or_lock` counts its `SPIN_THRESHOLD` anew.
    let next = l.waiters.front().map(|next| next.vcpu);
    if let Some(next) = next {
        let next = guests.vcpu_of(vm, next);
        if let Some(spin) = &mut guests.cpus[next].spin {
            spin.spun_ns = 0;
        }
    }
}

/// A waiter looks.
pub(crate) fn look(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, lock: SpinId) -> Look {
    let v = &guests.cpus[vcpu];
    let (vm, index) = (v.vm, v.index);
    let kind = kind_of(guests, vm, lock);
    let l = &mut guests.vms[vm].kernel.spinlocks[lock.0 as usize];
    let Some(place) = l.waiters.iter().position(|waiter| waiter.vcpu == index) else {
        return Look::Over;
    };
    if kind.is_unfair() {
        if let Some(owner) = l.owner {
            return match kind {
                Kind::Yielding => wait_or_yield(guests, host, vcpu, owner.vcpu),
                _ => Look::Wait,
            };
        }
        let taker = l.waiters.remove(place);
        l.owner = taker.map(|Waiter { vcpu, thread, .. }| Holder { vcpu, thread });
        return Look::Over;
    }
    if place == 0 && l.owner.is_none() {
        hand_over(guests, vm, lock);
        return Look::Over;
    }
    if kind == Kind::Native {
        return Look::Wait;
    }
    let patience = spin_threshold_ns(host.costs());
    let spun = guests.cpus[vcpu].spin.map_or(0, |spin| spin.spun_ns);
    let l = &mut guests.vms[vm].kernel.spinlocks[lock.0 as usize];
    let early = place > 0 && l.waiters[place - 1].halted;
    l.waiters[place].halted = early || spun >= patience;
    // Before it halts again `_Q_SLOW_VAL` is set anew, so that the next unlock kicks.
    l.waiters[place].kicked = false;
    if !l.waiters[place].halted {
        return Look::Wait;
    }
    host.stats_mut().pv_waits += 1;
    let next = l.waiters.get(place + 1).map(|next| next.vcpu);
    if let Some(spin) = &mut guests.cpus[vcpu].spin {
        spin.spun_ns = 0;
    }
    if let Some(next) = next {
        // `pv_wait_early`: a waiter behind a halted one halts too.
        spin::poke(guests, host, guests.vcpu_of(vm, next));
    }
    Look::Halt
}

/// A waiter for a lock that yields has found it taken.
fn wait_or_yield(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, owner: u32) -> Look {
    let waits_for = guests.vcpu_of(guests.cpus[vcpu].vm, owner);
    let preempted = clock::is_preempted(guests, host, waits_for);
    let (now, round) = (host.now(), spin_retry_ns(host.costs()));
    let Some(spin) = &mut guests.cpus[vcpu].spin else {
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
pub(crate) fn wants_look(guests: &Guests, vcpu: VcpuNr, lock: SpinId) -> bool {
    let v = &guests.cpus[vcpu];
    let l = &guests.vms[v.vm].kernel.spinlocks[lock.0 as usize];
    let Some(place) = l.waiters.iter().position(|waiter| waiter.vcpu == v.index) else {
        return true;
    };
    let kind = kind_of(guests, v.vm, lock);
    let first = place == 0 || kind.is_unfair();
    let behind_halted = place > 0 && l.waiters[place - 1].halted;
    (first && l.owner.is_none()) || (behind_halted && kind == Kind::Paravirtual)
}

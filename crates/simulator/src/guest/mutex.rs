//! Mutexes that sleep, with optimistic spinning (`kernel/locking/mutex.c`, `osq_lock.c`).
//!
//! A thread that finds the owner running spins instead of sleeping: in a queue, of which only the
//! first looks at the owner. A spinner gives up when the owner or its predecessor does not run, as
//! far as the guest knows, or when another thread should run. A release leaves the mutex free and
//! wakes the first sleeper; the first to arrive has it. A sleeper that was woken in vain has it
//! handed over the next time.

use super::{Guests, Micro, SpinOn, ThreadState, clock, spin};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::{ThreadNr, VcpuNr, VmNr};
use crate::program::MutexId;

/// `mutex_lock`: taken; or spins while the owner runs; or sleeps.
pub(crate) fn try_lock(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    mutex: MutexId,
) -> Sim {
    let v = &guests.cpus[vcpu];
    let (vm, index) = (v.vm, v.index);
    let Some(thread) = v.current else {
        return host.broken("the idle thread takes a mutex");
    };
    let m = &mut guests.vms[vm].kernel.mutexes[mutex.0 as usize];
    match m.owner {
        None => {
            m.owner = Some(thread);
            leave_spinners(guests, host, vm, index, mutex);
            taken(guests, host, vcpu, thread, mutex);
            return Ok(());
        }
        Some(owner) if owner == thread => {
            let message = format!("takes mutex {}, which it holds already", m.name);
            return spin::wrong_program(guests, vcpu, &message);
        }
        Some(_) => {}
    }
    if may_spin(guests, host, vcpu, mutex) {
        let m = &mut guests.vms[vm].kernel.mutexes[mutex.0 as usize];
        if !m.spinners.contains(&index) {
            m.spinners.push_back(index);
        }
        let g = &mut guests.cpus[vcpu];
        g.push_next(Micro::TryMutex(mutex));
        g.push_next(Micro::Spin(SpinOn::Mutex(mutex)));
        return Ok(());
    }
    leave_spinners(guests, host, vm, index, mutex);
    let m = &mut guests.vms[vm].kernel.mutexes[mutex.0 as usize];
    m.waiters.push_back(thread);
    host.stats_mut().mutex_waits += 1;
    guests.cpus[vcpu].push_next(Micro::RetryMutex(mutex));
    guests.block(host, vcpu, ThreadState::WaitsMutex(mutex.0))
}

/// A sleeper was woken: takes the mutex, or spins as the first sleeper, or sleeps again.
pub(crate) fn retry(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, mutex: MutexId) -> Sim {
    let v = &guests.cpus[vcpu];
    let vm = v.vm;
    let Some(thread) = v.current else {
        return host.broken("the idle thread waits for a mutex");
    };
    let m = &mut guests.vms[vm].kernel.mutexes[mutex.0 as usize];
    if m.owner.is_none_or(|owner| owner == thread) {
        m.owner = Some(thread);
        m.waiters.retain(|&waiter| waiter != thread);
        m.handoff = false;
        taken(guests, host, vcpu, thread, mutex);
        return Ok(());
    }
    let first = m.waiters.front() == Some(&thread);
    // `MUTEX_FLAG_HANDOFF`: a sleeper that was woken in vain must not lose to arriving threads
    // again.
    m.handoff |= first;
    let may_spin = first && may_spin(guests, host, vcpu, mutex);
    let g = &mut guests.cpus[vcpu];
    g.push_next(Micro::RetryMutex(mutex));
    if may_spin {
        g.push_next(Micro::Spin(SpinOn::Mutex(mutex)));
        return Ok(());
    }
    guests.block(host, vcpu, ThreadState::WaitsMutex(mutex.0))
}

fn taken(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, thread: ThreadNr, mutex: MutexId) {
    let vm = guests.cpus[vcpu].vm;
    guests.vms[vm].kernel.threads[thread].holds.push(mutex);
    let ns = u64::from(host.costs().locked_shared_ns);
    guests.cpus[vcpu].push_next(Micro::Run { ns, kernel: true });
}

/// `mutex_unlock`.
pub(crate) fn unlock(
    guests: &mut Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    mutex: MutexId,
) -> Sim {
    let v = &guests.cpus[vcpu];
    let (vm, thread) = (v.vm, v.current);
    let kernel = &mut guests.vms[vm].kernel;
    let m = &mut kernel.mutexes[mutex.0 as usize];
    let Some(thread) = thread.filter(|_| m.owner == thread) else {
        let message = format!("releases mutex {}, which it does not hold", m.name);
        return spin::wrong_program(guests, vcpu, &message);
    };
    let first = m.waiters.front().copied();
    // `__mutex_handoff`. Without the flag the mutex is free, and the first to arrive takes it.
    m.owner = first.filter(|_| m.handoff);
    kernel.threads[thread].holds.retain(|&held| held != mutex);
    let ns = u64::from(host.costs().locked_own_ns);
    guests.cpus[vcpu].push_next(Micro::Run { ns, kernel: true });
    poke_spinners(guests, host, vm, mutex);
    match first {
        Some(thread) => guests.wake(host, vcpu, thread),
        None => Ok(()),
    }
}

/// The spinners for a mutex, and the first sleeper if it spins, look again. The mutex may be free,
/// or a predecessor may have lost its CPU.
pub(crate) fn poke_spinners(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, mutex: MutexId) {
    let kernel = &guests.vms[vm].kernel;
    let m = &kernel.mutexes[mutex.0 as usize];
    let first = m.waiters.front().map(|&thread| kernel.threads[thread].vcpu);
    for place in 0..m.spinners.len() {
        let spinner = guests.vms[vm].kernel.mutexes[mutex.0 as usize]
            .spinners
            .get(place)
            .copied();
        if let Some(index) = spinner {
            spin::poke(guests, host, guests.vcpu_of(vm, index));
        }
    }
    if let Some(index) = first {
        spin::poke(guests, host, guests.vcpu_of(vm, index));
    }
}

/// Leaves the queue of spinners, if it is in it: the next one looks.
fn leave_spinners(guests: &mut Guests, host: &mut Host<'_>, vm: VmNr, index: u32, mutex: MutexId) {
    let m = &mut guests.vms[vm].kernel.mutexes[mutex.0 as usize];
    let place = m.spinners.iter().position(|&spinner| spinner == index);
    // `osq_unlock`: the successor in the queue of optimistic spinners sees its predecessor gone.
    let next = place.and_then(|place| {
        m.spinners.remove(place);
        m.spinners.get(place).copied()
    });
    if let Some(next) = next {
        spin::poke(guests, host, guests.vcpu_of(vm, next));
    }
}

/// Whether spinning makes sense (`mutex_can_spin_on_owner`, `osq_lock`): the owner runs, and
/// so does this vCPU's predecessor, and nothing else should run here.
pub(crate) fn may_spin(guests: &Guests, host: &Host<'_>, vcpu: VcpuNr, mutex: MutexId) -> bool {
    let v = &guests.cpus[vcpu];
    if v.resched != stealtime_hypervisor::fair::Resched::None {
        return false;
    }
    let kernel = &guests.vms[v.vm].kernel;
    let m = &kernel.mutexes[mutex.0 as usize];
    let runs = |index: u32| !clock::is_preempted(guests, host, guests.vcpu_of(v.vm, index));
    let owner_runs = m.owner.is_none_or(|owner| {
        let owner_vcpu = kernel.threads[owner].vcpu;
        let on_cpu = guests.cpus[guests.vcpu_of(v.vm, owner_vcpu)].current == Some(owner);
        on_cpu && runs(owner_vcpu)
    });
    let sleeper = v.current.is_some() && m.waiters.front() == v.current.as_ref();
    if sleeper {
        return owner_runs;
    }
    let place = m.spinners.iter().position(|&spinner| spinner == v.index);
    let previous = match place {
        Some(place) => place.checked_sub(1).and_then(|p| m.spinners.get(p)),
        None => m.spinners.back(),
    };
    owner_runs && previous.is_none_or(|&index| runs(index))
}

/// Whether this vCPU's thread could take the mutex now.
pub(crate) fn is_free(guests: &Guests, vcpu: VcpuNr, mutex: MutexId) -> bool {
    let v = &guests.cpus[vcpu];
    let m = &guests.vms[v.vm].kernel.mutexes[mutex.0 as usize];
    if m.owner.is_some() && m.owner == v.current {
        return true;
    }
    let sleeper = m.waiters.front() == v.current.as_ref();
    m.owner.is_none() && (sleeper || m.spinners.front() == Some(&v.index))
}

/// A vCPU's thread lost its CPU: spinners that count on its running see that.
pub(crate) fn vcpu_descheduled(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let v = &guests.cpus[vcpu];
    let vm = v.vm;
    // Without the page of the steal time `vcpu_is_preempted` is always false: spinners see no
    // change.
    if !guests.vms[vm].cfg.guest.steal_time {
        return;
    }
    let spins = match v.spin {
        Some(spin) => match spin.on {
            SpinOn::Mutex(mutex) => Some(mutex),
            _ => None,
        },
        None => None,
    };
    if let Some(mutex) = spins {
        poke_spinners(guests, host, vm, mutex);
    }
    owner_descheduled(guests, host, vcpu);
}

/// The vCPU's thread does not run any more: spinners for what it holds look.
pub(crate) fn owner_descheduled(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let v = &guests.cpus[vcpu];
    let vm = v.vm;
    // The idle loop holds nothing.
    if let Some(thread) = v.current {
        for place in 0..guests.vms[vm].kernel.threads[thread].holds.len() {
            let held = guests.vms[vm].kernel.threads[thread]
                .holds
                .get(place)
                .copied();
            if let Some(mutex) = held {
                poke_spinners(guests, host, vm, mutex);
            }
        }
    }
}

//! The guest's timers: sleepers, the tick, and what the LAPIC is programmed to.

use stealtime_hypervisor::fair::RqId;

use super::{Guests, Micro, ThreadState, clock};
use crate::at::At;
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::VcpuNr;
use crate::kvm::Exit;

/// The current thread sleeps until `at`.
pub(crate) fn sleep(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr, wake_ns: u64) -> Sim {
    if wake_ns <= host.now() {
        return Ok(());
    }
    let g = &mut guests.cpus[vcpu];
    let Some(thread) = g.current else {
        return Ok(());
    };
    let place = g.sleepers.partition_point(|sleeper| sleeper.0 > wake_ns);
    g.sleepers.insert(place, (wake_ns, thread));
    guests.expect(vcpu, ThreadState::Sleeps);
    guests.cpus[vcpu].push_next(Micro::Block);
    program(guests, host, vcpu);
    Ok(())
}

/// The first thing that the timer is needed for.
fn next_expiry(guests: &Guests, vcpu: VcpuNr) -> Option<u64> {
    let g = &guests.cpus[vcpu];
    let sleeper = g.sleepers.last().map(|sleeper| sleeper.0);
    match (sleeper, g.tick_at.get()) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// Programs the LAPIC timer if that must fire at another time than it will.
pub(crate) fn program(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let want = next_expiry(guests, vcpu);
    let now = host.now();
    let g = &mut guests.cpus[vcpu];
    if g.programmed.get() == want {
        return;
    }
    g.programmed = want.into();
    let at_ns = want.map_or(0, |time| time.max(now + 1));
    g.push_next(Micro::Exit(Exit::TscDeadline { at_ns }));
}

/// The timer interrupt: wakes threads that have slept enough, and ticks.
pub(crate) fn expire(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
    let now = host.now();
    guests.cpus[vcpu].programmed = At::NEVER;
    while let Some(&(time, thread)) = guests.cpus[vcpu].sleepers.last() {
        if time > now {
            break;
        }
        guests.cpus[vcpu].sleepers.pop();
        guests.wake(host, vcpu, thread)?;
    }
    if guests.cpus[vcpu]
        .tick_at
        .get()
        .is_some_and(|time| time <= now)
    {
        tick(guests, host, vcpu)?;
    }
    program(guests, host, vcpu);
    Ok(())
}

fn tick(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) -> Sim {
    let v = &guests.cpus[vcpu];
    let (vm, index, idle) = (v.vm, v.index, v.current.is_none());
    let clock = clock::task_clock(guests, host, vm, index);
    let kernel = &mut guests.vms[vm].kernel;
    let tick = kernel.tick_ns;
    let rq = RqId::nth(index);
    let next = (host.now() / tick + 1) * tick;
    if !idle {
        let actions = kernel.fair.tick(rq, clock)?;
        guests.request_resched(host, vcpu, actions.resched);
    }
    let cost = u64::from(host.costs().tick_ns);
    let g = &mut guests.cpus[vcpu];
    g.tick_at = At::ns(next);
    g.push(Micro::Run {
        ns: cost,
        kernel: true,
    });
    Ok(())
}

/// A vCPU with a thread to run has a tick.
pub(crate) fn start_tick(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let tick = guests.vms[guests.cpus[vcpu].vm].kernel.tick_ns;
    // Ticks of all vCPUs are on one grid, as without `skew_tick`.
    let next = (host.now() / tick + 1) * tick;
    let g = &mut guests.cpus[vcpu];
    if !g.tick_at.is_some() {
        g.tick_at = At::ns(next);
        program(guests, host, vcpu);
    }
}

/// An idle one has none (`tick_nohz_idle_stop_tick`).
pub(crate) fn stop_tick(guests: &mut Guests, host: &mut Host<'_>, vcpu: VcpuNr) {
    let g = &mut guests.cpus[vcpu];
    if g.tick_at.take().is_some() {
        program(guests, host, vcpu);
    }
}

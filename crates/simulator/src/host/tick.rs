//! Ticks: the scheduler's on each CPU, the one that `nohz_full` CPUs get from elsewhere, and ends of slices.

use super::{Host, balance, bandwidth, hrtimer};
use crate::fault::Sim;
use crate::ids::CpuNr;
use crate::script::Late;

/// How often the tick of a `nohz_full` CPU is made up for elsewhere, in ns.
pub(crate) const REMOTE_TICK_NS: u64 = 1_000_000_000;

/// The tick of a CPU that is not idle.
pub(crate) fn tick(host: &mut Host<'_>, cpu: CpuNr, due: u64) -> Sim {
    host.charge(cpu, host.costs.tick_ns);
    host.out.stats.ticks += 1;
    bandwidth::charge_current(host, cpu);
    if host.cpus[cpu].current.is_some() {
        let actions = host.class.tick(host.cpus[cpu].rq, host.clock.now())?;
        host.act(cpu, actions, cpu)?;
    }
    balance::on_tick(host, cpu)?;
    if keeps_tick(host, cpu) {
        let next = match host.cfg.scripts.tick_late.is_empty() {
            true => (due + tick_ns(host)).max(host.clock.now() + 1),
            false => next_tick(host, cpu),
        };
        let timer = host.cpus[cpu].tick;
        hrtimer::start_pinned(host, timer, cpu, next);
    }
    Ok(())
}

pub(crate) fn hrtick(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    let actions = host.class.hrtick(host.cpus[cpu].rq, host.clock.now())?;
    host.act(cpu, actions, cpu)
}

pub(crate) fn arm_hrtick(host: &mut Host<'_>, cpu: CpuNr, time: Option<u64>) {
    let timer = host.cpus[cpu].hrtick;
    match time {
        Some(time) => {
            let scripts = &host.cfg.scripts;
            // Without a recorded slice timer the tick's timer says how late this CPU is.
            let late = Late::on(&scripts.late, cpu, time);
            let late = late.or_else(|| Late::on(&scripts.tick_late, cpu, time));
            let time = time.max(host.clock.now()) + late.unwrap_or(0);
            if host.timers[timer].queued() != Some((cpu, time)) {
                hrtimer::start_pinned(host, timer, cpu, time);
            }
        }
        None => {
            if host.timers[timer].queued().is_some() {
                hrtimer::cancel(host, timer, cpu);
            }
        }
    }
}

/// Once a second housekeeping does what a stopped tick does not.
pub(crate) fn tick_remote(host: &mut Host<'_>, cpu: CpuNr) -> Sim {
    let next = host.clock.now() + REMOTE_TICK_NS;
    host.clock.post(next, super::Message::RemoteTick { cpu });
    // A CPU with a running tick needs no remote one (`sched_tick_remote`).
    let stopped = host.timers[host.cpus[cpu].tick].queued().is_none();
    if host.cpus[cpu].current.is_none() || !stopped {
        return Ok(());
    }
    let remote = housekeeper(host, cpu).unwrap_or(CpuNr(0));
    host.charge(remote, host.costs.tick_ns);
    let actions = host.class.tick(host.cpus[cpu].rq, host.clock.now())?;
    host.act(cpu, actions, remote)
}

/// The first CPU that does housekeeping, from `near` on; `None` if none does.
pub(crate) fn housekeeper(host: &Host<'_>, near: CpuNr) -> Option<CpuNr> {
    let n = host.cpus.len() as u32;
    let mut from_near = (0..n).map(|step| CpuNr((near.0 + step) % n));
    from_near.find(|&cpu| host.cpus[cpu].housekeeping)
}

pub(crate) fn tick_ns(host: &Host<'_>) -> u64 {
    1_000_000_000 / u64::from(host.cfg.knobs.sched.hz)
}

/// A CPU of `nohz_full` with one task needs no tick.
pub(crate) fn keeps_tick(host: &Host<'_>, cpu: CpuNr) -> bool {
    let c = &host.cpus[cpu];
    c.housekeeping || c.runnable > 1
}

pub(crate) fn stop_tick(host: &mut Host<'_>, cpu: CpuNr) {
    let timer = host.cpus[cpu].tick;
    if host.timers[timer].queued().is_some() {
        hrtimer::cancel(host, timer, cpu);
    }
}

/// The tick goes on at its own phase.
pub(crate) fn start_tick(host: &mut Host<'_>, cpu: CpuNr) {
    let timer = host.cpus[cpu].tick;
    if host.timers[timer].queued().is_some() {
        return;
    }
    let next = next_tick(host, cpu);
    hrtimer::start_pinned(host, timer, cpu, next);
}

/// When the next tick comes, if it is set now.
fn next_tick(host: &Host<'_>, cpu: CpuNr) -> u64 {
    let (tick, scripts) = (tick_ns(host), &host.cfg.scripts);
    let phase = scripts.tick_phase_ns % tick;
    let due = (host.clock.now() + tick - phase) / tick * tick + phase;
    due + Late::on(&scripts.tick_late, cpu, due).unwrap_or(0)
}

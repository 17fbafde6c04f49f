//! Where tasks wake (`select_task_rq_fair`).

use super::{CpuSet, Host, irq, tick};
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr};

/// A task more runs or waits on `cpu`.
pub(crate) fn one_more(host: &mut Host<'_>, cpu: CpuNr) {
    let c = &mut host.cpus[cpu];
    c.runnable += 1;
    let runnable = c.runnable;
    if runnable == 1 {
        c.balance.woken(host.clock.now());
    }
    host.domains.changed(cpu, runnable);
    note_utilization(host, cpu, runnable);
}

/// A task less.
pub(crate) fn one_less(host: &mut Host<'_>, cpu: CpuNr) {
    let c = &mut host.cpus[cpu];
    c.runnable = c.runnable.saturating_sub(1);
    let runnable = c.runnable;
    host.domains.changed(cpu, runnable);
    note_utilization(host, cpu, runnable);
}

fn note_utilization(host: &mut Host<'_>, cpu: CpuNr, runnable: u32) {
    let now = host.clock.now();
    if let Some(search) = &mut host.search {
        search.changed(cpu, runnable > 0, now);
    }
}

/// How many CPUs of a cache a wakeup looks at (`nr_idle_scan`).
fn scan_limit(host: &mut Host<'_>, cache: u32) -> u32 {
    let now = host.clock.now();
    match &mut host.search {
        Some(search) => search.limit(cache, host.domains.cpus_of(cache), now),
        None => host.domains.scan_limit(cache),
    }
}

fn has_nothing(host: &Host<'_>, cpu: CpuNr) -> bool {
    host.cpus[cpu].runnable == 0
}

/// Where a sleeper wakes: near its last CPU or its waker's (`wake_affine`), on an idle CPU
/// that shares the cache if the search finds one.
pub(crate) fn select_cpu(host: &mut Host<'_>, task: TaskNr, waker: CpuNr) -> CpuNr {
    let t = &host.tasks[task];
    let prev = t.cpu;
    if !t.allowed.has(prev) {
        return least_busy(host, &t.allowed);
    }
    // A recorded task moves where its script says, and nowhere else.
    if t.kept {
        return host.tasks[task].take_goes_to().unwrap_or(prev);
    }
    if host.cpus[prev].isolated {
        return prev;
    }
    let affine = waker != prev && t.allowed.has(waker) && !host.cpus[waker].isolated;
    let target = if affine {
        wake_affine(host, prev, waker)
    } else {
        prev
    };
    let cache = host.cfg.host.topology.llc_of(target.0);
    let maximum = scan_limit(host, cache);
    idle_sibling(host, task, prev, target, maximum).unwrap_or(target)
}

/// Where a task begins that may no longer run where it was: the first CPU of those with the fewest
/// tasks.
fn least_busy(host: &Host<'_>, allowed: &CpuSet) -> CpuNr {
    let cpus = (0..host.cpus.len() as u32).map(CpuNr);
    cpus.filter(|&cpu| allowed.has(cpu))
        .min_by_key(|&cpu| host.cpus[cpu].runnable)
        .unwrap_or_else(|| allowed.first())
}

/// `wake_affine_idle`, then `wake_affine_weight` with numbers of tasks for loads.
fn wake_affine(host: &Host<'_>, prev: CpuNr, waker: CpuNr) -> CpuNr {
    let topology = &host.cfg.host.topology;
    let shared = topology.llc_of(prev.0) == topology.llc_of(waker.0);
    if has_nothing(host, prev) {
        return prev;
    }
    if shared && has_nothing(host, waker) {
        return waker;
    }
    // The waker's CPU would have the task in addition (`wake_affine_weight`).
    let waker_load = (u64::from(host.cpus[waker].runnable) + 1) * 100;
    let bias = 100 + (super::domain::IMBALANCE_PCT - 100) / 2;
    let prev_load = u64::from(host.cpus[prev].runnable) * bias;
    if waker_load < prev_load { waker } else { prev }
}

/// `select_idle_sibling`, which looks at `maximum` CPUs of the cache.
fn idle_sibling(
    host: &Host<'_>,
    task: TaskNr,
    prev: CpuNr,
    target: CpuNr,
    maximum: u32,
) -> Option<CpuNr> {
    if has_nothing(host, target) {
        return Some(target);
    }
    let topology = &host.cfg.host.topology;
    let cache = topology.llc_of(target.0);
    let shared = topology.llc_of(prev.0) == cache;
    if shared && has_nothing(host, prev) {
        return Some(prev);
    }
    let load = host.domains.cache_load(cache);
    // No CPU of the cache is idle: a scan would find none.
    if load.idle_cpus == 0 {
        return None;
    }
    let allowed = &host.tasks[task].allowed;
    if topology.threads_per_core > 1 {
        // `test_idle_cores`: a whole idle core beats an idle sibling.
        if load.idle_cores > 0 {
            let core = host.domains.idle_core(allowed, target.0);
            return core.or_else(|| host.domains.idle_cpu(allowed, target.0, u32::MAX));
        }
        let sibling = topology.sibling_of(prev.0).map(CpuNr);
        let idle = sibling.filter(|&s| {
            shared && has_nothing(host, s) && allowed.has(s) && !host.cpus[s].isolated
        });
        if idle.is_some() {
            return idle;
        }
    }
    host.domains.idle_cpu(allowed, target.0, maximum)
}

/// A second task on a CPU without a tick (`tick_nohz_full_kick_cpu`): it must have one again.
pub(crate) fn need_tick(host: &mut Host<'_>, cpu: CpuNr, source: CpuNr) -> Sim {
    let c = &host.cpus[cpu];
    if c.housekeeping || c.runnable < 2 || host.timers[c.tick].queued().is_some() {
        return Ok(());
    }
    if c.phase == super::Phase::Idle {
        return Ok(());
    }
    tick::start_tick(host, cpu);
    if cpu != source {
        irq::send_ipi(host, source, cpu, super::Irq::Reschedule);
    }
    Ok(())
}

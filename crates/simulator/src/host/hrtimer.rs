//! hrtimers of the host: a sorted list on each CPU, and its clock event device.

use stealtime_events::Kind;
use stealtime_hypervisor::lapic_timer::{CpuTimers, TimerRequest, place_hrtimer};

use super::Host;
use super::task::NOWHERE;
use crate::at::At;
use crate::fault::Sim;
use crate::ids::{CpuNr, Number, TaskNr, TimerNr, VcpuNr};

/// What an hrtimer does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callback {
    /// The tick of a CPU (`tick_nohz_handler`).
    Tick,
    /// The end of a slice (`hrtick`).
    Hrtick,
    /// A sleeper of the host (`hrtimer_wakeup`).
    Wakeup(TaskNr),
    /// A limit's period (`sched_cfs_period_timer`).
    Period(u32),
    /// A script's time has come (`hrtimer_wakeup` or `apic_timer_fn`).
    Script(TaskNr),
    /// A vCPU's LAPIC timer (`apic_timer_fn`).
    LapicTimer(VcpuNr),
}

/// An hrtimer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hrtimer {
    pub(crate) callback: Callback,
    /// When it expires, if it is queued.
    expires: At,
    /// Where it is queued, or was last; [`NOWHERE`] before that.
    cpu: CpuNr,
}

impl Hrtimer {
    pub(crate) const fn new(callback: Callback) -> Self {
        Self {
            callback,
            expires: At::NEVER,
            cpu: NOWHERE,
        }
    }

    /// Where it is queued, and when it expires.
    pub(crate) fn queued(&self) -> Option<(CpuNr, u64)> {
        self.expires.get().map(|time| (self.cpu, time))
    }

    /// The CPU where it is queued or was last.
    fn last(&self) -> Option<CpuNr> {
        (self.cpu != NOWHERE).then_some(self.cpu)
    }

    /// It is no longer queued. Where it was, and when it would have expired.
    pub(crate) fn take_off(&mut self) -> Option<(CpuNr, u64)> {
        let previous = self.queued();
        self.expires = At::NEVER;
        previous
    }
}

/// Starts a timer on `cpu` itself. An armed one moves.
pub(crate) fn start_pinned(host: &mut Host<'_>, timer: TimerNr, cpu: CpuNr, time: u64) {
    unqueue(host, timer);
    enqueue(host, timer, cpu, time);
}

/// Starts a timer that may go where housekeeping is done (`HRTIMER_MODE_ABS`). Whether the
/// place that would have been chosen refused it.
pub(crate) fn start_unpinned(
    host: &mut Host<'_>,
    timer: TimerNr,
    source: CpuNr,
    time: u64,
) -> Sim<bool> {
    let previous = host.timers[timer].queued();
    let first = previous.is_some_and(|(cpu, _)| {
        host.cpus[cpu]
            .hrtimers
            .front()
            .is_some_and(|t| t.1 == timer)
    });
    unqueue(host, timer);
    if !has_isolation(host) {
        // Nothing isolated: the CPU that starts it is as good as any, unless it is idle.
        host.charge(source, host.costs.hrtimer_start_ns);
        enqueue(host, timer, source, time);
        return Ok(false);
    }
    let request = TimerRequest {
        at_ns: time as i64,
        from: source.index(),
        queued_on: host.timers[timer].last().map(Number::index),
        first_in_queue: first,
        pinned: false,
        callback_running: false,
        migration: host.cfg.knobs.sched.timer_migration,
    };
    if host.nearest[source.index()].is_empty() {
        host.nearest[source.index()] = nearest_to(host, source);
    }
    let nearest = &host.nearest[source.index()];
    let place = place_hrtimer(
        &request,
        &host.timer_views,
        nearest,
        &host.out.stats.mechanisms,
    );
    let Ok(place) = place else {
        return host.broken("a timer was placed on a CPU that is not there");
    };
    let cpu = CpuNr::from_index(place.cpu);
    let cost = if cpu == source {
        host.costs.hrtimer_start_ns
    } else {
        host.costs.hrtimer_remote_ns
    };
    host.charge(source, cost);
    enqueue(host, timer, cpu, time);
    Ok(place.refused)
}

/// The placement of timers depends on which CPUs idle. Without isolation it is not used.
pub(crate) fn note_idle(host: &mut Host<'_>, cpu: CpuNr, idle: bool) {
    if let Some(view) = host.timer_views.get_mut(cpu.index()) {
        view.idle = idle;
    }
}

/// What the placement of timers looks at, for all CPUs: kept only where it is asked.
pub(crate) fn begin_views(host: &mut Host<'_>) {
    if !has_isolation(host) {
        return;
    }
    let view = |c: &super::Cpu| CpuTimers {
        housekeeping: c.housekeeping,
        idle: true,
        next_event_ns: None,
    };
    host.timer_views = host.cpus.iter().map(view).collect();
    host.nearest = vec![Vec::new(); host.cpus.len()];
}

fn has_isolation(host: &Host<'_>) -> bool {
    !host.cfg.knobs.host.nohz_full.is_empty()
}

/// The other CPUs, those of the same cache first, then the same socket.
fn nearest_to(host: &Host<'_>, cpu: CpuNr) -> Vec<usize> {
    let t = host.cfg.host.topology;
    let mut rest: Vec<usize> = (0..host.cpus.len()).filter(|&c| c != cpu.index()).collect();
    rest.sort_by_key(|&c| {
        let c = c as u32;
        (
            t.core_of(c) != t.core_of(cpu.0),
            t.llc_of(c) != t.llc_of(cpu.0),
            t.socket_of(c) != t.socket_of(cpu.0),
            c,
        )
    });
    rest
}

/// Takes the first timer of `cpu` off its queue if it is due: when it was, and which one it is.
pub(crate) fn take_due(host: &mut Host<'_>, cpu: CpuNr) -> Option<(u64, TimerNr)> {
    let &(time, timer) = host.cpus[cpu].hrtimers.front()?;
    if time > host.clock.now() {
        return None;
    }
    host.cpus[cpu].hrtimers.pop_front();
    if host.timers[timer].take_off() != Some((cpu, time)) {
        host.checks
            .fail("timer-early", || format!("timer {} was not armed", timer.0));
    }
    Some((time, timer))
}

/// Takes a timer off its queue. Whether it was on one.
pub(crate) fn cancel(host: &mut Host<'_>, timer: TimerNr, cpu: CpuNr) -> bool {
    let was_queued = host.timers[timer].queued().is_some();
    if was_queued {
        host.emit(
            cpu,
            Kind::HrtimerCancel {
                hrtimer: address(timer),
            },
        );
    }
    unqueue(host, timer);
    was_queued
}

fn unqueue(host: &mut Host<'_>, timer: TimerNr) {
    if let Some((cpu, _)) = host.timers[timer].take_off() {
        let list = &mut host.cpus[cpu].hrtimers;
        if let Some(position) = list.iter().position(|t| t.1 == timer) {
            list.remove(position);
        }
        program(host, cpu);
    }
}

fn enqueue(host: &mut Host<'_>, timer: TimerNr, cpu: CpuNr, expires_ns: u64) {
    if !At::ns(expires_ns).is_some() {
        // The last time of all is none: it never expires.
        return;
    }
    let t = &mut host.timers[timer];
    (t.cpu, t.expires) = (cpu, At::ns(expires_ns));
    host.out.stats.timers_started += 1;
    let list = &mut host.cpus[cpu].hrtimers;
    if list.len() == list.capacity() {
        // Most CPUs have one or two: not four at once, as a list would begin with.
        list.reserve_exact(list.len().max(2));
    }
    // Most expire after all others.
    let predecessor = list.iter().rev().position(|t| t.0 <= expires_ns);
    list.insert(
        predecessor.map_or(0, |n| list.len() - n),
        (expires_ns, timer),
    );
    program(host, cpu);
    if host.out.tracing() {
        let (hrtimer, function) = (address(timer), function(host, timer));
        host.emit(
            cpu,
            Kind::HrtimerStart {
                hrtimer,
                expires_ns,
                function,
            },
        );
    }
}

/// Programs the clock event device to the first timer.
pub(crate) fn program(host: &mut Host<'_>, cpu: CpuNr) {
    let c = &host.cpus[cpu];
    if let Some(view) = host.timer_views.get_mut(cpu.index()) {
        view.next_event_ns = c.hrtimers.front().map(|t| t.0 as i64);
    }
    let slot = c.clock_event;
    match c.hrtimers.front() {
        Some(&(time, _)) => {
            let time = time.max(host.clock.now());
            if host.clock.when(slot) != Some(time) {
                host.clock.arm(slot, time);
            }
        }
        None => host.clock.cancel(slot),
    }
}

/// A stand-in for the timer's address, as events show it.
pub(crate) fn address(timer: TimerNr) -> u64 {
    0xffff_8880_0000_0000 + u64::from(timer.0) * 64
}

pub(crate) fn function(host: &Host<'_>, timer: TimerNr) -> stealtime_events::NameId {
    match host.timers[timer].callback {
        Callback::Tick => host.out.functions.tick,
        Callback::Hrtick => host.out.functions.hrtick,
        Callback::Wakeup(_) | Callback::Script(_) => host.out.functions.wakeup,
        Callback::Period(_) => host.out.functions.period,
        Callback::LapicTimer(_) => host.out.functions.apic_timer,
    }
}

//! hrtimers of the host: a sorted list on each CPU, and its clock event device.

use stealtime_events::Kind;
use stealtime_hypervisor::lapic_timer::{CpuTimers, TimerRequest, place_hrtimer};

use super::Machine;
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
        self.expires.get().map(|at| (self.cpu, at))
    }

    /// The CPU where it is queued or was last.
    fn last(&self) -> Option<CpuNr> {
        (self.cpu != NOWHERE).then_some(self.cpu)
    }

    /// It is no longer queued. Where it was, and when it would have expired.
    pub(crate) fn take_off(&mut self) -> Option<(CpuNr, u64)> {
        let was = self.queued();
        self.expires = At::NEVER;
        was
    }
}

impl Machine<'_> {
    /// Starts a timer on `cpu` itself. An armed one moves.
    pub(crate) fn start_pinned(&mut self, timer: TimerNr, cpu: CpuNr, at: u64) {
        self.unqueue(timer);
        self.enqueue_timer(timer, cpu, at);
    }

    /// Starts a timer that may go where housekeeping is done (`HRTIMER_MODE_ABS`). Whether the
    /// place that would have been chosen refused it.
    pub(crate) fn start_unpinned(&mut self, timer: TimerNr, from: CpuNr, at: u64) -> Sim<bool> {
        let was = self.timers[timer].queued();
        let first = was.is_some_and(|(cpu, _)| {
            self.cpus[cpu]
                .hrtimers
                .front()
                .is_some_and(|t| t.1 == timer)
        });
        self.unqueue(timer);
        if !self.has_isolation() {
            // Nothing isolated: the CPU that starts it is as good as any, unless it is idle.
            self.charge(from, self.costs.hrtimer_start_ns);
            self.enqueue_timer(timer, from, at);
            return Ok(false);
        }
        let request = TimerRequest {
            at_ns: at as i64,
            from: from.index(),
            queued_on: self.timers[timer].last().map(Number::index),
            first_in_queue: first,
            pinned: false,
            callback_running: false,
            migration: self.cfg.knobs.sched.timer_migration,
        };
        if self.nearest[from.index()].is_empty() {
            self.nearest[from.index()] = self.nearest_to(from);
        }
        let nearest = &self.nearest[from.index()];
        let place = place_hrtimer(&request, &self.timer_views, nearest, &self.stats.mechanisms);
        let Ok(place) = place else {
            return self.broken("a timer was placed on a CPU that is not there");
        };
        let cpu = CpuNr::from_index(place.cpu);
        let cost = if cpu == from {
            self.costs.hrtimer_start_ns
        } else {
            self.costs.hrtimer_remote_ns
        };
        self.charge(from, cost);
        self.enqueue_timer(timer, cpu, at);
        Ok(place.refused)
    }

    /// Where timers may be placed changes with what idles; nobody asks without isolation.
    pub(crate) fn note_idle(&mut self, cpu: CpuNr, idle: bool) {
        if let Some(view) = self.timer_views.get_mut(cpu.index()) {
            view.idle = idle;
        }
    }

    /// What the placement of timers looks at, for all CPUs: kept only where it is asked.
    pub(crate) fn begin_timer_views(&mut self) {
        if !self.has_isolation() {
            return;
        }
        let view = |c: &super::Cpu| CpuTimers {
            housekeeping: c.housekeeping,
            idle: true,
            next_event_ns: None,
        };
        self.timer_views = self.cpus.iter().map(view).collect();
        self.nearest = vec![Vec::new(); self.cpus.len()];
    }

    fn has_isolation(&self) -> bool {
        !self.cfg.knobs.host.nohz_full.is_empty()
    }

    /// The other CPUs, those of the same cache first, then the same socket.
    fn nearest_to(&self, cpu: CpuNr) -> Vec<usize> {
        let t = self.cfg.host.topology;
        let mut others: Vec<usize> = (0..self.cpus.len()).filter(|&c| c != cpu.index()).collect();
        others.sort_by_key(|&c| {
            let c = c as u32;
            (
                t.core_of(c) != t.core_of(cpu.0),
                t.llc_of(c) != t.llc_of(cpu.0),
                t.socket_of(c) != t.socket_of(cpu.0),
                c,
            )
        });
        others
    }

    /// Takes a timer off its queue. Whether it was on one.
    pub(crate) fn cancel_timer(&mut self, timer: TimerNr, cpu: CpuNr) -> bool {
        let was = self.timers[timer].queued().is_some();
        if was {
            self.emit(
                cpu,
                Kind::HrtimerCancel {
                    hrtimer: self.timer_address(timer),
                },
            );
        }
        self.unqueue(timer);
        was
    }

    fn unqueue(&mut self, timer: TimerNr) {
        let Some((cpu, _)) = self.timers[timer].take_off() else {
            return;
        };
        let list = &mut self.cpus[cpu].hrtimers;
        if let Some(at) = list.iter().position(|t| t.1 == timer) {
            list.remove(at);
        }
        self.program(cpu);
    }

    fn enqueue_timer(&mut self, timer: TimerNr, cpu: CpuNr, at: u64) {
        if !At::ns(at).is_some() {
            // The last time of all is none: it never expires.
            return;
        }
        let t = &mut self.timers[timer];
        (t.cpu, t.expires) = (cpu, At::ns(at));
        self.stats.timers_started += 1;
        let list = &mut self.cpus[cpu].hrtimers;
        if list.len() == list.capacity() {
            // Most CPUs have one or two: not four at once, as a list would begin with.
            list.reserve_exact(list.len().max(2));
        }
        // Most expire after all others.
        let before = list.iter().rev().position(|t| t.0 <= at);
        list.insert(before.map_or(0, |n| list.len() - n), (at, timer));
        self.program(cpu);
        if self.tracing {
            let (hrtimer, function) = (self.timer_address(timer), self.timer_function(timer));
            self.emit(
                cpu,
                Kind::HrtimerStart {
                    hrtimer,
                    expires_ns: at,
                    function,
                },
            );
        }
    }

    /// Programs the clock event device to the first timer.
    fn program(&mut self, cpu: CpuNr) {
        let c = &self.cpus[cpu];
        if let Some(view) = self.timer_views.get_mut(cpu.index()) {
            view.next_event_ns = c.hrtimers.front().map(|t| t.0 as i64);
        }
        let slot = c.clock_event;
        match c.hrtimers.front() {
            Some(&(at, _)) => {
                let at = at.max(self.now);
                if self.queue.when(slot) != Some(at) {
                    self.queue.arm(slot, at);
                }
            }
            None => self.queue.cancel(slot),
        }
    }

    /// The timer interrupt: all that is due.
    pub(crate) fn expire_hrtimers(&mut self, cpu: CpuNr) -> Sim {
        while let Some(&(at, timer)) = self.cpus[cpu].hrtimers.front() {
            if at > self.now {
                break;
            }
            self.cpus[cpu].hrtimers.pop_front();
            if self.timers[timer].take_off() != Some((cpu, at)) {
                self.checks
                    .fail("timer-early", || format!("timer {} was not armed", timer.0));
            }
            let hrtimer = self.timer_address(timer);
            let function = self.timer_function(timer);
            self.emit(
                cpu,
                Kind::HrtimerExpireEntry {
                    hrtimer,
                    now_ns: self.now,
                    function,
                },
            );
            self.expired(cpu, timer, at)?;
            self.emit(cpu, Kind::HrtimerExpireExit { hrtimer });
        }
        self.program(cpu);
        Ok(())
    }

    fn expired(&mut self, cpu: CpuNr, timer: TimerNr, at: u64) -> Sim {
        match self.timers[timer].callback {
            Callback::Tick => self.tick(cpu, at),
            Callback::Hrtick => self.hrtick(cpu),
            Callback::Wakeup(task) => self.wake(task, cpu).map(|_| ()),
            Callback::Period(limit) => self.period_over(cpu, limit, at),
            Callback::LapicTimer(vcpu) => self.lapic_hrtimer_fired(cpu, vcpu),
            Callback::Script(task) => self.script_wake(task, cpu),
        }
    }

    /// A stand-in for the timer's address, as events show it.
    pub(crate) fn timer_address(&self, timer: TimerNr) -> u64 {
        0xffff_8880_0000_0000 + u64::from(timer.0) * 64
    }

    fn timer_function(&self, timer: TimerNr) -> stealtime_events::NameId {
        match self.timers[timer].callback {
            Callback::Tick => self.functions.tick,
            Callback::Hrtick => self.functions.hrtick,
            Callback::Wakeup(_) | Callback::Script(_) => self.functions.wakeup,
            Callback::Period(_) => self.functions.period,
            Callback::LapicTimer(_) => self.functions.apic_timer,
        }
    }
}

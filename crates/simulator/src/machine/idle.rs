//! Idle CPUs: which state they enter, and what wakes them.

use super::governor::Governor;
use super::{Irq, Machine, Message, Phase};
use crate::config::IdleMethod;
use crate::fault::Sim;
use crate::ids::CpuNr;
use crate::script::Late;

/// What an idle CPU, or its governor, knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleCpu {
    /// The state it is in, by index into the profile's; `None` while it polls its flag.
    pub(crate) state: Option<u8>,
    /// Since when, in ns.
    pub(crate) since_ns: u64,
    governor: Governor,
    /// When a write to the line that it watches reaches it.
    pub(crate) told_at: Option<u64>,
}

impl Machine<'_> {
    /// Nothing to run: the governor picks a state, and the tick stops if it would come in between.
    pub(crate) fn enter_idle(&mut self, cpu: CpuNr) -> Sim {
        let now = self.now;
        let state = if self.cfg.host.idle == IdleMethod::Poll {
            self.stop_tick(cpu);
            None
        } else {
            self.choose_state(cpu)
        };
        let c = &mut self.cpus[cpu];
        c.phase = Phase::Idle;
        c.debt_ns = 0;
        c.idle.state = state;
        c.idle.since_ns = now;
        c.idle.told_at = None;
        c.balance.idles(now);
        self.note_idle(cpu, true);
        if !self.cpus[cpu].pending.is_empty() || !self.xen_idle_enter(cpu) {
            return self.leave_idle(cpu);
        }
        Ok(())
    }

    /// `menu_select`.
    fn choose_state(&mut self, cpu: CpuNr) -> Option<u8> {
        let (now, tick_ns) = (self.now, self.tick_ns());
        let c = &self.cpus[cpu];
        let tick = c.tick;
        let first = c.hrtimers.iter().find(|t| t.1 != tick);
        let timer_ns = first.map_or(u64::MAX, |t| t.0.saturating_sub(now));
        let tick_at = self.timers[tick].queued().map(|(_, at)| at);
        let predicted = self.cpus[cpu].idle.governor.predict(timer_ns);
        let mut limit = predicted;
        match tick_at {
            // A short stay does not pay for stopping the tick, which then ends it at the latest.
            Some(at) if predicted < tick_ns => limit = limit.min(at.saturating_sub(now)),
            _ => self.stop_tick(cpu),
        }
        let states = &self.cfg.host.profile.cstates;
        let pays = |s: &crate::config::CState| u64::from(s.target_residency_ns) <= limit;
        let deepest = states.iter().rposition(pays).map(|n| n as u8);
        // Polling is for a timer that is about to fire; else the shallowest state will do.
        let shallowest = states
            .first()
            .map_or(0, |s| u64::from(s.target_residency_ns));
        deepest.or((timer_ns >= shallowest).then_some(0))
    }

    /// Time from the wake event to the first instruction, for a CPU that is idle.
    pub(crate) fn idle_exit_ns(&self, cpu: CpuNr) -> u64 {
        let Some(mut state) = self.cpus[cpu].idle.state else {
            return u64::from(self.costs.cache_line_ns);
        };
        // The core sleeps no deeper than its shallower thread.
        if let Some(sibling) = self.cfg.host.topology.sibling_of(cpu.0) {
            let s = &self.cpus[CpuNr(sibling)];
            let theirs = if s.phase == Phase::Idle {
                s.idle.state.unwrap_or(0)
            } else {
                0
            };
            state = state.min(theirs);
        }
        let states = &self.cfg.host.profile.cstates;
        let state = states.get(usize::from(state));
        state.map_or(0, |s| u64::from(s.exit_latency_ns))
    }

    /// The time from a wakeup on an idle CPU until it switches, as recorded.
    fn recorded_exit_ns(&self, cpu: CpuNr) -> Option<u64> {
        let scripts = &self.cfg.scripts;
        let late = |of| Late::on(of, cpu, self.now);
        let told = self.cpus[cpu].idle.told_at;
        let called = told.and_then(|_| late(&scripts.idle_called));
        called.or_else(|| late(&scripts.idle_late))
    }

    /// The CPU wakes up.
    pub(crate) fn leave_idle(&mut self, cpu: CpuNr) -> Sim {
        if self.cpus[cpu].phase != Phase::Idle {
            return Ok(());
        }
        let exit = match self.cpus[cpu].pending.is_empty() {
            true => self.recorded_exit_ns(cpu),
            // A recorded wait for a timer has it: it is as long as it was.
            false => (!self.cfg.scripts.tasks.is_empty()).then_some(0),
        };
        let exit = exit.unwrap_or_else(|| self.idle_exit_ns(cpu));
        let (now, tick_ns) = (self.now, self.tick_ns());
        let c = &mut self.cpus[cpu];
        let first = c.hrtimers.front().map(|t| t.1);
        let by_tick = c.pending.has(Irq::LocalTimer) && first == Some(c.tick);
        let stayed = now - c.idle.since_ns;
        c.idle.governor.learn(stayed, by_tick, tick_ns);
        c.phase = Phase::IdleExit;
        self.note_idle(cpu, false);
        self.stay(cpu, exit);
        self.xen_idle_leave(cpu);
        if self.keeps_tick(cpu) {
            self.start_tick(cpu);
        }
        Ok(())
    }

    /// `from` wants an idle CPU to look at its run queue: by a store to the line that it monitors,
    /// or by an interrupt.
    pub(crate) fn kick_idle(&mut self, cpu: CpuNr, from: CpuNr) -> Sim {
        if cpu == from {
            // Nobody's doing but its own: it is awake already.
            return self.leave_idle(cpu);
        }
        if self.cpus[cpu].idle.told_at.is_some() {
            return Ok(());
        }
        if self.cfg.host.idle == IdleMethod::Hlt && self.cpus[cpu].idle.state.is_some() {
            self.send_ipi(from, cpu, Irq::Reschedule);
            return Ok(());
        }
        self.write_flag(cpu, from);
        Ok(())
    }

    /// `from` writes to the line that the idle `cpu` watches.
    pub(crate) fn write_flag(&mut self, cpu: CpuNr, from: CpuNr) {
        let at = self.now + self.cpus[from].debt_ns + u64::from(self.costs.cache_line_ns);
        let told = &mut self.cpus[cpu].idle.told_at;
        *told = Some(told.map_or(at, |before| before.min(at)));
        self.post(at, Message::FlagWritten { cpu });
    }
}

//! Idle CPUs: which state they enter, and what wakes them.

use super::{Irq, Machine, Message, Phase};
use crate::config::IdleMethod;
use crate::fault::Sim;
use crate::ids::CpuNr;

/// How many of the last idle times the governor remembers.
const REMEMBERED: usize = 8;

/// What an idle CPU, or its governor, knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct IdleCpu {
    /// The state it is in, by index into the profile's.
    pub(crate) state: usize,
    /// Since when, in ns.
    pub(crate) since_ns: u64,
    last_ns: [u64; REMEMBERED],
    next: usize,
    /// A write to its flag is on its way to it.
    kicked: bool,
}

impl IdleCpu {
    fn remember(&mut self, idle_ns: u64) {
        self.last_ns[self.next] = idle_ns;
        self.next = (self.next + 1) % REMEMBERED;
    }

    /// What the next idle time will be if it is like the last ones: their median.
    fn typical_ns(&self) -> u64 {
        let mut sorted = self.last_ns;
        sorted.sort_unstable();
        sorted[REMEMBERED / 2]
    }
}

impl Machine<'_> {
    /// Nothing to run: the governor picks a state, the tick stops.
    pub(crate) fn enter_idle(&mut self, cpu: CpuNr) -> Sim {
        self.stop_tick(cpu);
        let timer_in = self.cpus[cpu]
            .hrtimers
            .last()
            .map(|t| t.0.saturating_sub(self.now));
        let expected = timer_in
            .unwrap_or(u64::MAX)
            .min(self.cpus[cpu].idle.typical_ns().max(1));
        let states = &self.cfg.host.profile.cstates;
        let deepest = states
            .iter()
            .rposition(|s| u64::from(s.target_residency_ns) <= expected);
        let now = self.now;
        let c = &mut self.cpus[cpu];
        c.phase = Phase::Idle;
        c.debt_ns = 0;
        c.idle.state = deepest.unwrap_or(0);
        c.idle.since_ns = now;
        c.idle.kicked = false;
        if !self.cpus[cpu].pending.is_empty() || !self.xen_idle_enter(cpu) {
            return self.leave_idle(cpu);
        }
        Ok(())
    }

    /// Time from the wake event to the first instruction, for a CPU that is idle.
    pub(crate) fn idle_exit_ns(&self, cpu: CpuNr) -> u64 {
        if self.cfg.host.idle == IdleMethod::Poll {
            return u64::from(self.costs.cache_line_ns);
        }
        let state = self.cfg.host.profile.cstates.get(self.cpus[cpu].idle.state);
        state.map_or(0, |s| u64::from(s.exit_latency_ns))
    }

    /// The CPU wakes up.
    pub(crate) fn leave_idle(&mut self, cpu: CpuNr) -> Sim {
        let exit = self.idle_exit_ns(cpu);
        let now = self.now;
        let c = &mut self.cpus[cpu];
        if c.phase != Phase::Idle {
            return Ok(());
        }
        let stayed = now - c.idle.since_ns;
        c.idle.remember(stayed);
        c.phase = Phase::IdleExit;
        self.stay(cpu, exit);
        self.xen_idle_leave(cpu);
        self.start_tick(cpu);
        Ok(())
    }

    /// `from` wants an idle CPU to look at its run queue: by a store to the line that it monitors,
    /// or by an interrupt.
    pub(crate) fn kick_idle(&mut self, cpu: CpuNr, from: CpuNr) -> Sim {
        if self.cpus[cpu].idle.kicked || cpu == from {
            return Ok(());
        }
        if self.cfg.host.idle == IdleMethod::Hlt {
            self.send_ipi(from, cpu, Irq::Reschedule);
            return Ok(());
        }
        self.cpus[cpu].idle.kicked = true;
        let at = self.now + self.cpus[from].debt_ns + u64::from(self.costs.cache_line_ns);
        self.post(at, Message::FlagWritten { cpu });
        Ok(())
    }

    pub(crate) fn flag_written(&mut self, cpu: CpuNr) -> Sim {
        self.leave_idle(cpu)
    }
}

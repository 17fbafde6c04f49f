//! Ticks of guests at work. They come at their times, however far the guest has got, and at each the host
//! can preempt the vCPU.

use stealtime_simulator::script::{Spent, Step, Ticks};

use crate::task::{State, Task};
use crate::timers::ticks_of;

/// Exits so soon after a tick, in ns of computing, are the tick's.
const TICK_NS: u64 = 100_000;

/// Ticks of a vCPU's guest that came while it was at work.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestTicks {
    /// When they came, by the recording's clock in ns.
    times: Vec<u64>,
    /// Steps at which exits for them begin.
    steps: Vec<usize>,
    /// What had been computed when the last one came, in ns, until the guest sets its timer again.
    computed_at_last: Option<u64>,
}

impl GuestTicks {
    /// The guest exits before this step, after computing for so long in all.
    pub(crate) fn exit(&mut self, step: usize, computed_ns: u64) {
        if self
            .computed_at_last
            .is_some_and(|at_last| computed_ns - at_last <= TICK_NS)
        {
            self.steps.push(step);
        }
    }

    /// The guest has set its timer again.
    pub(crate) const fn armed(&mut self) {
        self.computed_at_last = None;
    }
}

impl Task {
    /// Its guest's timer expires; what it ran until now is settled.
    pub(crate) fn ticks(&mut self, now: u64) {
        if matches!(self.state, State::Running { .. }) && self.halting.is_none() {
            self.guest_ticks.times.push(now);
            self.guest_ticks.computed_at_last = Some(self.computed_ns);
        }
    }

    /// The ticks as they come again and again, if they do. Their exits are then no demand.
    pub(crate) fn settle_ticks(&mut self, first: u64) -> Option<Ticks> {
        let ticks = ticks_of(&self.guest_ticks.times, first)?;
        for begin in core::mem::take(&mut self.guest_ticks.steps) {
            // The timer is set at the begin of the exit that sets it.
            let run = begin + usize::from(self.steps.get(begin) == Some(&Step::Arm));
            if let Some(Step::Run { spent, .. }) = self.steps.get_mut(run)
                && let Spent::Exit(number) = *spent
            {
                *spent = Spent::Interrupt(number);
            }
        }
        Some(ticks)
    }
}

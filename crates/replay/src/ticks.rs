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

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A guest with ticks of 4 ms. It exits so long after each, and begins to set its timer with `arms`.
    fn ticked(exit_ns: u64, arms: bool) -> Task {
        let mut task = Task::new(State::Running { since: 0 });
        for n in 1..=100 {
            task.computed_ns = n * 4 * MS;
            task.ticks(n * 4 * MS);
            let step = task.steps.len();
            task.guest_ticks.exit(step, task.computed_ns + exit_ns);
            if arms {
                task.steps.push(Step::Arm);
            }
            task.steps.push(Step::Run {
                ns: 2_000,
                spent: Spent::Exit(1),
            });
        }
        task
    }

    fn interrupts(task: &Task) -> usize {
        let is_interrupt = |step: &&Step| {
            matches!(
                step,
                Step::Run {
                    spent: Spent::Interrupt(1),
                    ..
                }
            )
        };
        task.steps.iter().filter(is_interrupt).count()
    }

    #[test]
    fn exits_for_ticks_are_no_demand() {
        for arms in [false, true] {
            let mut task = ticked(TICK_NS, arms);
            let ticks = task.settle_ticks(MS).expect("ticks");
            assert_eq!((ticks.phase_ns, ticks.period_ns), (3_015_000, 4_000_000));
            assert_eq!(interrupts(&task), 100, "{arms}");
        }
        // Later exits are the guest's own.
        let mut task = ticked(TICK_NS + 1, true);
        assert!(task.settle_ticks(MS).is_some());
        assert_eq!(interrupts(&task), 0);
    }

    #[test]
    fn exits_after_the_timer_is_set_are_no_ticks() {
        let mut task = Task::new(State::Running { since: 0 });
        task.ticks(4 * MS);
        task.guest_ticks.armed();
        task.guest_ticks.exit(0, 0);
        assert!(task.guest_ticks.steps.is_empty());
        // Nor are expiries while the task has no CPU.
        task.state = State::Runnable;
        task.ticks(8 * MS);
        assert_eq!(task.guest_ticks.times, [4 * MS]);
    }
}

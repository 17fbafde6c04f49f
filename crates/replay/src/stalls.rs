//! Stalls of a task with its CPU.

use stealtime_simulator::script::{Stall, Step};

use crate::coupled::Stretch;
use crate::cpu::LEAST_STALL_NS;
use crate::task::{State, Task};

impl Task {
    /// Its CPU stalled in this stretch. Whether the task computed meanwhile, outside of a halt.
    pub(crate) fn stalls(&mut self, now: u64, stretch: Stretch) -> bool {
        self.settle(now);
        if !matches!(self.state, State::Running { .. }) || self.halting.is_some() {
            return false;
        }
        let stalled = computed_within(&self.steps, now, stretch);
        let last = self.stalls.last().copied();
        // Of several timers that were due in a stall, the first one adds it.
        let is_later = |stall: &&Stall| {
            last.is_none_or(|last| {
                (last.step, last.after_ns + last.ns) <= (stall.step, stall.after_ns)
            })
        };
        self.stalls.extend(stalled.iter().rev().filter(is_later));
        !stalled.is_empty()
    }
}

/// The parts of the latest steps that were computed within the stretch, latest first. The last step ends
/// now. Shorter parts than [`LEAST_STALL_NS`] are left out.
fn computed_within(steps: &[Step], now: u64, stretch: Stretch) -> Vec<Stall> {
    let mut parts = Vec::new();
    let mut step_end = now;
    for (index, step) in steps.iter().enumerate().rev() {
        let ns = match *step {
            Step::Run { ns, .. } => ns,
            Step::Slept(_) | Step::Halt(_) | Step::Sleep(_) => break,
            _ => 0,
        };
        let step_start = step_end.saturating_sub(ns);
        let start = step_start.max(stretch.start);
        let part_ns = step_end.min(stretch.end).saturating_sub(start);
        if part_ns >= LEAST_STALL_NS {
            parts.push(Stall {
                step: index as u32,
                after_ns: start - step_start,
                ns: part_ns,
            });
        }
        if step_start <= stretch.start {
            break;
        }
        step_end = step_start;
    }
    parts
}

#[cfg(test)]
mod tests {
    use stealtime_simulator::script::{Spent, Stall, Step, Until};

    use super::computed_within;
    use crate::coupled::Stretch;
    use crate::task::{State, Task};

    const MS: u64 = 1_000_000;

    #[test]
    fn a_stall_is_a_part_of_each_step_that_it_covers() {
        let run = |ns| Step::Run {
            ns,
            spent: Spent::Guest,
        };
        // From 2 to 5 ms, and from 5 to 9 ms.
        let steps = [Step::Sleep(Until::Time(2 * MS)), run(3 * MS), run(4 * MS)];
        let stretch = Stretch {
            start: 3 * MS,
            end: 8 * MS,
        };
        let parts = computed_within(&steps, 9 * MS, stretch);
        let part = |step, after_ns, ns| Stall { step, after_ns, ns };
        assert_eq!(parts, [part(2, 0, 3 * MS), part(1, MS, 2 * MS)]);
    }

    #[test]
    fn no_task_stalls_before_it_was_awake() {
        let steps = [
            Step::Run {
                ns: 3 * MS,
                spent: Spent::Guest,
            },
            Step::Sleep(Until::Time(MS)),
        ];
        let stretch = Stretch {
            start: 0,
            end: 3 * MS,
        };
        assert!(computed_within(&steps, 4 * MS, stretch).is_empty());
    }

    #[test]
    fn a_task_stalls_where_it_computes_outside_of_a_halt() {
        let stretch = Stretch {
            start: 3 * MS,
            end: 8 * MS,
        };
        let running = || Task::new(State::Running { since: 0 });
        let mut computes = running();
        assert!(computes.stalls(9 * MS, stretch));
        let (step, after_ns, ns) = (0, 3 * MS, 5 * MS);
        assert_eq!(computes.stalls, [Stall { step, after_ns, ns }]);
        let (mut halts, mut sleeps) = (running(), running());
        halts.begin_halt();
        sleeps.sleep(9 * MS);
        for task in [&mut halts, &mut sleeps] {
            assert!(!task.stalls(9 * MS, stretch));
            assert!(task.stalls.is_empty());
        }
    }
}

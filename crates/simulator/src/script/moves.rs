//! Tasks that move as they did in a recording.

use std::sync::Arc;

use super::Moves;
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr};
use crate::machine::{Machine, Message, TaskState};

/// Moves of [`Moves::Times`] that are still to come.
#[derive(Debug)]
pub(super) struct Timed {
    list: Arc<[(u64, u32)]>,
    next: usize,
}

impl Timed {
    pub(super) fn new(moves: &Moves) -> Self {
        let list = match moves {
            Moves::Times(list) => list.clone(),
            Moves::Scheduler | Moves::Steps => Arc::from([]),
        };
        Self { list, next: 0 }
    }

    /// Where the last move until now has led, if there was one since this was asked last.
    fn until(&mut self, now: u64) -> Option<u32> {
        let since = self.list.get(self.next..)?;
        let done = since.partition_point(|at| at.0 <= now);
        self.next += done;
        since.get(done.checked_sub(1)?).map(|at| at.1)
    }

    /// When the next one is.
    fn next(&self) -> Option<u64> {
        self.list.get(self.next).map(|at| at.0)
    }
}

impl Machine<'_> {
    /// A step of a script says that its task moves.
    pub(super) fn move_by_step(&mut self, task: TaskNr, to: u32) -> Sim {
        if self.script(task)?.moves_by_steps {
            self.move_later(task, CpuNr(to));
        }
        Ok(())
    }

    /// The task moves when it next waits for a CPU or wakes.
    fn move_later(&mut self, task: TaskNr, to: CpuNr) {
        let there = (to.0 as usize) < self.cpus.len();
        let t = &mut self.tasks[task];
        if there && t.allowed.has(to) {
            t.send_to((t.cpu != to).then_some(to));
        }
    }

    /// It is time for a script's task to move.
    pub(crate) fn script_moves(&mut self, task: TaskNr) -> Sim {
        let now = self.now;
        let moves = &mut self.script(task)?.moves;
        let (to, next) = (moves.until(now), moves.next());
        if let Some(at) = next {
            self.post(at, Message::ScriptMoves { task });
        }
        if let Some(to) = to {
            self.move_later(task, CpuNr(to));
        }
        // One that runs moves when it is switched out, and one that sleeps when it wakes.
        let t = &mut self.tasks[task];
        let from = t.cpu;
        if t.state == TaskState::Runnable
            && self.cpus[from].current != Some(task)
            && let Some(to) = t.take_goes_to()
        {
            return self.move_waiting(task, from, to, to);
        }
        Ok(())
    }
}

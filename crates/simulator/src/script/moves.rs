//! Tasks that move at the times of a recording.

use std::sync::Arc;

use super::Moves;
use crate::fault::Sim;
use crate::host::{Host, Message};
use crate::ids::{CpuNr, TaskNr};

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
        let pending = self.list.get(self.next..)?;
        let passed = pending.partition_point(|entry| entry.0 <= now);
        self.next += passed;
        pending.get(passed.checked_sub(1)?).map(|entry| entry.1)
    }

    /// When the next one is.
    fn next(&self) -> Option<u64> {
        self.list.get(self.next).map(|time| time.0)
    }
}

/// A step of a script says that its task moves.
pub(super) fn move_by_step(host: &mut Host<'_>, task: TaskNr, target: u32) -> Sim {
    if host.script(task)?.moves_by_steps {
        host.move_later(task, CpuNr(target));
    }
    Ok(())
}

/// It is time for a script's task to move.
pub(crate) fn apply_moves(host: &mut Host<'_>, task: TaskNr) -> Sim {
    let now = host.now();
    let moves = &mut host.script(task)?.moves;
    let (target, next) = (moves.until(now), moves.next());
    if let Some(time) = next {
        host.post(time, Message::ScriptMoves { task });
    }
    if let Some(target) = target {
        host.move_later(task, CpuNr(target));
    }
    host.move_if_waiting(task)
}

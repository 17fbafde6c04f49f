//! What tests of the checks break.

use super::{Cpu, Host, Hrtimer, Task};
use crate::books::Books;
use crate::ids::{CpuNr, Table, TaskNr, TimerNr};

impl Host<'_> {
    pub(crate) fn cpus_mut(&mut self) -> &mut Table<CpuNr, Cpu> {
        &mut self.cpus
    }

    pub(crate) fn tasks_mut(&mut self) -> &mut Table<TaskNr, Task> {
        &mut self.tasks
    }

    pub(crate) fn timers_mut(&mut self) -> &mut Table<TimerNr, Hrtimer> {
        &mut self.timers
    }

    pub(crate) fn books_mut(&mut self) -> &mut Books {
        &mut self.out.books
    }

    /// The next [`Machine::run`](crate::machine::Machine::run) ends here.
    pub(crate) fn set_duration(&mut self, ns: u64) {
        self.cfg.run.duration_ns = ns;
    }
}

//! Guests' ticks that interrupt vCPUs at work.

use super::run::on_grid;
use crate::fault::Sim;
use crate::ids::TaskNr;
use crate::machine::{Machine, Message, Phase, TaskState};

impl Machine<'_> {
    /// The next tick of a script's guest is to come, if it has any.
    pub(crate) fn expect_tick(&mut self, task: TaskNr) -> Sim {
        let now = self.now;
        if let Some(ticks) = self.script(task)?.ticks {
            let at = on_grid(now, ticks.phase_ns, ticks.period_ns, 1);
            self.post(at, Message::ScriptTick { task });
        }
        Ok(())
    }

    /// A guest's tick: if the vCPU is in the guest, it exits, and on its way back it gives way if it was
    /// asked to.
    pub(crate) fn script_ticks(&mut self, task: TaskNr) -> Sim {
        if self.tasks[task].state == TaskState::Dead {
            return Ok(());
        }
        self.expect_tick(task)?;
        let in_guest = self.script(task)?.in_guest();
        let cpu = self.tasks[task].cpu;
        let c = &self.cpus[cpu];
        let at_work = c.current == Some(task) && c.phase == Phase::Run && in_guest;
        if !at_work || !self.gives_way(cpu, task) {
            return Ok(());
        }
        let left = self.interrupted(cpu);
        self.tasks[task].left_ns = self.work_in(cpu, left);
        self.schedule(cpu)
    }
}

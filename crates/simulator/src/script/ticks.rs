//! Guests' ticks that interrupt vCPUs at work.

use super::run::on_grid;
use crate::fault::Sim;
use crate::host::{Flow, Host, Message, Phase, Resume, TaskState};
use crate::ids::TaskNr;

/// The next tick of a script's guest is to come, if it has any.
pub(crate) fn expect_tick(host: &mut Host<'_>, task: TaskNr) -> Sim {
    let now = host.now();
    if let Some(ticks) = host.script(task)?.ticks {
        let time = on_grid(now, ticks.phase_ns, ticks.period_ns, 1);
        host.post(time, Message::ScriptTick { task });
    }
    Ok(())
}

/// A guest's tick. A vCPU in guest mode exits, and reschedules before it enters again if that is
/// requested.
pub(crate) fn tick(host: &mut Host<'_>, task: TaskNr) -> Sim<Option<Resume>> {
    if host.tasks()[task].state == TaskState::Dead {
        return Ok(None);
    }
    expect_tick(host, task)?;
    let in_guest = host.script(task)?.in_guest();
    let cpu = host.tasks()[task].cpu;
    let c = &host.cpus()[cpu];
    let at_work = c.current == Some(task) && c.phase == Phase::Run && in_guest;
    if !at_work || host.stalled(cpu).is_some() || !host.reschedules(cpu, task) {
        return Ok(None);
    }
    let remaining = host.interrupted(cpu);
    host.set_left(task, host.work_in(cpu, remaining));
    Ok(Some(Resume {
        cpu,
        flow: Flow::Schedule,
    }))
}

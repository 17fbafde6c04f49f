//! Sleeps and halts of scripts: polling, sleeping, waking.

use stealtime_events::Kind;
use stealtime_hypervisor::fair::Resched;
use stealtime_hypervisor::halt_poll::{HaltEnd, PollTurn};

use super::task::{Halting, State};
use super::{ScriptRunner, Until};
use crate::fault::Sim;
use crate::host::{Flow, Host, Phase, Resume, hrtimer, poll};
use crate::ids::{CpuNr, TaskNr};

impl ScriptRunner {
    pub(super) fn sleep(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        task: TaskNr,
        wait: Until,
    ) -> Sim<Flow> {
        self.expect(host, cpu, task, wait)?;
        host.script(task)?.state = State::Sleeps;
        Ok(Flow::Block)
    }

    pub(super) fn halt(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        task: TaskNr,
        wait: Until,
    ) -> Sim<Flow> {
        let now = host.now();
        let alone = poll::single_task_running(host, cpu)?;
        let need_resched = host.cpus()[cpu].resched != Resched::None;
        let knobs = host.cfg().knobs.kvm.halt_poll;
        let script = host.script(task)?;
        let halt = script.halt_poll.begin(&knobs, true);
        script.halt = Some(Halting {
            halt,
            since: now,
            poll_ns: 0,
            woken: false,
        });
        script.halts += 1;
        self.expect(host, cpu, task, wait)?;
        // All vCPUs of the VM halt: the work that this one waits for is not to come.
        if self.vm_idles(host, cpu, task)? == Some(task) {
            return self.end_poll(host, cpu, task);
        }
        let turn = PollTurn {
            elapsed_ns: 0,
            alone,
            need_resched,
        };
        let script = host.script(task)?;
        if halt.keeps_polling(&turn) {
            script.state = State::Polls;
            poll::begin_poll(host, task);
            host.set_left(task, u64::from(halt.poll_ns()));
            return Ok(Flow::Run);
        }
        begin_block(host, task)
    }

    pub(super) fn end_poll(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<Flow> {
        let now = host.now();
        let script = host.script(task)?;
        if let Some(halting) = &mut script.halt {
            halting.poll_ns = now - halting.since;
            script.poll_ns += halting.poll_ns;
        }
        poll::end_poll(host, task);
        match self.came(host, cpu, task)? {
            Some(flow) => Ok(flow),
            None => begin_block(host, task),
        }
    }

    /// It is about to sleep: if nothing has come meanwhile, it does.
    pub(super) fn block(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim<Flow> {
        let ns = u64::from(host.cfg().scripts.block_ns);
        host.script(task)?.sleeping_ns += ns;
        if let Some(flow) = self.came(host, cpu, task)? {
            return Ok(flow);
        }
        host.script(task)?.state = State::Sleeps;
        Ok(Flow::Block)
    }

    /// Whether what a halt waits for has come before it slept: it goes on then.
    pub(super) fn came(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        task: TaskNr,
    ) -> Sim<Option<Flow>> {
        let now = host.now();
        let wait = host.script(task)?.awaited;
        if self.reached(host, task, wait)? {
            let script = host.script(task)?;
            script.polled += 1;
            script.slept = false;
            self.end_halt(host, task, false)?;
            let timer = host.script(task)?.timer;
            hrtimer::cancel(host, timer, cpu);
            host.script(task)?.state = State::Steps;
            return self.step(host, cpu, task).map(Some);
        }
        let alarm = host.script(task)?.alarm;
        if alarm.is_some_and(|time| time <= now) {
            self.end_halt(host, task, false)?;
            host.script(task)?.state = State::Steps;
            self.alarmed(host, task)?;
            return Ok(Some(Flow::Run));
        }
        Ok(None)
    }

    /// It was woken.
    pub(super) fn wake_up(&mut self, host: &mut Host<'_>, task: TaskNr) -> Sim {
        let script = host.script(task)?;
        script.state = State::Steps;
        script.slept = true;
        self.end_halt(host, task, true)
    }

    pub(super) fn end_halt(&mut self, host: &mut Host<'_>, task: TaskNr, waited: bool) -> Sim {
        self.halts_no_longer(host, task)?;
        let now = host.now();
        let knobs = host.cfg().knobs.kvm.halt_poll;
        let script = host.script(task)?;
        if let Some(halting) = script.halt.take() {
            let halt_ns = now - halting.since;
            let end = HaltEnd {
                waited,
                halt_ns,
                poll_ns: halting.poll_ns,
                valid_wakeup: true,
            };
            script.halt_poll.end(&knobs, &halting.halt, &end, &());
            if host.cfg().scripts.tell {
                let kind = Kind::KvmVcpuWakeup {
                    ns: halt_ns,
                    waited,
                    valid: true,
                };
                host.emit(host.tasks()[task].cpu, kind);
            }
        }
        Ok(())
    }

    pub(crate) fn poll_noticed(
        &mut self,
        host: &mut Host<'_>,
        task: TaskNr,
        turn: u32,
    ) -> Sim<Option<Resume>> {
        if !poll::polls_in(host, task, turn) {
            return Ok(None);
        }
        let cpu = host.tasks()[task].cpu;
        host.set_left(task, 0);
        if host.cpus()[cpu].current == Some(task) && host.cpus()[cpu].phase == Phase::Run {
            host.interrupted(cpu);
            let flow = self.end_poll(host, cpu, task)?;
            return Ok(Some(Resume { cpu, flow }));
        }
        Ok(None)
    }
}

/// It has polled in vain, or not at all: it is on its way to sleep.
fn begin_block(host: &mut Host<'_>, task: TaskNr) -> Sim<Flow> {
    let ns = u64::from(host.cfg().scripts.block_ns);
    let script = host.script(task)?;
    if ns == 0 {
        script.state = State::Sleeps;
        return Ok(Flow::Block);
    }
    script.state = State::Blocks;
    host.set_left(task, ns);
    Ok(Flow::Run)
}

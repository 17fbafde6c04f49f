//! vCPUs that halt until others of their VM have done some work.

use super::points::Waiter;
use super::{Edge, ScriptRunner};
use crate::fault::Sim;
use crate::host::Host;
use crate::ids::{CpuNr, TaskNr};

impl ScriptRunner {
    /// A vCPU waits until a point is reached, or its VM has computed for `ns` more. It goes on to wait for
    /// the same when its guest's timer has interrupted it.
    pub(super) fn expect_work(
        &mut self,
        host: &mut Host<'_>,
        task: TaskNr,
        edge: Edge,
        ns: u32,
        busy: bool,
    ) -> Sim {
        let vcpu_of = host.script(task)?.vcpu_of;
        let worked_ns = vcpu_of.map_or(0, |vm| self.points.work_ns(vm));
        let script = host.script(task)?;
        let until_ns = script.work_until.get_or_insert(worked_ns + u64::from(ns));
        let waiter = Waiter {
            work_ns: Some((*until_ns, busy)),
            task,
            pass: script.passes,
            idle_in: vcpu_of,
        };
        self.points.wait(edge, waiter);
        Ok(())
    }

    /// A vCPU has begun to halt. If its VM is idle with that, the vCPU that waits for the least
    /// work goes on: that work is not to come. Returns that vCPU's task.
    pub(super) fn vm_idles(
        &mut self,
        host: &mut Host<'_>,
        cpu: CpuNr,
        task: TaskNr,
    ) -> Sim<Option<TaskNr>> {
        let vm = host.script(task)?.vcpu_of;
        let waiter = vm.and_then(|vm| self.points.halts(vm));
        if let (Some(waiter), Some(vm)) = (waiter, vm) {
            self.waits_no_longer(host, cpu, waiter, vm)?;
        }
        Ok(waiter)
    }

    /// A script begins in the middle of the run.
    pub(crate) fn begin(&mut self, host: &mut Host<'_>, task: TaskNr) -> Sim {
        let script = host.script(task)?;
        let (vm, number) = (script.vcpu_of, script.number);
        if let (Some(vm), Some(number)) = (vm, number) {
            self.points.begins(vm);
            self.yields.begins(vm, number, task);
        }
        host.fork(task, host.tasks()[task].cpu)
    }

    /// It has ended: if its VM is all idle with that, it is as with one that halts.
    pub(super) fn end(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim {
        let vm = host.script(task)?.vcpu_of;
        let waiter = vm.and_then(|vm| self.points.ends(vm));
        match (waiter, vm) {
            (Some(waiter), Some(vm)) => self.waits_no_longer(host, cpu, waiter, vm),
            _ => Ok(()),
        }
    }

    /// A vCPU that waits for work of its VM goes on.
    fn waits_no_longer(&mut self, host: &mut Host<'_>, cpu: CpuNr, waiter: TaskNr, vm: u32) -> Sim {
        let edge = host.script(waiter)?.awaited_edge();
        self.points.leave(edge, waiter, Some(vm));
        self.goes_on(host, cpu, waiter)
    }

    /// A vCPU that halts is woken, or has found before it slept that it is to go on.
    pub(super) fn halts_no_longer(&mut self, host: &mut Host<'_>, task: TaskNr) -> Sim {
        let script = host.script(task)?;
        let vm = script.vcpu_of;
        let halting = script.halt.as_mut().filter(|halting| !halting.woken);
        if let (Some(halting), Some(vm)) = (halting, vm) {
            halting.woken = true;
            self.points.halted(vm);
        }
        Ok(())
    }

    /// A script is through with a step: if it is a vCPU that has computed, vCPUs that waited for
    /// that are woken. A step counts at its end, also for a wait that began in its middle.
    pub(super) fn works(&mut self, host: &mut Host<'_>, cpu: CpuNr, task: TaskNr) -> Sim {
        let script = host.script(task)?;
        let ns = core::mem::take(&mut script.computes_ns);
        let Some(vm) = script.vcpu_of.filter(|_| ns > 0) else {
            return Ok(());
        };
        self.points.work(vm, ns);
        while let Some(waiter) = self.points.awaits_done(vm) {
            self.waits_no_longer(host, cpu, waiter, vm)?;
        }
        Ok(())
    }
}

//! vCPUs that halt until others of their VM have done some work.

use super::Edge;
use super::points::Waiter;
use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr};
use crate::machine::Machine;

impl Machine<'_> {
    /// A vCPU waits until a point is reached, or its VM has computed for `ns` more. It goes on to wait for
    /// the same when its guest's timer has interrupted it.
    pub(super) fn expect_work(&mut self, task: TaskNr, edge: Edge, ns: u32, busy: bool) -> Sim {
        let vcpu_of = self.script(task)?.vcpu_of;
        let done = vcpu_of.map_or(0, |vm| self.points.work_ns(vm));
        let script = self.script(task)?;
        let until = script.work_until.get_or_insert(done + u64::from(ns));
        let waiter = Waiter {
            work_ns: Some((*until, busy)),
            task,
            pass: script.passes,
            idle_in: vcpu_of,
        };
        self.points.wait(edge, waiter);
        Ok(())
    }

    /// A vCPU has begun to halt. If its VM is all idle with that, who waits for work that is not to come goes
    /// on: who that is.
    pub(super) fn vm_idles(&mut self, cpu: CpuNr, task: TaskNr) -> Sim<Option<TaskNr>> {
        let vm = self.script(task)?.vcpu_of;
        let waiter = vm.and_then(|vm| self.points.halts(vm));
        if let (Some(waiter), Some(vm)) = (waiter, vm) {
            self.waits_no_longer(cpu, waiter, vm)?;
        }
        Ok(waiter)
    }

    /// A script begins in the middle of the run.
    pub(crate) fn script_begins(&mut self, task: TaskNr) -> Sim {
        let script = self.script(task)?;
        let (vm, number) = (script.vcpu_of, script.number);
        if let (Some(vm), Some(number)) = (vm, number) {
            self.points.begins(vm);
            self.yields.begins(vm, number, task);
        }
        self.fork(task, self.tasks[task].cpu)
    }

    /// It has ended: if its VM is all idle with that, it is as with one that halts.
    pub(super) fn script_ends(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let vm = self.script(task)?.vcpu_of;
        let waiter = vm.and_then(|vm| self.points.ends(vm));
        match (waiter, vm) {
            (Some(waiter), Some(vm)) => self.waits_no_longer(cpu, waiter, vm),
            _ => Ok(()),
        }
    }

    /// A vCPU that waits for work of its VM goes on.
    fn waits_no_longer(&mut self, cpu: CpuNr, waiter: TaskNr, vm: u32) -> Sim {
        let edge = self.script(waiter)?.awaited_edge();
        self.points.leave(edge, waiter, Some(vm));
        self.goes_on(cpu, waiter)
    }

    /// A vCPU that halts is woken, or has found before it slept that it is to go on.
    pub(super) fn halts_no_longer(&mut self, task: TaskNr) -> Sim {
        let script = self.script(task)?;
        let vm = script.vcpu_of;
        let halting = script.halt.as_mut().filter(|halting| !halting.woken);
        if let (Some(halting), Some(vm)) = (halting, vm) {
            halting.woken = true;
            self.points.halted(vm);
        }
        Ok(())
    }

    /// A script is through with a step: if it is a vCPU that has computed, who waited for that is woken. (A
    /// step counts at its end, also for who began to wait in its middle.)
    pub(super) fn works(&mut self, cpu: CpuNr, task: TaskNr) -> Sim {
        let script = self.script(task)?;
        let ns = core::mem::take(&mut script.computes_ns);
        let Some(vm) = script.vcpu_of.filter(|_| ns > 0) else {
            return Ok(());
        };
        self.points.work(vm, ns);
        while let Some(waiter) = self.points.awaits_done(vm) {
            self.waits_no_longer(cpu, waiter, vm)?;
        }
        Ok(())
    }
}

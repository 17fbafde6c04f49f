//! vCPUs that yield their CPU to another one of their VM.

use stealtime_events::Kind;
use stealtime_hypervisor::directed_yield::YieldTo;

use crate::fault::Sim;
use crate::ids::{CpuNr, TaskNr};
use crate::machine::Machine;

impl Machine<'_> {
    /// The guest asks for its CPU to be given to the vCPU with this number (`kvm_sched_yield`). Whether the
    /// caller is to pick.
    pub(super) fn script_yields_to(&mut self, cpu: CpuNr, task: TaskNr, number: u32) -> Sim<bool> {
        if self.cfg.scripts.tell {
            let kind = Kind::KvmHypercall {
                nr: 11,
                a0: number.into(),
            };
            self.emit(cpu, kind);
        }
        let vm = self.script(task)?.vcpu_of;
        let target = vm.and_then(|vm| self.points.vcpu(vm, number));
        let Some(target) = target.filter(|&target| target != task) else {
            return Ok(false);
        };
        // Who is not ready is refused by the scheduler.
        if self.single_task_running(cpu)? {
            return Ok(false);
        }
        let yielded = self.yield_to(cpu, target)? == YieldTo::Yielded;
        self.stats.directed_yields += u64::from(yielded);
        Ok(yielded)
    }
}

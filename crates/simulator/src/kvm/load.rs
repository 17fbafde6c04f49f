//! The scheduler's hooks: a vCPU's thread gets a CPU, or loses it.

use stealtime_hypervisor::directed_yield::SchedOut;
use stealtime_hypervisor::posted_interrupt::PutReason;

use super::VcpuRun;
use crate::fault::Sim;
use crate::ids::{CpuNr, VcpuNr};
use crate::machine::{Irq, Machine, TaskState};

impl Machine<'_> {
    /// `kvm_sched_in`, `kvm_arch_vcpu_load`.
    pub(crate) fn vcpu_load(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let v = &mut self.vcpus[vcpu];
        let moved = v.shared.cpu() != Some(cpu.0);
        self.cpus[cpu].l1d_unsafe = true;
        v.yields.sched_in();
        v.ple.shrink(&self.cfg.knobs.kvm.ple);
        v.posted.load(
            &v.shared,
            cpu.0,
            cpu.0,
            &self.stats.lists,
            &self.stats.mechanisms,
        )?;
        if moved {
            self.timer_cpu_changed(cpu, vcpu)?;
        }
        Ok(())
    }

    /// `kvm_sched_out`, `kvm_arch_vcpu_put`.
    pub(crate) fn vcpu_put(&mut self, cpu: CpuNr, vcpu: VcpuNr) -> Sim {
        let v = &self.vcpus[vcpu];
        let runnable = matches!(
            self.tasks[v.task].state,
            TaskState::Runnable | TaskState::Throttled
        );
        v.yields.sched_out(SchedOut {
            runnable,
            wants_to_run: true,
            in_kernel: v.guest.in_kernel(),
        });
        let reason = PutReason {
            preempted: runnable,
            irq_blocked: !v.guest.takes_interrupts() && v.run != VcpuRun::Blocked,
            device_assigned: self.vms[v.vm].cfg.assigned_device,
        };
        self.guest_lost_cpu(vcpu);
        let v = &self.vcpus[vcpu];
        let put = v
            .posted
            .put(&v.shared, reason, &self.stats.lists, &self.stats.mechanisms)?;
        if put.self_ipi {
            self.send_ipi(cpu, cpu, Irq::PostedWakeup);
        }
        Ok(())
    }
}

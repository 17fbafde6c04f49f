//! The scheduler's hooks: a vCPU's thread gets a CPU, or loses it.

use stealtime_hypervisor::directed_yield::SchedOut;
use stealtime_hypervisor::posted_interrupt::PutReason;

use super::{Kvm, VcpuRun, timer};
use crate::fault::Sim;
use crate::guest::{Guests, mutex};
use crate::host::{Host, Irq, TaskState, irq};
use crate::ids::{CpuNr, VcpuNr};

/// `kvm_sched_in`, `kvm_arch_vcpu_load`.
pub(crate) fn load(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let v = &mut kvm.vcpus[vcpu];
    // `kvm_arch_vcpu_load` migrates the timer only if the physical CPU changed.
    let moved = v.shared.cpu() != Some(cpu.0);
    // `kvm_arch_vcpu_load` sets `l1tf_flush_l1d`: another task's data may be in the cache.
    host.mark_l1d_unsafe(cpu);
    v.yields.sched_in();
    v.ple.shrink(&host.cfg().knobs.kvm.ple);
    v.posted.load(
        &v.shared,
        cpu.0,
        cpu.0,
        host.out().wakeup_lists(),
        host.out().mechanisms(),
    )?;
    if moved {
        timer::cpu_changed(kvm, guests, host, cpu, vcpu)?;
    }
    Ok(())
}

/// `kvm_sched_out`, `kvm_arch_vcpu_put`.
pub(crate) fn put(
    kvm: &mut Kvm,
    guests: &mut Guests,
    host: &mut Host<'_>,
    cpu: CpuNr,
    vcpu: VcpuNr,
) -> Sim {
    let v = &kvm.vcpus[vcpu];
    let runnable = matches!(
        host.tasks()[v.task].state,
        TaskState::Runnable | TaskState::Throttled
    );
    v.yields.sched_out(SchedOut {
        runnable,
        wants_to_run: true,
        in_kernel: guests.cpu(vcpu).in_kernel(),
    });
    let reason = PutReason {
        preempted: runnable,
        irq_blocked: !guests.cpu(vcpu).takes_interrupts() && v.run != VcpuRun::Blocked,
        device_assigned: guests.vm(v.vm).cfg.assigned_device,
    };
    mutex::vcpu_descheduled(guests, host, vcpu);
    let v = &kvm.vcpus[vcpu];
    let put = v.posted.put(
        &v.shared,
        reason,
        host.out().wakeup_lists(),
        host.out().mechanisms(),
    )?;
    if put.self_ipi {
        irq::send_ipi(host, cpu, cpu, Irq::PostedWakeup);
    }
    Ok(())
}

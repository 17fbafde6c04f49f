//! IPI tracking: the vCPU that a sender waits for (`kvm_irq_delivery_to_apic`,
//! `kvm_lapic_set_eoi`).

use stealtime_hypervisor::directed_yield::DirectedYield;
use stealtime_hypervisor::ipi_tracking::{
    Delivery, NotRecorded, eoi, forget, guest_hint, withdraw_hint,
};

use super::Kvm;
use crate::fault::Sim;
use crate::guest::{Guests, spin};
use crate::host::Host;
use crate::ids::{VcpuNr, VmNr};

/// A vCPU of the guest sent an IPI.
pub(crate) fn track_ipi(kvm: &mut Kvm, host: &mut Host<'_>, vm: VmNr, delivery: &Delivery) -> Sim {
    let contexts = &kvm.vms[vm].ipi_contexts;
    if contexts.is_empty() {
        return Ok(());
    }
    let knobs = &host.cfg().knobs.kvm.directed_yield.ipi;
    match delivery.finish(contexts, knobs, host.now(), host.out().mechanisms()) {
        Err(NotRecorded::NoSuchVcpu(error)) => host.broken(error.to_string()),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// A vCPU ended this interrupt, and the hypervisor sees it.
pub(crate) fn track_eoi(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    vector: Option<u8>,
) -> Sim {
    let v = &kvm.vcpus[vcpu];
    let contexts = &kvm.vms[v.vm].ipi_contexts;
    if contexts.is_empty() {
        return Ok(());
    }
    let knobs = &host.cfg().knobs.kvm.directed_yield.ipi;
    match eoi(
        contexts,
        knobs,
        v.index,
        vector,
        host.now(),
        host.out().mechanisms(),
    ) {
        Ok(_) => Ok(()),
        Err(error) => host.broken(error.to_string()),
    }
}

/// The guest's vCPUs are destroyed on this host and created on another, where nothing is tracked
/// yet (`kvm_arch_vcpu_destroy`, `kvm_arch_vcpu_create`).
pub(crate) fn reset_tracking(kvm: &mut Kvm, host: &mut Host<'_>, vm: VmNr) -> Sim {
    let contexts = &kvm.vms[vm].ipi_contexts;
    for vcpu in 0..contexts.len() as u32 {
        if let Err(error) = forget(contexts, vcpu) {
            return host.broken(error.to_string());
        }
    }
    kvm.vms[vm].directed_yield = DirectedYield::new();
    Ok(())
}

/// A vCPU has left the guest by PAUSE. The word that it shares with its guest names the vCPU that
/// it waits for, if any (`kvm.guest_yield_hint`).
pub(crate) fn read_yield_hint(
    kvm: &mut Kvm,
    guests: &Guests,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
) -> Sim {
    let knobs = &host.cfg().knobs.kvm.directed_yield.ipi;
    if !knobs.guest_yield_hint {
        return Ok(());
    }
    let v = &kvm.vcpus[vcpu];
    let contexts = &kvm.vms[v.vm].ipi_contexts;
    let result = match spin::awaited_vcpu(guests, vcpu) {
        Some(holder) => guest_hint(
            contexts,
            knobs,
            v.index,
            holder,
            host.now(),
            host.out().mechanisms(),
        ),
        None => withdraw_hint(contexts, v.index),
    };
    match result {
        Ok(_) => Ok(()),
        Err(error) => host.broken(error.to_string()),
    }
}

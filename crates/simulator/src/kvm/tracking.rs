//! IPI tracking: the vCPU that a sender waits for (`kvm_irq_delivery_to_apic`,
//! `kvm_lapic_set_eoi`).

use stealtime_hypervisor::directed_yield::DirectedYield;
use stealtime_hypervisor::ipi_tracking::{
    Delivery, IpiContext, IpiKnobs, NotRecorded, eoi, forget, guest_hint, withdraw_hint,
};

use super::Kvm;
use crate::fault::Sim;
use crate::guest::{Guests, spin};
use crate::host::{Host, class};
use crate::ids::{TaskNr, VcpuNr, VmNr};

/// A vCPU of the guest sent an IPI.
pub(crate) fn track_ipi(kvm: &mut Kvm, host: &mut Host<'_>, vm: VmNr, delivery: &Delivery) -> Sim {
    let contexts = &kvm.vms[vm].ipi_contexts;
    if contexts.is_empty() {
        return Ok(());
    }
    let knobs = knobs(host);
    match delivery.finish(contexts, &knobs, host.now(), host.out().mechanisms()) {
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
    kvm.vcpus[vcpu].shows_eoi = true;
    let v = &kvm.vcpus[vcpu];
    let contexts = &kvm.vms[v.vm].ipi_contexts;
    if contexts.is_empty() {
        return Ok(());
    }
    let knobs = knobs(host);
    let (first, receiver) = (vcpu.0 - v.index, v.task);
    let sender = contexts
        .get(v.index as usize)
        .and_then(IpiContext::last_sender);
    match eoi(
        contexts,
        &knobs,
        v.index,
        vector,
        host.now(),
        host.out().mechanisms(),
    ) {
        Ok(settled) => match sender.filter(|_| settled) {
            Some(sender) => answered(kvm, host, VcpuNr(first + sender), receiver),
            None => Ok(()),
        },
        Err(error) => host.broken(error.to_string()),
    }
}

/// The record of `sender` is settled.
fn answered(kvm: &mut Kvm, host: &mut Host<'_>, sender: VcpuNr, receiver: TaskNr) -> Sim {
    let sender = &mut kvm.vcpus[sender];
    sender.answered = true;
    class::answered(host, sender.task, receiver)
}

/// Options of the tracking: `scx_stealtime` tracks IPIs by itself.
pub(super) fn knobs(host: &Host<'_>) -> IpiKnobs {
    let knobs = host.cfg().knobs.kvm.directed_yield.ipi;
    IpiKnobs {
        ipi_tracking_enabled: knobs.ipi_tracking_enabled || host.class().scx().is_some(),
        ..knobs
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

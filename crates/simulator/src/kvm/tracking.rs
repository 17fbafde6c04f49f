//! IPI tracking: the vCPU that a sender waits for (`kvm_irq_delivery_to_apic`,
//! `kvm_lapic_set_eoi`).

use stealtime_hypervisor::directed_yield::DirectedYield;
use stealtime_hypervisor::events::Events as _;
use stealtime_hypervisor::ipi_tracking::{
    Delivery, NotRecorded, eoi, forget, guest_hint, withdraw_hint,
};
use stealtime_hypervisor::scx::{Answers, Receiver};

use super::{Eois, Kvm};
use crate::fault::Sim;
use crate::guest::{Guests, spin};
use crate::host::{Host, class};
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

/// `scx_stealtime` sees the IPI, also one by hypercall: these vCPUs are to accept it.
pub(crate) fn track_receivers(
    kvm: &mut Kvm,
    host: &Host<'_>,
    vm: VmNr,
    sender: u32,
    vector: u8,
    receivers: &[u32],
) {
    let answers = &kvm.vms[vm].answers_due;
    // Another class has none.
    if let Some(source) = answers.get(sender as usize) {
        let accepting = receivers.iter().filter(|&&vcpu| vcpu != sender);
        for (index, &vcpu) in accepting.enumerate() {
            if index == 0 {
                source.send(host.now());
                host.out().mechanisms().ipi_recorded(sender, vcpu, vector);
            }
            let receiver = Receiver {
                vcpu,
                index,
                vector,
            };
            source.accept(sender, &answers[vcpu as usize], receiver);
        }
    }
}

/// A vCPU ended this interrupt, and the hypervisor sees it.
pub(crate) fn track_eoi(
    kvm: &mut Kvm,
    host: &mut Host<'_>,
    vcpu: VcpuNr,
    vector: Option<u8>,
) -> Sim {
    let v = &mut kvm.vcpus[vcpu];
    if v.eois == Eois::Unseen {
        v.eois = Eois::Shown;
    }
    let (vm, index, receiver) = (v.vm, v.index, v.task);
    let contexts = &kvm.vms[vm].ipi_contexts;
    if !contexts.is_empty() {
        let (knobs, now) = (&host.cfg().knobs.kvm.directed_yield.ipi, host.now());
        if let Err(error) = eoi(contexts, knobs, index, vector, now, host.out().mechanisms()) {
            return host.broken(error.to_string());
        }
    }
    let answers = &kvm.vms[vm].answers_due;
    match vector.and_then(|vector| Answers::eoi(answers, index, vector)) {
        Some(answered) => {
            let sender = &mut kvm.vcpus[VcpuNr(vcpu.0 - index + answered.sender)];
            if answered.is_last {
                sender.answered = true;
                kvm.vms[vm].answered_ns[answered.sender as usize] = host.now();
                host.out().mechanisms().ipi_settled(answered.sender, index);
            }
            class::answered(host, sender.task, receiver)
        }
        None => Ok(()),
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
    for answers in &kvm.vms[vm].answers_due {
        answers.reset();
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

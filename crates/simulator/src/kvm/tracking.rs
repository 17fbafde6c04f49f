//! IPI tracking: who waits for whom (`kvm_irq_delivery_to_apic`, `kvm_lapic_set_eoi`).

use stealtime_hypervisor::directed_yield::DirectedYield;
use stealtime_hypervisor::ipi_tracking::{Delivery, eoi, forget, guest_hint, withdraw_hint};

use crate::fault::Sim;
use crate::ids::{VcpuNr, VmNr};
use crate::machine::Machine;

impl Machine<'_> {
    /// A vCPU of the guest sent an IPI.
    pub(crate) fn track_ipi(&mut self, vm: VmNr, delivery: &Delivery) -> Sim {
        let contexts = &self.vms[vm].ipi_contexts;
        if contexts.is_empty() {
            return Ok(());
        }
        let knobs = &self.cfg.knobs.kvm.directed_yield.ipi;
        match delivery.finish(contexts, knobs, self.now, &self.stats.mechanisms) {
            Ok(_) => Ok(()),
            Err(error) => self.broken(error.to_string()),
        }
    }

    /// A vCPU ended this interrupt, and the hypervisor sees it.
    pub(crate) fn track_eoi(&mut self, vcpu: VcpuNr, vector: Option<u8>) -> Sim {
        let v = &self.vcpus[vcpu];
        let contexts = &self.vms[v.vm].ipi_contexts;
        if contexts.is_empty() {
            return Ok(());
        }
        let knobs = &self.cfg.knobs.kvm.directed_yield.ipi;
        match eoi(
            contexts,
            knobs,
            v.index,
            vector,
            self.now,
            &self.stats.mechanisms,
        ) {
            Ok(_) => Ok(()),
            Err(error) => self.broken(error.to_string()),
        }
    }

    /// The guest's vCPUs are destroyed on this host and created on another, where nothing is tracked
    /// yet (`kvm_arch_vcpu_destroy`, `kvm_arch_vcpu_create`).
    pub(crate) fn reset_tracking(&mut self, vm: VmNr) -> Sim {
        let contexts = &self.vms[vm].ipi_contexts;
        for vcpu in 0..contexts.len() as u32 {
            if let Err(error) = forget(contexts, vcpu) {
                return self.broken(error.to_string());
            }
        }
        self.vms[vm].directed_yield = DirectedYield::new();
        Ok(())
    }

    /// A vCPU has left the guest by PAUSE: the word that it shares with its guest says which vCPU it
    /// waits for, if any (`kvm.guest_yield_hint`).
    pub(crate) fn read_yield_hint(&mut self, vcpu: VcpuNr) -> Sim {
        let knobs = &self.cfg.knobs.kvm.directed_yield.ipi;
        if !knobs.guest_yield_hint {
            return Ok(());
        }
        let v = &self.vcpus[vcpu];
        let contexts = &self.vms[v.vm].ipi_contexts;
        let done = match self.spin_waits_for(vcpu) {
            Some(holder) => guest_hint(
                contexts,
                knobs,
                v.index,
                holder,
                self.now,
                &self.stats.mechanisms,
            ),
            None => withdraw_hint(contexts, v.index),
        };
        match done {
            Ok(_) => Ok(()),
            Err(error) => self.broken(error.to_string()),
        }
    }
}

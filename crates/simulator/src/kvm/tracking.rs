//! IPI tracking: who waits for whom (`kvm_irq_delivery_to_apic`, `kvm_lapic_set_eoi`).

use stealtime_hypervisor::ipi_tracking::{Delivery, eoi};

use crate::fault::Sim;
use crate::ids::VcpuNr;
use crate::machine::Machine;

impl Machine<'_> {
    /// The guest's vCPU `from` sent `icr_low`, which `to` accepted.
    pub(crate) fn track_ipi(&mut self, from: VcpuNr, to: &[u32], icr_low: u32) -> Sim {
        let v = &self.vcpus[from];
        if self.vms[v.vm].ipi_contexts.is_empty() {
            return Ok(());
        }
        let mut delivery = Delivery::new(Some(v.index), icr_low);
        for &index in to {
            delivery.destination(index, 1);
        }
        let contexts = &self.vms[v.vm].ipi_contexts;
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
}

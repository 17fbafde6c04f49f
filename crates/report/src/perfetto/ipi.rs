//! Flows from a guest's IPI to its injection.
//!
//! A vCPU writes its ICR (`kvm_apic_ipi`, or the hypercall `KVM_HC_SEND_IPI`). Still in its exit KVM
//! sets the vector in each target's IRR (`kvm_apic_accept_irq`, with the target's APIC id). Each
//! target's thread injects it before its next entry (`kvm_inj_virq`).
//!
//! A flow has one end, so there is one flow for each target. A vector that is still in the IRR when it
//! is sent again is injected once, and its flow is the first sender's. Posted interrupts have no
//! injection, and so no flow.

use std::collections::BTreeMap;

/// An IPI that waits for its targets: their events follow it.
#[derive(Debug, Clone, Default)]
pub(super) struct Request {
    /// When the guest asked.
    pub(super) time_ns: u64,
    /// The vector, where the request names it: a hypercall's is not known.
    pub(super) vector: Option<u8>,
    /// `(icr_low, dest_id)` of an ICR write.
    pub(super) icr: Option<(u32, u32)>,
    /// The flows to its targets.
    pub(super) flows: Vec<u64>,
}

/// Flows without an end so far.
#[derive(Debug, Default)]
pub(super) struct Flows {
    count: u64,
    /// By target (place in the roster) and vector.
    waiting: BTreeMap<(u32, u8), u64>,
}

impl Flows {
    /// A vector was set in a target's IRR: the flow to it, where the vector was not already there.
    pub(super) fn accept(&mut self, target: u32, vector: u8) -> Option<u64> {
        if self.waiting.contains_key(&(target, vector)) {
            return None;
        }
        self.count += 1;
        self.waiting.insert((target, vector), self.count);
        Some(self.count)
    }

    /// A vector is injected: the flow that ends here.
    pub(super) fn inject(&mut self, target: u32, vector: u8) -> Option<u64> {
        self.waiting.remove(&(target, vector))
    }

    /// Events were lost: what is injected from now on need not be what was waiting.
    pub(super) fn forget(&mut self) {
        self.waiting.clear();
    }

    /// How many flows there were.
    pub(super) fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vector_sent_twice_is_injected_once() {
        let mut flows = Flows::default();
        let first = flows.accept(1, 0xfd);
        assert!(first.is_some());
        assert_eq!(flows.accept(1, 0xfd), None);
        assert_ne!(flows.accept(2, 0xfd), first);
        assert_eq!(flows.inject(1, 0xfd), first);
        assert_eq!(flows.inject(1, 0xfd), None);
    }

    #[test]
    fn a_loss_cuts_flows() {
        let mut flows = Flows::default();
        flows.accept(1, 0xfd);
        flows.forget();
        assert_eq!(flows.inject(1, 0xfd), None);
    }
}

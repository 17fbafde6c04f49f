//! IRR, ISR and PPR: which interrupt is next, with and without APICv.
//!
//! The caches are those of Linux `arch/x86/kvm/lapic.c`: `isr_count`, `highest_isr_cache` and, next
//! to the IRR, `irr_pending`. They are kept because they are observable: in the time of an event
//! request, and in RVI and SVI.

use super::irr::{InterruptSource, Irr, Merged};
use super::vector_set::VectorSet;
use crate::word::AtomicWord;

/// What few LAPICs need: that of level-triggered interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct LevelTriggered {
    /// Trigger-mode register: vectors last accepted as level-triggered.
    pub(super) tmr: VectorSet,
    /// Vectors with an EOI that leaves the guest.
    pub(super) eoi_exit: VectorSet,
}

/// Allocated by the few LAPICs that need it; without memory of its own each LAPIC has room.
#[cfg(feature = "alloc")]
type LevelRoom = alloc::boxed::Box<LevelTriggered>;
#[cfg(not(feature = "alloc"))]
type LevelRoom = LevelTriggered;

/// The part of a LAPIC that only the vCPU's own thread, or the processor that runs it, touches.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lapic {
    /// In-service register.
    pub(super) isr: VectorSet,
    /// What level-triggered interrupts need; none came yet otherwise.
    pub(super) level: Option<LevelRoom>,
    pub(super) tpr: u8,
    pub(super) ppr: u8,
    pub(super) apicv: bool,
    isr_count: u32,
    highest_isr_cache: Option<u8>,
    /// Requesting virtual interrupt: low byte of the guest interrupt status.
    pub(super) rvi: u8,
    /// Servicing virtual interrupt: high byte of the guest interrupt status.
    pub(super) svi: u8,
    event: bool,
    nested_guest: bool,
}

/// The priority class of a vector, in the upper nibble.
pub(super) const fn class(vector: u8) -> u8 {
    vector & 0xf0
}

impl Lapic {
    /// An enabled LAPIC without requests.
    #[must_use]
    pub fn new(apicv: bool) -> Self {
        Self {
            isr: VectorSet::EMPTY,
            level: None,
            tpr: 0,
            ppr: 0,
            apicv,
            isr_count: u32::from(apicv),
            highest_isr_cache: None,
            rvi: 0,
            svi: 0,
            event: false,
            nested_guest: false,
        }
    }

    /// Vectors in service.
    #[must_use]
    pub fn isr(&self) -> VectorSet {
        self.isr
    }
    /// Task priority.
    #[must_use]
    pub fn tpr(&self) -> u8 {
        self.tpr
    }
    /// Processor priority, as last computed.
    #[must_use]
    pub fn ppr(&self) -> u8 {
        self.ppr
    }
    /// Whether the processor virtualizes this LAPIC at present.
    #[must_use]
    pub fn apicv(&self) -> bool {
        self.apicv
    }
    /// Requesting virtual interrupt, the highest of the IRR that the processor knows of.
    #[must_use]
    pub fn rvi(&self) -> u8 {
        self.rvi
    }
    /// Servicing virtual interrupt.
    #[must_use]
    pub fn svi(&self) -> u8 {
        self.svi
    }
    /// Sets RVI; whether it changed (the VMCS is written only then).
    pub fn set_rvi(&mut self, rvi: u8) -> bool {
        let changed = self.rvi != rvi;
        self.rvi = rvi;
        changed
    }
    /// The caches: the number of ISR bits (1 with APICv) and the highest known one.
    #[must_use]
    pub fn isr_cache(&self) -> (u32, Option<u8>) {
        (self.isr_count, self.highest_isr_cache)
    }
    /// Asks that the next guest entry looks for interrupts (`KVM_REQ_EVENT`).
    pub fn request_event(&mut self) {
        self.event = true;
    }
    /// Whether an event is requested.
    #[must_use]
    pub fn event_requested(&self) -> bool {
        self.event
    }
    /// A nested guest runs or stops running: RVI is then its own hypervisor's affair.
    pub fn set_nested_guest(&mut self, active: bool) {
        self.nested_guest = active;
    }
    /// Takes a request made by [`request_event`](Self::request_event), by the vCPU's own thread.
    pub fn take_event(&mut self) -> bool {
        core::mem::take(&mut self.event)
    }

    /// The highest vector in service.
    #[must_use]
    pub fn highest_isr(&self) -> Option<u8> {
        if self.isr_count == 0 {
            None
        } else {
            self.highest_isr_cache.or_else(|| self.isr.highest())
        }
    }

    /// Puts a vector in service. Nothing happens if it is already.
    pub fn set_isr(&mut self, vector: u8) {
        if !self.isr.insert(vector) {
            return;
        }
        if self.apicv {
            self.svi = vector;
        } else {
            self.isr_count = self.isr_count.saturating_add(1);
            // A vector is only put in service above those that are.
            self.highest_isr_cache = Some(vector);
        }
    }

    /// Takes a vector out of service. Nothing happens if it is not in service.
    pub fn clear_isr(&mut self, vector: u8) {
        if !self.isr.remove(vector) {
            return;
        }
        if self.apicv {
            self.svi = self.highest_isr().unwrap_or(0);
        } else {
            self.isr_count = self.isr_count.saturating_sub(1);
            self.highest_isr_cache = None;
        }
    }

    /// Recomputes PPR from TPR and ISR; whether it got lower.
    pub fn compute_ppr(&mut self) -> bool {
        let in_service = self.highest_isr().unwrap_or(0);
        let ppr = if class(self.tpr) >= class(in_service) {
            self.tpr
        } else {
            class(in_service)
        };
        let lowered = ppr < self.ppr;
        self.ppr = ppr;
        lowered
    }

    /// The highest request if it may be delivered at processor priority `ppr`.
    fn deliverable<W: AtomicWord>(
        &mut self,
        source: &impl InterruptSource<W>,
        ppr: u8,
    ) -> Option<u8> {
        source.refresh(self).filter(|&vector| class(vector) > ppr)
    }

    /// Recomputes PPR; if that made an interrupt deliverable, requests an event.
    pub fn update_ppr<W: AtomicWord>(&mut self, source: &impl InterruptSource<W>) {
        if self.compute_ppr() && self.deliverable(source, self.ppr).is_some() {
            self.request_event();
        }
    }

    /// Sets the task priority.
    pub fn set_tpr<W: AtomicWord>(&mut self, tpr: u8, source: &impl InterruptSource<W>) {
        self.tpr = tpr;
        self.update_ppr(source);
    }

    /// The interrupt that would be delivered now.
    pub fn has_interrupt<W: AtomicWord>(&mut self, source: &impl InterruptSource<W>) -> Option<u8> {
        self.compute_ppr();
        self.deliverable(source, self.ppr)
    }

    /// Delivers that interrupt: out of the IRR, into service.
    pub fn inject<W: AtomicWord>(&mut self, source: &impl InterruptSource<W>) -> Option<u8> {
        let vector = self.has_interrupt(source)?;
        source.irr().clear(vector, self.apicv);
        self.set_isr(vector);
        self.compute_ppr();
        Some(vector)
    }

    /// End of interrupt, emulated in software. The vector that was in service.
    pub fn eoi<W: AtomicWord>(&mut self, source: &impl InterruptSource<W>) -> Option<u8> {
        let vector = self.highest_isr()?;
        self.clear_isr(vector);
        self.update_ppr(source);
        self.request_event();
        Some(vector)
    }

    /// ORs posted bits into the IRR (`kvm_apic_update_irr`).
    pub fn merge_pir<W: AtomicWord>(&self, irr: &Irr<W>, posted: &VectorSet) -> Merged {
        let merged = irr.merge(posted);
        if merged.highest_is_new && !self.apicv {
            irr.mark_pending();
        }
        merged
    }

    /// After a synchronization: RVI with APICv, otherwise an event, but only for a new highest
    /// vector.
    pub fn note_highest(&mut self, highest: Option<u8>, is_new: bool) {
        if self.apicv && !self.nested_guest {
            self.set_rvi(highest.unwrap_or(0));
        } else if is_new {
            self.request_event();
        }
    }

    /// Switches APICv on or off for this vCPU (`kvm_apic_update_apicv`). RVI stays as it is.
    pub fn set_apicv<W: AtomicWord>(&mut self, enabled: bool, source: &impl InterruptSource<W>) {
        self.apicv = enabled;
        source.irr().mark_pending();
        if enabled {
            self.isr_count = 1;
            self.svi = self.highest_isr().unwrap_or(0);
        } else {
            self.isr_count = self.isr.len();
        }
        self.highest_isr_cache = None;
    }
}

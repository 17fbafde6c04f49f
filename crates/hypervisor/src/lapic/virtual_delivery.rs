//! What the processor does with a virtualized LAPIC in guest mode, and the level-trigger
//! bookkeeping that decides which EOIs leave it.
//!
//! Intel SDM vol. 3: "Virtual-interrupt delivery", "PPR virtualization", "EOI virtualization".
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::lapic::{Irr, Lapic};
//!
//! let (irr, mut lapic) = (Irr::<AtomicU64>::default(), Lapic::new(true));
//! irr.set(0x51);
//! lapic.set_rvi(0x51);
//! // VM entry: the processor delivers the vector and puts it in service, without an exit.
//! assert!(lapic.virtual_entry());
//! assert_eq!(lapic.virtual_deliver(&irr), Some(0x51));
//! assert_eq!(lapic.interrupt_status(), 0x5100);
//! let eoi = lapic.virtual_eoi(&());
//! assert_eq!((eoi.vector, eoi.exits), (0x51, false));
//! ```

use super::irr::Irr;
use super::priority::{Lapic, class};
use super::vector_set::VectorSet;
use crate::events::Events;
use crate::word::AtomicWord;

/// What an EOI in guest mode did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtualEoi {
    /// The vector that SVI named.
    pub vector: u8,
    /// EOI-induced VM exit: the vector's EOI-exit bit is set. Otherwise pending virtual
    /// interrupts were evaluated.
    pub exits: bool,
}

impl Lapic {
    /// Notes how an interrupt was triggered when its request is accepted (`kvm_lapic_set_irr`
    /// and TMR): a level-triggered one has its EOI intercepted, an edge-triggered one not. The first
    /// level-triggered one allocates, unless there is
    /// [room](Self::reserve_level_triggered).
    pub fn note_trigger(&mut self, vector: u8, level_triggered: bool) {
        if level_triggered {
            let level = self.level.get_or_insert_default();
            level.tmr.insert(vector);
            level.eoi_exit.insert(vector);
        } else if let Some(level) = &mut self.level {
            level.tmr.remove(vector);
        }
    }

    /// Makes room for level-triggered interrupts, which few LAPICs get. They are accepted under the
    /// I/O APIC's spinlock: reserve when the vCPU is created.
    pub fn reserve_level_triggered(&mut self) {
        self.level.get_or_insert_default();
    }

    /// Vectors last accepted as level-triggered.
    #[must_use]
    pub fn tmr(&self) -> VectorSet {
        self.level.as_ref().map_or(VectorSet::EMPTY, |l| l.tmr)
    }

    /// Vectors with an EOI that leaves the guest.
    #[must_use]
    pub fn eoi_exit_bitmap(&self) -> VectorSet {
        self.level.as_ref().map_or(VectorSet::EMPTY, |l| l.eoi_exit)
    }

    /// Loads the EOI-exit bitmap, from a scan of the I/O APIC.
    pub fn load_eoi_exit_bitmap(&mut self, vectors: VectorSet) {
        if self.level.is_some() || !vectors.is_empty() {
            self.level.get_or_insert_default().eoi_exit = vectors;
        }
    }

    /// After a VM exit: takes over what the processor has changed. `interrupt_status` is the VMCS's,
    /// with RVI in bits 7:0 and SVI in bits 15:8. ISR and TPR are those of the virtual-APIC page.
    pub fn read_back(&mut self, interrupt_status: u16, isr: VectorSet, tpr: u8) {
        let [rvi, svi] = interrupt_status.to_le_bytes();
        self.rvi = rvi;
        self.svi = svi;
        self.isr = isr;
        self.tpr = tpr;
        self.virtualize_ppr();
    }

    /// The guest interrupt status to write before a VM entry: RVI in bits 7:0, SVI in bits 15:8.
    #[must_use]
    pub fn interrupt_status(&self) -> u16 {
        u16::from_le_bytes([self.rvi, self.svi])
    }

    /// PPR virtualization.
    pub fn virtualize_ppr(&mut self) {
        self.ppr = if class(self.tpr) >= class(self.svi) {
            self.tpr
        } else {
            class(self.svi)
        };
    }

    /// Whether a pending virtual interrupt is recognized: RVI\[7:4\] > VPPR\[7:4\].
    #[must_use]
    pub fn virtual_interrupt_recognized(&self) -> bool {
        class(self.rvi) > class(self.ppr)
    }

    /// VM entry with virtual-interrupt delivery: PPR virtualization, then evaluation. Whether an
    /// interrupt will be delivered at the first opportunity.
    pub fn virtual_entry(&mut self) -> bool {
        self.virtualize_ppr();
        self.virtual_interrupt_recognized()
    }

    /// A guest write of TPR in guest mode.
    pub fn virtual_tpr(&mut self, tpr: u8) -> bool {
        self.tpr = tpr;
        self.virtual_entry()
    }

    /// Virtual-interrupt delivery through the guest IDT, if one is recognized (the caller knows
    /// that RFLAGS.IF = 1 and nothing blocks interrupts).
    pub fn virtual_deliver<W: AtomicWord>(&mut self, irr: &Irr<W>) -> Option<u8> {
        if !self.virtual_interrupt_recognized() {
            return None;
        }
        let vector = self.rvi;
        self.isr.insert(vector);
        self.svi = vector;
        self.ppr = class(vector);
        irr.clear(vector, true);
        self.rvi = irr.snapshot().highest().unwrap_or(0);
        Some(vector)
    }

    /// EOI virtualization. An EOI without an interrupt in service changes nothing.
    pub fn virtual_eoi(&mut self, events: &impl Events) -> VirtualEoi {
        let vector = self.svi;
        self.isr.remove(vector);
        self.svi = self.isr.highest().unwrap_or(0);
        self.virtualize_ppr();
        let exits = self
            .level
            .as_ref()
            .is_some_and(|l| l.eoi_exit.contains(vector));
        events.eoi(vector, exits);
        VirtualEoi { vector, exits }
    }
}

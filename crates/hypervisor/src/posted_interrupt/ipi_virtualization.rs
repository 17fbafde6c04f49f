//! IPI virtualization: an ICR write of a guest that posts without a VM exit.
//!
//! Intel SDM vol. 3 "IPI virtualization".
//!
//! ```
//! use stealtime_hypervisor::lapic::Interrupt;
//! use stealtime_hypervisor::posted_interrupt::ipi_virtualization::{
//!     ExitReason, PidPointerTable, Route,
//! };
//!
//! // vCPU 1 has a descriptor at 0x2000; the entry of vCPU 0 is not valid.
//! let table = PidPointerTable { entries: &[0, 0x2001] };
//! let route = |dest| table.route(&Interrupt::from_icr(0x4031, dest, true), true, &());
//! assert_eq!(route(1), Route::Post { apic_id: 1, address: 0x2000 });
//! assert_eq!(route(0), Route::Exit(ExitReason::InvalidEntry(0)));
//! ```

use super::descriptor::Descriptor;
use super::vtd::{NotificationIpi, set_on_and_notify};
use crate::events::Events;
use crate::lapic::{DeliveryMode, Interrupt, Shorthand};
use crate::word::AtomicWord;

/// The table of descriptors by APIC id. `LAST_PID_POINTER_INDEX` of the VMCS is the number of
/// entries less one.
#[derive(Clone, Copy, Debug)]
pub struct PidPointerTable<'a> {
    /// The entries: bit 0 valid, the rest the descriptor's address.
    pub entries: &'a [u64],
}

/// Why an IPI leaves the guest (an APIC-write VM exit), to be emulated in software.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExitReason {
    /// Only fixed, physical, edge-triggered IPIs without shorthand are virtualized.
    Form,
    /// The destination is all LAPICs.
    Broadcast,
    /// A vector below 16.
    Vector(u8),
    /// Beyond the last index of the table.
    OutOfTable(u32),
    /// The table's entry is not valid.
    InvalidEntry(u32),
}

/// The processor's handling of an ICR write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Posts to the descriptor at this physical address.
    Post {
        /// The destination's APIC id.
        apic_id: u32,
        /// The descriptor's address.
        address: u64,
    },
    /// APIC-write VM exit.
    Exit(ExitReason),
}

/// Exit qualification of an APIC-write exit by an ICR write: the register's offset.
pub const ICR_EXIT_QUALIFICATION: u32 = 0x300;

impl PidPointerTable<'_> {
    /// Decides the handling of an IPI. `x2apic`: the guest writes the ICR MSR.
    #[must_use]
    #[inline]
    pub fn route(&self, ipi: &Interrupt, x2apic: bool, events: &impl Events) -> Route {
        let route = self.decide(ipi, x2apic);
        if let Route::Exit(_) = route {
            events.ipi_exits(ipi.vector);
        }
        route
    }

    #[inline]
    fn decide(&self, ipi: &Interrupt, x2apic: bool) -> Route {
        let plain = ipi.delivery == DeliveryMode::Fixed
            && ipi.shorthand == Shorthand::None
            && !ipi.logical
            && !ipi.level_triggered;
        if !plain {
            return Route::Exit(ExitReason::Form);
        }
        if ipi.dest == if x2apic { u32::MAX } else { 0xff } {
            return Route::Exit(ExitReason::Broadcast);
        }
        if ipi.vector < 16 {
            return Route::Exit(ExitReason::Vector(ipi.vector));
        }
        match self.entries.get(ipi.dest as usize) {
            None => Route::Exit(ExitReason::OutOfTable(ipi.dest)),
            Some(entry) if entry & 1 == 0 => Route::Exit(ExitReason::InvalidEntry(ipi.dest)),
            Some(entry) => Route::Post {
                apic_id: ipi.dest,
                address: entry & !1,
            },
        }
    }
}

/// Posts in two atomic steps: PIR, then the control word. Unlike VT-d there is no "urgent", so that
/// a blocked vCPU is woken only if NV is the wakeup vector and SN is clear.
pub fn post<W: AtomicWord>(
    desc: &Descriptor<W>,
    vector: u8,
    events: &impl Events,
) -> Option<NotificationIpi> {
    events.ipi_virtualized(vector);
    desc.test_and_set_pir(vector);
    desc.fence_after_rmw();
    set_on_and_notify(desc, vector, false, events)
}

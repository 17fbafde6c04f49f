//! A guest's local APIC: requests, priorities, end of interrupt, and the vCPUs that an IPI reaches.
//!
//! - [`Lapic`] is what the vCPU's own thread holds: ISR, TPR, PPR and the cached searches, with
//!   and without APICv. Pure state, no I/O.
//! - [`Irr`] is what other CPUs write too, in atomic words.
//! - [`virtual_delivery`] is what the processor does with the same state in guest mode.
//! - [`Interrupt`] decodes ICR writes; [`ApicBus`] resolves destinations as KVM does and
//!   reports the vCPUs that an interrupt reached; [`xen`] does so by Xen's rules.
//!
//! Sources: Intel SDM vol. 3, "Advanced Programmable Interrupt Controller" and "APIC
//! virtualization and virtual interrupts"; Linux `arch/x86/kvm/lapic.c`; Xen `vlapic.c`.

#[cfg(feature = "alloc")]
mod apic_bus;
mod destination;
#[cfg(feature = "alloc")]
mod destination_map;
mod icr;
mod irr;
mod priority;
mod vector_set;
pub mod virtual_delivery;
pub mod xen;

#[cfg(feature = "alloc")]
pub use apic_bus::{ApicBus, BusOptions, Delivered, PvIpi, PvIpiError};
pub use destination::{Apic, ApicMode, NO_SOURCE, NoSuchVcpu, Source};
#[cfg(feature = "alloc")]
pub use destination_map::{DestinationMap, FastPath, Inhibit, LogicalMode};
pub use icr::{DeliveryMode, IllegalVector, Interrupt, Shorthand};
pub use irr::{InterruptSource, Irr, Merged};
pub use priority::Lapic;
pub use vector_set::VectorSet;
pub(crate) use vector_set::{bit_of, word_of};

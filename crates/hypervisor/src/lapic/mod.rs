//! A guest's local APIC: requests, priorities, end of interrupt, and the vCPUs that an IPI reaches.
//!
//! - [`Lapic`] is what the vCPU's own thread holds: ISR, TPR, PPR and the cached searches, with
//!   and without APICv. Pure state, no I/O.
//! - [`Irr`] is what other CPUs write too, in atomic words.
//! - [`virtual_delivery`] is what the processor does with the same state in guest mode.
//! - [`Interrupt`] decodes ICR writes; [`ApicBus`] resolves destinations as KVM does and
//!   reports the vCPUs that an interrupt reached; [`xen`] does so by Xen's rules.
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::lapic::{Interrupt, Irr, Lapic};
//!
//! // Another vCPU writes its ICR: vector 0x31, fixed, to x2APIC id 2.
//! let ipi = Interrupt::from_icr(0x4031, 2, true);
//! assert_eq!((ipi.vector, ipi.dest), (0x31, 2));
//!
//! // The software LAPIC of vCPU 2 accepts it, and injects the highest request above its priority.
//! let (irr, mut lapic) = (Irr::<AtomicU64>::default(), Lapic::new(false));
//! irr.set(ipi.vector);
//! irr.set(0x41);
//! assert_eq!(lapic.inject(&irr), Some(0x41));
//! assert_eq!(lapic.has_interrupt(&irr), None); // 0x41 is in service
//! assert_eq!(lapic.eoi(&irr), Some(0x41));
//! assert_eq!(lapic.inject(&irr), Some(0x31));
//! ```
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

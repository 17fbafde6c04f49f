//! Posted interrupts on VMX: the descriptor, its posters, and the vCPU's side of the protocol.
//!
//! - [`Descriptor`]: the 64 bytes that hardware and software share, bit by bit.
//! - Posters: [`deliver`] (software), [`vtd`] (devices), [`ipi_virtualization`] (other vCPUs
//!   without an exit); a LAPIC timer on another CPU posts through [`deliver`] too.
//! - [`hardware`]: what the processor does with a notification in guest mode.
//! - [`PostedVcpu`]: guest entry and exit, synchronization of PIR to IRR, load and put,
//!   blocking and the wakeup lists.
//! - [`Suppression`]: when notifications are suppressed. The faulty policies of the posted series
//!   are included, so that their failures can be observed.
//!
//! All state that several CPUs access is in [`AtomicWord`](crate::word::AtomicWord)s of
//! [`SharedVcpu`]. Operations return the required actions (an IPI, a wakeup).
//!
//! Sources: Intel SDM vol. 3 "Posted-interrupt processing", "IPI virtualization"; VT-d
//! specification 5.2.3; Linux `arch/x86/kvm/vmx/posted_intr.c`, `vmx.c`, `x86.c`.
//!
//! # One interrupt
//!
//! ```
//! use std::sync::atomic::AtomicU64;
//! use stealtime_hypervisor::lapic::Lapic;
//! use stealtime_hypervisor::posted_interrupt::{
//!     Capabilities, Delivery, Entry, LocalLists, PostedVcpu, SharedVcpu, Suppression, deliver,
//!     hardware,
//! };
//!
//! let host = Capabilities {
//!     apicv: true, irqchip: true, ipiv: true, vtd_posting: true, host_x2apic: true,
//! };
//! let policy = Suppression::Corrected;
//! let vcpu = SharedVcpu::<AtomicU64>::new(true);
//! let (mut own, mut lapic) = (PostedVcpu::new(0, host, policy), Lapic::new(true));
//! let lists = LocalLists::new(4, 1);
//!
//! // The vCPU's thread, on CPU 3 with APIC id 6, enters the guest.
//! own.load(&vcpu, 3, 6, &lists, &())?;
//! assert_eq!(own.enter(&vcpu, &mut lapic, &()), Entry::Run);
//!
//! // Another CPU posts vector 0x41, and must send the notification.
//! let todo = deliver(&vcpu, 0x41, false, policy, &());
//! assert_eq!(todo, Delivery::Ipi { cpu: Some(3), vector: 0xf2 });
//!
//! // CPU 3 receives it in guest mode and delivers without an exit.
//! hardware::interrupt_in_guest(&vcpu, &mut lapic, 0xf2, 0xf2, &());
//! assert_eq!(lapic.virtual_deliver(&vcpu.irr), Some(0x41));
//! # Ok::<(), stealtime_hypervisor::posted_interrupt::NotOnACpu>(())
//! ```
//!
//! # The protocol's barriers
//!
//! | race | poster or kicker | vCPU |
//! |---|---|---|
//! | R1 | [`deliver`]: RMW of ON, then mode | [`PostedVcpu::enter`]: mode, fence, ON |
//! | R2 | RMW of PIR, then ON | [`PostedVcpu::sync`]: clear ON, fence, PIR |
//! | R3 | VT-d: PIR and SN in one step | [`unsuppress`]: clear SN, fence, PIR, ON |
//! | R4 | RMW of ON, mode, fence, wait | [`PostedVcpu::wait`]: wait, fence, ON and PIR |
//! | R5 | RMW of ON under the old NV | put: list, NV, then ON of the image that won |
//! | R6 | [`kick`]: request, fence, mode | enter: mode, fence, requests |
//! | R7 | notification | interrupts off from the mode store to VM entry (caller) |
//! | R8 | [`deliver_nested`]: request, fence, mode | as R6 |
//! | R9 | reads mode, then APICv | release store of the mode |
//! | R10 | wakeup handler under the CPU's lock | load: lock of the previous CPU |

mod blocking;
mod descriptor;
mod entry;
pub mod hardware;
pub mod ipi_virtualization;
mod load_put;
mod policy;
mod shared;
mod software;
mod sync;
pub mod vtd;
mod wakeup;

pub use descriptor::{Control, Descriptor, ndst};
pub use entry::Entry;
pub use hardware::{HostInterrupt, Notification};
pub use load_put::{Capabilities, Loaded, NotOnACpu, PostedVcpu, Put, PutReason};
pub use policy::{Fault, Suppression, UnknownSuppression};
pub use shared::{CpuId, Kick, Requests, SharedVcpu, VcpuId, VcpuMode, kick, wake_up};
pub use software::{Delivery, deliver, deliver_nested, deliver_through_irr};
pub use sync::{Synchronized, suppress, unsuppress};
#[cfg(feature = "alloc")]
pub use wakeup::{CpuList, LocalLists};
pub use wakeup::{WakeupList, WakeupLists, wakeup_handler};

/// Host vector of a notification for a vCPU in guest mode (`POSTED_INTR_VECTOR`).
pub const POSTED_INTR_VECTOR: u8 = 0xf2;
/// Host vector of a notification for a blocked vCPU (`POSTED_INTR_WAKEUP_VECTOR`).
pub const POSTED_INTR_WAKEUP_VECTOR: u8 = 0xf1;
/// Host vector of a notification for an active nested guest (`POSTED_INTR_NESTED_VECTOR`).
pub const POSTED_INTR_NESTED_VECTOR: u8 = 0xf0;

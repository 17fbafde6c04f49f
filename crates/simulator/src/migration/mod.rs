//! Migrating a guest: what its clocks show, all the while.
//!
//! A VMM's thread stops the guest, reads its clocks and sends them. On the destination another
//! thread writes them in reverse order. Both threads are scheduled like any other: one that is
//! preempted between reading and writing is what restoring by value cannot stand. All arithmetic is
//! `hypervisor::counter`'s, as in KVM.

mod arm64;
mod clock;
#[cfg(test)]
mod tests;
pub(crate) mod vmm;

pub use clock::ClockOutcome;
pub(crate) use clock::GuestClock;
pub(crate) use vmm::VmmThread;

//! Migrating a guest: what its clocks show, all the while.
//!
//! A VMM's thread stops the guest, reads its clocks, sends them, and writes them on the
//! destination, where another thread of it does the same backwards. Both threads are scheduled like
//! any other: one that is preempted between reading and writing is what restoring by value cannot
//! stand. All arithmetic is `hypervisor::counter`'s, as in KVM.

mod arm64;
mod clock;
#[cfg(test)]
mod tests;
mod vmm;

pub use clock::ClockOutcome;
pub(crate) use clock::GuestClock;
pub(crate) use vmm::VmmThread;

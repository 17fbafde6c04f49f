//! The vocabulary of a virtualization host: time, identities and typed events.
//!
//! A trace of a real host and a simulated host give the same [`Event`]s, so every analysis, table and
//! export works on both. The crate does no I/O and allocates nothing. Names are numbers ([`NameId`])
//! into a table of the events' source.
//!
//! Variants of [`Kind`] have the names of the kernel's tracepoints, and their fields those of the
//! tracepoints' fields.
#![no_std]

mod context;
pub mod exit_reason;
mod field;
pub mod hypercall;
mod ids;
mod kind;
mod tracepoints;
pub mod vector;

pub use context::Context;
pub use exit_reason::{ExitReason, Isa};
pub use field::{FieldType, FieldValue};
pub use ids::{CpuId, NameId, Names, Tid, VcpuId};
pub use kind::Kind;
pub use vector::HostVector;

/// One thing that happened on one CPU of the host.
///
/// `Copy` and 40 bytes: made to be passed by the hundred million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Time in nanoseconds of the source's clock. A source with another unit says so in its metadata.
    pub time_ns: u64,
    /// The task that was current on the CPU (`common_pid`); 0 is the idle task.
    pub tid: Tid,
    /// The host CPU.
    pub cpu: CpuId,
    /// Interrupt context and preemption state (`common_flags`).
    pub context: Context,
    /// What happened.
    pub kind: Kind,
}

const _: () = assert!(
    size_of::<Event>() <= 40,
    "an event is passed by value everywhere"
);

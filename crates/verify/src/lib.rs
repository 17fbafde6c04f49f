//! Every interleaving of the hypervisor's lock-free protocols.
//!
//! The functions of `stealtime-hypervisor` run unchanged, on words that show each shared access
//! ([`AtomicWord`](stealtime_hypervisor::word::AtomicWord)). Agents around them stand for hardware
//! and scheduler. A breadth-first search over states finds the shortest path to a violation, or none.
//!
//! - [`PROTOCOLS`] lists the protocols, [`cases`] selects explorations, [`Case::explore`] searches.
//! - [`Case::walk`] shows a path as a table; [`Replay`] keeps it in a file.

mod catalog;
mod clock;
mod clock_restore;
mod fingerprint;
mod ipi_lifecycle;
mod ipi_tracking;
mod model;
mod pi_notify;
mod pi_timer;
mod scx_yield;
mod search;
mod trace;
mod wakeup_batch;
mod word;
mod yields;

pub use catalog::{Case, PROTOCOLS, Protocol, Unknown, Variant, cases};
pub use model::{Choice, Violation};
pub use search::{End, Finding, Limits, Outcome};
pub use trace::{MODEL_VERSION, NoSuchStep, Replay, ReplayError, Row, Trace};

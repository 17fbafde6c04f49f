//! Every interleaving of the hypervisor's lock-free protocols.
//!
//! The functions of `stealtime-hypervisor` are run as they are, on words that show each shared
//! access ([`AtomicWord`](stealtime_hypervisor::word::AtomicWord)); around them stand agents for
//! hardware and scheduler. A breadth-first search over states finds the shortest way to a
//! violation, or none.
//!
//! - [`PROTOCOLS`] is what there is to check, [`cases`] picks, [`Case::explore`] searches.
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
mod search;
mod trace;
mod wakeup_batch;
mod word;
mod yields;

pub use catalog::{Case, PROTOCOLS, Protocol, Unknown, Variant, cases};
pub use model::{Choice, Violation};
pub use search::{End, Finding, Limits, Outcome};
pub use trace::{MODEL_VERSION, NoSuchStep, Replay, ReplayError, Row, Trace};

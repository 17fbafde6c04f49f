//! Layer of trace.dat and perf.data: `format` descriptions of tracefs and the records they describe.
//!
//! [`Formats`] holds the descriptions that a file carries. [`Decoder`] compiles them once into plans
//! (where each needed field lies) and then turns raw records into [`stealtime_events::Event`]s with a
//! few bounded loads each.

mod decoder;
pub mod format;
mod functions;
mod load;
mod plan;
mod queue;
mod symbols;
mod tasks;
mod tid_table;

pub use decoder::{Decoder, PlanId, Stamp};
pub use format::{EventFormat, Field, FormatError, Formats, Location};
pub use load::Endian;
pub use queue::{EventQueue, EventSink};
pub use symbols::Symbols;
pub(crate) use tasks::{Comm, comm_of};
pub(crate) use tid_table::TidTable;

#[cfg(test)]
mod decoder_tests;

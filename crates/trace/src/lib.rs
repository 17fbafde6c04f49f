//! Trace files to events.
//!
//! Readers of trace-cmd `trace.dat` (versions 6 and 7), `perf.data` and ftrace text, plain or inside
//! zstd, xz or gzip. They stream: memory does not grow with the file. They never assume where a
//! field is: the `format` descriptions in the file say so.
//!
//! Each layer uses those above it only:
//!
//! | layer | from | to |
//! |---|---|---|
//! | `tracepoint` | the table of tracepoints of `stealtime_events` | fields of each, to events and back |
//! | `input` | a path, a pipe, memory | unpacked bytes, in sequence or at a position |
//! | `tracefs` | `format` descriptions and records | events |
//! | `trace_dat`, `perf`, `text` | a container's bytes | an [`EventSource`] |
//! | `open` | the first bytes of an input | the reader of its container |
//! | `ahead` | an [`EventSource`] | the same events, read by a thread of its own |
//!
//! [`mod@write`] is apart: it turns events into a `trace.dat` by the same table.
//!
//! ```no_run
//! # fn main() -> Result<(), stealtime_trace::ReadError> {
//! let mut source = stealtime_trace::open("trace.dat".as_ref())?;
//! while let Some(event) = source.next_event()? {
//!     println!("{} {:?}", event.time_ns, event.kind);
//! }
//! # Ok(())
//! # }
//! ```

mod ahead;
mod error;
mod input;
mod names;
mod open;
mod options;
mod perf;
mod recognise;
mod source;
mod text;
pub mod trace_dat;
pub mod tracefs;
mod tracepoint;
mod unchanged;
pub mod write;

pub use ahead::Ahead;
pub use error::ReadError;
pub use input::{ReadAt, SPOOL_IN_MEMORY};
pub use names::NameTable;
pub use open::{is_recording, open, open_read, open_with};
pub use options::Options;
pub use source::{Clock, ClockUnit, Counted, EventSource, Format, Lost, Note, SourceInfo};
pub use trace_dat::TraceDat;

/// The examples of README.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

//! Trace files to events.
//!
//! Readers of trace-cmd `trace.dat` (versions 6 and 7), `perf.data` and ftrace text, plain or inside
//! zstd, xz or gzip. They stream: memory does not grow with the file. They never assume where a
//! field is: the `format` descriptions in the file say so.
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
mod perf;
mod source;
mod text;
pub mod trace_dat;
pub mod tracefs;
mod tracepoint;
pub mod write;

pub use ahead::Ahead;
pub use error::ReadError;
pub use input::{Options, SPOOL_IN_MEMORY, is_recording, open, open_read, open_with};
pub use names::NameTable;
pub use source::{Clock, ClockUnit, Counted, EventSource, Format, Lost, Note, SourceInfo};
pub use trace_dat::TraceDat;

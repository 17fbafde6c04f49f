//! Recordings by perf_event_open, into a perf.data: for hosts that refuse tracefs' switches.
//!
//! | module | does |
//! |---|---|
//! | `attributes` | `struct perf_event_attr` and its system call |
//! | `ring` | the ring of a CPU's events |
//! | `file` | perf.data around the records |
//! | `conversion` | how ticks of the TSC become ns |
//! | `session` | a recording from its first event to the whole file |

pub(crate) mod attributes;
mod conversion;
mod file;
mod ring;
mod session;

pub(crate) use conversion::tsc_to_ns;
pub(crate) use session::record;

//! Records a live host.
//!
//! [`record`] reads tracefs itself and needs no other tool. It uses a tracing instance of its own, so the
//! global buffer and other recorders are not touched. Pages of the ring buffers go from the kernel to files
//! as they are (`splice`). At the end one `trace.dat` of version 7 has all of them. trace-cmd, KernelShark
//! and [`stealtime_trace`] open it.
//!
//! | module | does |
//! |---|---|
//! | `need`, `select` | which tracepoints the analyses need, and which of them this kernel has |
//! | `instance` | makes the instance, and removes instances that killed recorders left behind |
//! | `clock`, `buffers` | choose the trace clock and the size of the ring buffers |
//! | `ring`, `collect` | move pages while the host runs, and count lost events |
//! | `tasks`, `file` | names of threads; one file of all pages |
//! | `session` | a recording from its first setting to the whole file |
//! | `follow` | the same pages decoded at once, for collectors without an end |
//! | `bpf` | the same events by BPF programs, at a lower cost |
//! | `flight` | the latest pages in memory, and a file of them |
//! | `address_space` | how many threads a limit of address space has room for |
//! | `rights` | gives up what a collector needs no more |
//! | `perf` | a recording by perf_event_open instead |
//! | `commands` | the same recording by trace-cmd and perf |

mod address_space;
mod bpf;
mod buffers;
mod clock;
mod collect;
mod commands;
mod error;
mod file;
mod flight;
mod follow;
mod instance;
mod limits;
mod need;
mod perf;
mod rights;
mod ring;
mod select;
mod session;
mod stats;
mod tasks;
mod tracefs;

pub use address_space::room_for_threads;
pub use bpf::{BpfError, BpfFollower, KernelCost};
pub use commands::{Commands, Refused, commands};
pub use error::RecordError;
pub use flight::{Flight, FlightFile, Keep};
pub use follow::Follower;
pub use need::{NEEDS, Need};
pub use rights::{drop_capabilities, usual_priority};
pub use select::{Missing, Reason, Selection, Tracepoint};
pub use session::{Ended, Observer, Options, Progress, Summary, check_address_space, record};
pub use tracefs::Folder;

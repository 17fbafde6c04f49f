//! From a recording to the demand of its tasks, and back to a host.
//!
//! [`Extractor`] observes the tracker of `stealtime-track` and builds a script for each task. A script
//! computes for ns of its own time, and waits for points that other scripts reach, or for a time. A script
//! does not have the schedule of the recording. [`host::as_recorded`] makes a host of it for the simulator.

mod answered;
mod callbacks;
mod clocked;
mod copied;
mod coupled;
mod cpu;
mod cpus;
mod decisions;
mod demand;
mod export;
mod extract;
mod finish;
pub mod fit;
pub mod host;
mod jitter;
#[cfg(test)]
#[path = "tests/kinds.rs"]
mod kinds;
mod lost;
mod newidle;
mod observe;
mod polling;
mod population;
pub mod predict;
mod quota;
mod recording;
mod release;
mod scripts;
mod sleep_costs;
mod slices;
mod stalls;
mod task;
mod tasks;
mod ticks;
mod timers;
mod vmm_threads;
mod wake;
mod watch;

pub use cpus::{NoCpuLeft, OnCpus};
pub use decisions::Decisions;
pub use demand::demand_deviations;
pub use export::export_events;
pub use extract::Extractor;
pub use newidle::NewIdle;
pub use population::{Counted, Counts, Guest, VmCopy, copy_bytes};
pub use recording::{Begins, Caller, RecordedTask, Recording, Resolved, Unseen, Wait};
pub use release::Release;

pub use slices::SliceTimers;
pub use watch::WakeLatencies;

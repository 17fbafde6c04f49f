//! From a recording to what everybody wanted, and back to a host.
//!
//! [`Extractor`] turns events into a script for each task: computing in ns of its own time, and
//! waits for points that other scripts reach, or for a time. The schedule that the recording
//! happened to get is gone from it. [`host::as_recorded`] makes a host of it for the simulator.

mod coupled;
mod cpu;
mod decisions;
mod extract;
pub mod host;
mod jitter;
#[cfg(test)]
#[path = "tests/kinds.rs"]
mod kinds;
mod lost;
mod nearest;
mod owners;
mod polling;
pub mod predict;
mod quota;
mod recording;
mod release;
mod retold;
mod slices;
mod task;
mod ticks;
mod timers;
mod wake;
mod watch;
mod weights;

pub use decisions::Decisions;
pub use extract::Extractor;
pub use recording::{Begins, RecordedTask, Recording, Resolved, Unseen};
pub use release::Release;
pub use retold::retold;
pub use slices::SliceTimers;
pub use watch::WakeLatencies;

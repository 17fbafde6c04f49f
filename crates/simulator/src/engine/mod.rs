//! The discrete-event engine: a queue of timers ordered by (time, sequence) and random streams.

mod few;
mod queue;
#[cfg(test)]
mod queue_tests;
mod random;
mod ring;
mod wheel;

pub use queue::{Queue, Slot};
pub use random::{Random, Streams};

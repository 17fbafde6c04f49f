//! The discrete-event engine: a queue of timers ordered by (time, sequence) and random streams.
//!
//! ```
//! use stealtime_simulator::engine::{Queue, Streams};
//!
//! let mut queue = Queue::new();
//! let (tick, timeout) = (queue.slot(), queue.slot());
//! queue.arm(tick, 1_000);
//! queue.arm(timeout, 500);
//! queue.cancel(timeout);
//! assert_eq!(queue.pop(2_000), Some((1_000, tick)));
//!
//! // A stream of random numbers depends on the seed and its own name alone.
//! let streams = Streams::new(1);
//! assert_eq!(streams.named("disk").bits(), streams.named("disk").bits());
//! ```

mod few;
mod queue;
#[cfg(test)]
mod queue_tests;
mod random;
mod ring;
mod wheel;

pub use queue::{Queue, Slot};
pub use random::{Random, Streams};

//! One pass over events to answers: where guest time went.
//!
//! Memory is bounded by the number of CPUs, threads, vCPUs and exit reasons, not by the length of
//! the trace. The same analysis serves real recordings and simulated runs.

pub mod answers;

pub use answers::Answers;

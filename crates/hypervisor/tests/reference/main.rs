//! The fair class against a plain reference: a list of entities, everything recomputed.
//!
//! The reference is written from the description of the scheduler, not from the crate. It
//! reproduces the recorded vectors, and on random sequences (all features, both ways to pick,
//! nested groups, several CPUs) the crate must show the same after each operation: picks,
//! requests, timers, virtual times, lag, averages, sums, counters, buddies.
#![allow(clippy::unwrap_used, reason = "a test may fail")]

mod credit;
#[path = "../golden/files.rs"]
mod files;
mod flat;
mod generate;
mod golden;
mod model;
mod op;
mod ops;
mod ours;
mod random;
mod recorded;
mod sums;
mod walk;

//! The analysis against recordings of real hosts, and what other tools say of them.
//!
//! `STEALTIME_TRACES` names the folder of recordings. Without it a small piece of one is read.

#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot read its data has failed"
)]

mod common;
mod grouping;
mod parts;
#[path = "../../../../tests/recordings.rs"]
mod paths;
mod perf;
mod sample;
mod summaries;

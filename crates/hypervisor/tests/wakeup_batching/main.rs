//! Batched wakeups: what a sloppy implementation gets wrong, item by item, ICR writes against a
//! plain model, and the softirq word under real threads.
//!
//! The numbers are those of the table in `docs/mechanisms.md`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod batch;
mod form;
mod icr;
mod machine;
mod mwait;
mod policy;

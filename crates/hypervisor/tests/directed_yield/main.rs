//! Directed yield and IPI tracking: what a sloppy implementation gets wrong, item by item, and
//! the selection against a plain model.
//!
//! The numbers are those of the table in `docs/mechanisms.md`; items 5–10 are the
//! scheduler's, of which 5 and 6 have a KVM half here.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod ipi;
mod meanwhile;
mod model;
mod order;
mod spin;
mod vm;

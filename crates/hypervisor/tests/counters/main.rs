//! Guest counters: what a sloppy implementation gets wrong, item by item, and the counters
//! against plain models.
//!
//! The numbers are those of the table in `docs/mechanisms.md`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on must fail")]

mod arm64;
mod barriers;
mod clock;
mod host;
mod migration;
mod models;
mod pvclock;
mod refused;
mod sync;

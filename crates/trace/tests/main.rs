//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod common;
mod perf;
mod perf_damage;
#[path = "../../../tests/recordings.rs"]
mod recordings;
mod text;
mod trace_dat;
mod trace_dat_damage;
mod write_report;
mod write_rewritten;

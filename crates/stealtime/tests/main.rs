//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod calibrate;
mod check;
mod clock;
mod command;
mod common;
mod corpus;
mod diff;
mod doctor;
mod facts;
mod fit;
mod fleet;
mod import;
mod json_page;
mod names;
mod pages;
mod recording;
#[path = "../../../tests/recordings.rs"]
mod recordings;
mod references;
mod refusals;
mod remedies;
mod report;
mod reproduce;
mod sched;
mod simulate;
mod snapshot;
mod sweep;
mod threads;
mod top;
mod trace_dat;
mod trial;
mod vmx;
mod watch;
mod whatif;

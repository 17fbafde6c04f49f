//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod books;
mod determinism;
mod eoi;
mod guests;
mod quota;
mod theory;
mod trace_dat;

//! All tests in one binary.

mod clock;
mod compare;
mod known;
mod scale;

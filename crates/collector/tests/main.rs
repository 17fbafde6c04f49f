//! All tests in one binary.

mod compare;
mod scale;

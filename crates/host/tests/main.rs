//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod scale;
mod trees;

//! All tests in one binary: each binary costs a link, and tests of one run side by side.

#[path = "common/answers.rs"]
mod answers;
mod common;
mod compare;
mod forms;
mod html;
mod perfetto;

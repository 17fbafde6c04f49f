//! Trees for the timeline.
pub(crate) fn run() {}

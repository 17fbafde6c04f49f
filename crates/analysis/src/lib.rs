//! One pass over events to answers.

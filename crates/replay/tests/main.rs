//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod common;
mod counts;
mod halts;
mod hidden;
mod hostile;
mod lost;
mod presence;
mod quota;
mod round_trip;
mod scenarios;
mod wakeups;
mod weights;
mod yields;

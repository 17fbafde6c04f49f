//! All tests in one binary: each binary costs a link, and tests of one run side by side.

mod births;
mod common;
mod copies;
mod counts;
mod decisions;
mod demand;
mod ends;
mod exports;
mod delays;
mod demands;
mod halts;
mod hidden;
mod hostile;
mod hosts;
mod lost;
mod presence;
mod quota;
mod releases;
mod round_trip;
mod scenarios;
mod unknowns;
mod settings;
mod timers;
mod wakeups;
mod weights;
mod yields;

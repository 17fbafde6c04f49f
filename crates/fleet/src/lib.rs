//! Answers of many recordings as one set of tables, that can be stopped at any moment and go on.
//!
//! A [`Fleet`] is a folder. Each recording that is analyzed leaves a part in it, whole or not at all. At the
//! end [`Fleet::write`] makes a file for each table of all parts, in the order of the recordings. The files
//! are a function of the recordings alone: not of the number of threads, nor of where the work was stopped.

mod ahead;
mod error;
mod fleet;
mod part;
mod tables;

#[cfg(test)]
mod tests;

pub use error::FleetError;
pub use fleet::{Fleet, Identity, Outcome, Written};
pub use tables::{RecordingTables, Table};

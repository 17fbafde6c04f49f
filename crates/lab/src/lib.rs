//! Experiments on simulated hosts.
//!
//! A [`Scenario`](scenario::Scenario) is a TOML file: a host by its machine [`profile`], guests,
//! [`knobs`] by their real names, and variants that change some of them. [`run`] runs each variant
//! with each seed on all cores. [`compare`] gives the differences of the variants, with confidence
//! intervals. [`sweep`] runs grids, and resumes those that are stopped.

pub mod compare;
pub mod document;
mod error;
pub mod knobs;
pub mod metric;
pub mod profile;
pub mod run;
pub mod scenario;
pub mod simulate;
pub mod spelling;
pub mod stats;
pub mod sweep;
pub mod units;

pub use error::{Diagnostic, LoadError};

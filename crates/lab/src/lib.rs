//! Experiments on simulated hosts.
//!
//! A [`Scenario`](scenario::Scenario) is a TOML file: a host by its machine [`profile`], guests,
//! [`knobs`] by their real names, and variants that change some of them. [`run`] runs each variant
//! with each seed on all cores. [`compare`] gives the differences of the variants, with confidence
//! intervals. [`sweep`] runs grids, and resumes those that are stopped.
//!
//! ```
//! use std::num::NonZeroUsize;
//! use std::sync::atomic::AtomicBool;
//! use stealtime_lab::compare::compare;
//! use stealtime_lab::metric::Unit;
//! use stealtime_lab::run::run;
//! use stealtime_lab::scenario::Scenario;
//! use stealtime_lab::simulate::Simulator;
//!
//! let text = r#"
//! [host]
//! profile = "skylake-sp"
//! cpus = 2
//!
//! [[vm]]
//! name = "web"
//! vcpus = 2
//! workload = "hackbench"
//!
//! [variants.polling]
//! [variants.not]
//! kvm.halt_poll_ns = 0
//!
//! [run]
//! duration = "5ms"
//! seeds = 2
//! "#;
//! let scenario = Scenario::from_text("example.toml", text)?;
//! let variants: Vec<_> = scenario.variants.iter().collect();
//! let (one, stop) = (NonZeroUsize::MIN, AtomicBool::new(false));
//! let runs = run(&Simulator, &scenario, &variants, one, &stop, &|_, _| {})?;
//! let comparison = compare(&scenario, &runs);
//! assert_eq!(comparison.variants.len(), 2);
//! assert!(comparison.rows.iter().any(|row| row.unit == Unit::Ns));
//! # Ok::<(), stealtime_lab::LoadError>(())
//! ```

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

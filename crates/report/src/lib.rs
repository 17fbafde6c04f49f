//! Answers to terminal tables, HTML reports, JSON, CSV and rows; events to Perfetto.
//!
//! Names of tasks and guests in a trace may hold any character: each form escapes them in its own way
//! ([`escape`]).
//!
//! ```
//! use serde_json::json as value;
//! use stealtime_analysis::{Analysis, Options};
//! use stealtime_events::{NameId, Names};
//! use stealtime_report::{Key, csv, difference, html, json, perfetto, rows};
//!
//! struct NoNames;
//! impl Names for NoNames {
//!     fn name(&self, _: NameId) -> &str {
//!         ""
//!     }
//! }
//!
//! let answers = Analysis::new(Options::default()).finish(&NoNames);
//! let mut text = Vec::new();
//! json::write(&answers, &[Key::Time], None, &[], &mut text)?;
//! csv::write(&answers, Key::Time, &mut text)?;
//! assert_eq!(rows::columns(Key::Time)[0].name, "vm");
//! assert!(rows::cells(&answers, Key::Time).is_empty());
//! let mut page = html::Page::new("analyze", "A host").made_by("stealtime analyze");
//! page.fact("no events");
//! page.write(&mut text)?;
//! let exporter = perfetto::Exporter::new(&mut text, &answers, perfetto::Options::default())?;
//! assert_eq!(exporter.finish()?.flows, 0);
//! // What differs between two snapshots of hosts.
//! let changed = difference::settings(&value!({}), &value!({}));
//! assert!(changed.is_empty());
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod csv;
pub mod difference;
pub mod escape;
pub mod html;
pub mod json;
mod key;
pub mod perfetto;
pub mod rows;
pub mod terminal;
mod units;
mod whatif_text;

pub use units::{count, counted, wrap};

pub use key::Key;
pub use terminal::time::vcpu_number;

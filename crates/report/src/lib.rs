//! Answers to terminal tables, HTML reports, JSON, CSV and rows; events to Perfetto.
//!
//! Names of tasks and guests in a trace may hold any character: each form escapes them in its own way
//! ([`escape`]).

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

pub use units::{count, wrap};

pub use key::Key;
pub use terminal::time::vcpu_number;

//! Answers to terminal tables, HTML reports, JSON and CSV; events to Perfetto.
//!
//! Everything that comes out of a trace (names of tasks and guests) may hold anything: each form
//! escapes it in its own way ([`escape`]).

pub mod csv;
pub mod escape;
pub mod html;
pub mod json;
mod key;
pub mod perfetto;
pub mod terminal;
mod units;
mod whatif_text;

pub use units::wrap;

pub use key::Key;
pub use terminal::time::vcpu_number;

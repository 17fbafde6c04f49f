//! Results as one HTML file: charts that answer the question, then the tables, then what it was made
//! from.
//!
//! A page needs no network and can reach none: its policy allows the page's own two scripts and
//! nothing else. Text is escaped where it is put in, whoever chose it. The same results give the
//! same bytes.

pub mod analyze;
mod chart;
mod decision;
pub mod difference;
mod effect;
pub mod fit;
mod overview;
mod page;
pub mod rebalance;
pub mod simulate;
pub mod sweep;
mod table;
mod time;
pub mod whatif;

pub use chart::{Axis, Chart, Color, Dots, Interval, Mark, Part, Range, Scale};
pub use page::{Lead, Page, Section, Step};
pub use table::{Cell, Table};

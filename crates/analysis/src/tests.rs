//! Tests of the analysis as a whole, on small traces made by hand.

mod build;
mod exits;
mod findings;
mod findings_edges;
mod grouping;
mod host;
mod hostile;
mod latencies;
mod losses;
mod polls;
mod split;
mod tables;
mod time;
mod waiting;

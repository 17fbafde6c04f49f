//! Tests of the analysis as a whole, on small traces made by hand.

mod build;
mod exits;
mod findings;
mod grouping;
mod host;
mod hostile;
mod latencies;
mod losses;
mod split;
mod waiting;

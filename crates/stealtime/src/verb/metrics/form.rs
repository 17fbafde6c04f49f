//! What a form of the exposition writes.

use std::fmt;

use prometheus_client::encoding::EncodeGaugeValue;
use stealtime_collector::Buckets;

use super::totals::Labels;

/// Begin of the names of all metrics.
pub(super) const PREFIX: &str = "stealtime";

/// Values of a metric, by their labels.
pub(super) type Values<N> = Vec<(Labels, N)>;

/// A value of a gauge.
pub(super) trait Number: EncodeGaugeValue + Copy {
    fn float(self) -> f64;
}

impl Number for i32 {
    fn float(self) -> f64 {
        self.into()
    }
}

impl Number for u64 {
    fn float(self) -> f64 {
        self as f64
    }
}

impl Number for f64 {
    fn float(self) -> f64 {
        self
    }
}

/// A histogram of times in seconds.
#[derive(Debug, Clone)]
pub(super) struct Distribution {
    pub(super) sum: f64,
    /// Ends of classes, ascending to infinity, and the numbers of values in each.
    pub(super) classes: Vec<(f64, u64)>,
    /// The same values in finer buckets, where they are known.
    pub(super) buckets: Option<Buckets>,
}

impl Distribution {
    /// How many values there are.
    pub(super) fn count(&self) -> u64 {
        self.classes.iter().map(|(_, count)| count).sum()
    }
}

/// A form of the exposition. Names lack [`PREFIX`] and what their kind adds.
pub(super) trait Form {
    fn counters(&mut self, name: &str, help: &str, values: Values<u64>) -> fmt::Result;

    /// Counters of times in ns, which become seconds.
    fn times(&mut self, name: &str, help: &str, values: Values<u64>) -> fmt::Result;

    fn gauges<N: Number>(&mut self, name: &str, help: &str, values: Values<N>) -> fmt::Result;

    /// Histograms of seconds.
    fn histograms(&mut self, name: &str, help: &str, values: Values<Distribution>) -> fmt::Result;
}

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

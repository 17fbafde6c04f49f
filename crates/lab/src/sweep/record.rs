//! What the journal holds.

use std::fmt;

use serde::de::{IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

use crate::metric::{Better, Metric, Subject, Unit};
use crate::run::RunError;

/// A metric without its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MetricKind {
    /// The host, VM or task that it is measured on.
    pub of: Subject,
    /// Its name.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// The direction that is better.
    pub better: Better,
}

/// The metrics of a run, in its order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MetricList(pub(super) Vec<MetricKind>);

impl MetricList {
    pub(super) fn of(metrics: &[Metric]) -> Self {
        let kinds = metrics.iter().map(|metric| MetricKind {
            of: metric.of.clone(),
            name: metric.name.clone(),
            unit: metric.unit,
            better: metric.better,
        });
        Self(kinds.collect())
    }

    /// Metrics of this list.
    pub(super) fn with(&self, values: &[f64]) -> Vec<Metric> {
        let metrics = self.0.iter().zip(values).map(|(kind, value)| Metric {
            name: kind.name.clone(),
            of: kind.of.clone(),
            unit: kind.unit,
            better: kind.better,
            value: *value,
        });
        metrics.collect()
    }

    /// Whether these metrics have this list.
    pub(super) fn matches(&self, metrics: &[Metric]) -> bool {
        let is_alike = |(kind, metric): (&MetricKind, &Metric)| {
            kind.name == metric.name
                && kind.of == metric.of
                && kind.unit == metric.unit
                && kind.better == metric.better
        };
        self.0.len() == metrics.len() && self.0.iter().zip(metrics).all(is_alike)
    }
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Ended {
    /// With metrics.
    Done {
        /// The number of its list of metrics in the journal.
        list: u32,
        /// Events that the simulator processed.
        events: u64,
        /// The values of these metrics.
        #[serde(with = "bits")]
        values: Vec<f64>,
    },
    /// Without.
    Failed(RunError),
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Record {
    /// A list of metrics; lists are numbered in the order of the file.
    Metrics(MetricList),
    /// A run and how it ended.
    Run(u64, Ended),
}

/// A record without values: their number is what a journal checks, and they take most of the time to read.
#[derive(Debug, Deserialize)]
pub(super) enum Brief {
    Metrics(MetricList),
    Run(u64, BriefEnded),
}

/// How a run ended, without values.
#[derive(Debug, Deserialize)]
pub(super) enum BriefEnded {
    Done { list: u32, values: Count },
    Failed(IgnoredAny),
}

/// The length of a list.
#[derive(Debug)]
pub(super) struct Count(pub(super) usize);

impl<'d> Deserialize<'d> for Count {
    fn deserialize<D: Deserializer<'d>>(text: D) -> Result<Self, D::Error> {
        struct Counter;
        impl<'d> Visitor<'d> for Counter {
            type Value = Count;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'d>>(self, mut list: A) -> Result<Count, A::Error> {
                let mut count = 0;
                while list.next_element::<IgnoredAny>()?.is_some() {
                    count += 1;
                }
                Ok(Count(count))
            }
        }
        text.deserialize_seq(Counter)
    }
}

impl From<Record> for Brief {
    fn from(record: Record) -> Self {
        match record {
            Record::Metrics(list) => Self::Metrics(list),
            Record::Run(run, Ended::Failed(_)) => Self::Run(run, BriefEnded::Failed(IgnoredAny)),
            Record::Run(run, Ended::Done { list, values, .. }) => {
                let values = Count(values.len());
                Self::Run(run, BriefEnded::Done { list, values })
            }
        }
    }
}

/// Floats by their bits: JSON has neither NaN nor infinities, and results are equal to the last bit.
mod bits {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(
        values: &[f64],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(values.iter().map(|value| value.to_bits()))
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(text: D) -> Result<Vec<f64>, D::Error> {
        let bits = Vec::<u64>::deserialize(text)?;
        Ok(bits.into_iter().map(f64::from_bits).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back(record: &Record) {
        let bytes = serde_json::to_vec(record).expect("JSON");
        // By bytes: not a number is not equal to itself.
        let again: Record = serde_json::from_slice(&bytes).expect("a record");
        let second = serde_json::to_vec(&again).expect("JSON");
        assert_eq!(bytes, second, "{record:?}");
        assert!(serde_json::from_slice::<Record>(&bytes[..bytes.len() - 1]).is_err());
    }

    #[test]
    fn records_come_back() {
        let kind = |of, name: &str, unit, better| MetricKind {
            of,
            name: name.into(),
            unit,
            better,
        };
        comes_back(&Record::Metrics(MetricList(vec![
            kind(Subject::Host, "exits HLT", Unit::PerSecond, Better::Neither),
            kind(
                Subject::Vm("web".into()),
                "latency p99",
                Unit::Ns,
                Better::Lower,
            ),
            kind(Subject::Task("é".into()), "", Unit::Percent, Better::Higher),
        ])));
        let values = vec![
            0.0,
            -0.0,
            1.0 / 3.0,
            f64::NAN,
            f64::INFINITY,
            f64::MIN_POSITIVE,
        ];
        comes_back(&Record::Run(
            7,
            Ended::Done {
                list: 3,
                events: u64::MAX,
                values,
            },
        ));
        comes_back(&Record::Run(
            0,
            Ended::Failed(RunError::Failed("deadlock".into())),
        ));
        comes_back(&Record::Run(
            u64::MAX,
            Ended::Failed(RunError::Panicked("ü".into())),
        ));
    }
}

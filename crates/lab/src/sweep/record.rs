//! What the journal holds.

use std::io;

use serde::{Deserialize, Serialize};

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
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// With metrics.
    Done {
        /// The number of its list of metrics in the journal.
        list: u32,
        /// Events that the simulator processed.
        events: u64,
        /// The values of these metrics.
        values: Vec<f64>,
    },
    /// Without.
    Failed(RunError),
}

/// Bytes before each record: its length and its CRC-32, little-endian.
pub(super) const HEAD: usize = 8;

const METRICS: u8 = b'm';
const DONE: u8 = b'd';
const FAILED: u8 = b'f';

/// A record of the journal in its bytes: one for its kind, then the fields, little-endian. To parse them as
/// text takes longer than all else in a merge.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Record<'b> {
    /// A [`MetricList`] as JSON. Lists are numbered in the order of the file.
    Metrics(&'b [u8]),
    /// A run with metrics. Values keep all bits, also those of NaN.
    Done {
        run: u64,
        list: u32,
        events: u64,
        values: &'b [[u8; 8]],
    },
    /// A run without metrics: its [`RunError`] as JSON.
    Failed { run: u64, error: &'b [u8] },
}

impl<'b> Record<'b> {
    /// Reads the bytes of a record; `None`: they are no record.
    pub(super) fn read(bytes: &'b [u8]) -> Option<Self> {
        let (kind, bytes) = bytes.split_first()?;
        if *kind == METRICS {
            return Some(Self::Metrics(bytes));
        }
        let (run, bytes) = bytes.split_first_chunk()?;
        let run = u64::from_le_bytes(*run);
        match *kind {
            DONE => {
                let (list, bytes) = bytes.split_first_chunk()?;
                let (events, bytes) = bytes.split_first_chunk()?;
                let (values, rest) = bytes.as_chunks();
                rest.is_empty().then_some(Self::Done {
                    run,
                    list: u32::from_le_bytes(*list),
                    events: u64::from_le_bytes(*events),
                    values,
                })
            }
            FAILED => Some(Self::Failed { run, error: bytes }),
            _ => None,
        }
    }

    /// The run that it is of, if it is a run's.
    pub(super) const fn run(&self) -> Option<u64> {
        match self {
            Self::Metrics(_) => None,
            Self::Done { run, .. } | Self::Failed { run, .. } => Some(*run),
        }
    }

    /// The same with the numbers that lists of metrics have in another journal; `None`: its list has none.
    pub(super) fn renumbered(self, numbers: &[u32]) -> Option<Self> {
        match self {
            Self::Done {
                run,
                list,
                events,
                values,
            } => Some(Self::Done {
                run,
                list: *numbers.get(list as usize)?,
                events,
                values,
            }),
            record => Some(record),
        }
    }

    /// Its bytes, with a head.
    ///
    /// # Errors
    ///
    /// It is longer than a head can say.
    pub(super) fn framed(self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; HEAD];
        match self {
            Self::Metrics(list) => {
                bytes.push(METRICS);
                bytes.extend_from_slice(list);
            }
            Self::Done {
                run,
                list,
                events,
                values,
            } => {
                bytes.push(DONE);
                bytes.extend_from_slice(&run.to_le_bytes());
                bytes.extend_from_slice(&list.to_le_bytes());
                bytes.extend_from_slice(&events.to_le_bytes());
                bytes.extend_from_slice(values.as_flattened());
            }
            Self::Failed { run, error } => {
                bytes.push(FAILED);
                bytes.extend_from_slice(&run.to_le_bytes());
                bytes.extend_from_slice(error);
            }
        }
        let size = u32::try_from(body(&bytes).len()).map_err(io::Error::other)?;
        let sum = crc32fast::hash(body(&bytes));
        let head = size.to_le_bytes().into_iter().chain(sum.to_le_bytes());
        for (byte, value) in bytes.iter_mut().zip(head) {
            *byte = value;
        }
        Ok(bytes)
    }
}

/// A record without its head.
pub(super) fn body(bytes: &[u8]) -> &[u8] {
    bytes.get(HEAD..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back() {
        let numbers = [0.0, -0.0, 1.0 / 3.0, f64::NAN, f64::NEG_INFINITY];
        let values = numbers.map(f64::to_le_bytes);
        let done = Record::Done {
            run: 7,
            list: 3,
            events: u64::MAX,
            values: &values,
        };
        let failed = Record::Failed {
            run: u64::MAX,
            error: b"",
        };
        for record in [Record::Metrics(b"[]"), done, failed] {
            let bytes = record.framed().expect("short");
            assert_eq!(Record::read(body(&bytes)), Some(record));
        }
        let bytes = done.framed().expect("short");
        for length in 0..body(&bytes).len() {
            // A list of values may end after each of them: the sum of the record tells.
            let is_whole = length >= 21 && (length - 21).is_multiple_of(8);
            let read = Record::read(&body(&bytes)[..length]);
            assert_eq!(read.is_some(), is_whole, "{length}");
        }
        assert_eq!(Record::read(b"x"), None);
    }
}

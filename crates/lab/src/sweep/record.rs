//! What the journal holds, as bytes.

use serde::Serialize;

use crate::metric::{Better, Metric, Of, Unit};
use crate::run::RunError;

/// A metric without its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct MetricKind {
    /// Of whom.
    pub of: Of,
    /// Its name.
    pub name: String,
    /// What it counts.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
}

/// The metrics of a run, in its order.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Kinds(pub(super) Vec<MetricKind>);

impl Kinds {
    pub(super) fn of(metrics: &[Metric]) -> Self {
        let kinds = metrics.iter().map(|metric| MetricKind {
            of: metric.of.clone(),
            name: metric.name.clone(),
            unit: metric.unit,
            better: metric.better,
        });
        Self(kinds.collect())
    }

    /// Whether a run with these metrics has this list.
    pub(super) fn are_of(&self, metrics: &[Metric]) -> bool {
        let same = |(kind, metric): (&MetricKind, &Metric)| {
            kind.name == metric.name
                && kind.of == metric.of
                && kind.unit == metric.unit
                && kind.better == metric.better
        };
        self.0.len() == metrics.len() && self.0.iter().zip(metrics).all(same)
    }
}

/// How a run has ended.
#[derive(Clone, Debug, PartialEq)]
pub enum Ended {
    /// With metrics.
    Done {
        /// The number of its list of metrics in the journal.
        list: u32,
        /// Events that the simulator worked off.
        events: u64,
        /// The values of these metrics.
        values: Vec<f64>,
    },
    /// Without.
    Failed(RunError),
}

/// A record of the journal.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Record {
    /// A list of metrics; they are numbered in the order of the file.
    Kinds(Kinds),
    /// A run and how it ended.
    Run(u64, Ended),
}

const KINDS: u8 = 1;
const DONE: u8 = 2;
const FAILED: u8 = 3;
const PANICKED: u8 = 4;

const UNITS: [Unit; 4] = [Unit::Count, Unit::PerSecond, Unit::Ns, Unit::Percent];
const BETTER: [Better; 3] = [Better::Lower, Better::Higher, Better::Neither];

/// The place of a value in a table of all.
fn number<T: PartialEq>(table: &[T], value: &T) -> u8 {
    let at = table.iter().position(|other| other == value);
    at.and_then(|at| u8::try_from(at).ok()).unwrap_or(u8::MAX)
}

fn text(text: &str, bytes: &mut Vec<u8>) {
    let size = u32::try_from(text.len()).unwrap_or(u32::MAX);
    bytes.extend(size.to_le_bytes());
    bytes.extend(text.as_bytes());
}

impl Record {
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Kinds(kinds) => {
                bytes.push(KINDS);
                for kind in &kinds.0 {
                    let (of, name) = match &kind.of {
                        Of::Host => (0, ""),
                        Of::Vm(name) => (1, name.as_str()),
                        Of::Task(name) => (2, name.as_str()),
                    };
                    bytes.extend([
                        of,
                        number(&UNITS, &kind.unit),
                        number(&BETTER, &kind.better),
                    ]);
                    text(name, bytes);
                    text(&kind.name, bytes);
                }
            }
            Self::Run(run, ended) => {
                let (tag, why) = match ended {
                    Ended::Done { .. } => (DONE, String::new()),
                    Ended::Failed(RunError::Panicked(why)) => (PANICKED, why.clone()),
                    Ended::Failed(RunError::Failed(why)) => (FAILED, why.clone()),
                    Ended::Failed(RunError::Stopped) => (FAILED, RunError::Stopped.to_string()),
                };
                bytes.push(tag);
                bytes.extend(run.to_le_bytes());
                match ended {
                    Ended::Done {
                        list,
                        events,
                        values,
                    } => {
                        bytes.extend(list.to_le_bytes());
                        bytes.extend(events.to_le_bytes());
                        for value in values {
                            bytes.extend(value.to_bits().to_le_bytes());
                        }
                    }
                    Ended::Failed(_) => text(&why, bytes),
                }
            }
        }
    }

    /// `None` for bytes that are no record.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        let tag = reader.byte()?;
        if tag == KINDS {
            let mut kinds = Vec::new();
            while !reader.0.is_empty() {
                let (of, unit, better) = (reader.byte()?, reader.byte()?, reader.byte()?);
                let name = reader.text()?;
                kinds.push(MetricKind {
                    of: match of {
                        0 => Of::Host,
                        1 => Of::Vm(name),
                        2 => Of::Task(name),
                        _ => return None,
                    },
                    name: reader.text()?,
                    unit: *UNITS.get(usize::from(unit))?,
                    better: *BETTER.get(usize::from(better))?,
                });
            }
            return Some(Self::Kinds(Kinds(kinds)));
        }
        let run = u64::from_le_bytes(reader.array()?);
        let ended = match tag {
            DONE => Ended::Done {
                list: u32::from_le_bytes(reader.array()?),
                events: u64::from_le_bytes(reader.array()?),
                values: reader.numbers()?,
            },
            FAILED => Ended::Failed(RunError::Failed(reader.text()?)),
            PANICKED => Ended::Failed(RunError::Panicked(reader.text()?)),
            _ => return None,
        };
        reader.0.is_empty().then_some(Self::Run(run, ended))
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.array().map(|[byte]: [u8; 1]| byte)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*array)
    }

    fn text(&mut self) -> Option<String> {
        let size = u32::from_le_bytes(self.array()?) as usize;
        let (text, rest) = self.0.split_at_checked(size)?;
        self.0 = rest;
        String::from_utf8(text.to_vec()).ok()
    }

    /// All that is left.
    fn numbers(&mut self) -> Option<Vec<f64>> {
        let (numbers, []) = self.0.as_chunks::<8>() else {
            return None;
        };
        self.0 = &[];
        let numbers = numbers
            .iter()
            .map(|bytes| f64::from_bits(u64::from_le_bytes(*bytes)));
        Some(numbers.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn comes_back(record: &Record) {
        let mut bytes = Vec::new();
        record.write(&mut bytes);
        // By bytes: not a number is not equal to itself.
        let again = Record::read(&bytes).expect("a record");
        let mut second = Vec::new();
        again.write(&mut second);
        assert_eq!(bytes, second, "{record:?}");
        assert!(bytes.len() < 2 || Record::read(&bytes[..bytes.len() - 1]).is_none());
    }

    #[test]
    fn records_come_back() {
        let kind = |of, name: &str, unit, better| MetricKind {
            of,
            name: name.into(),
            unit,
            better,
        };
        comes_back(&Record::Kinds(Kinds(vec![
            kind(Of::Host, "exits HLT", Unit::PerSecond, Better::Neither),
            kind(Of::Vm("web".into()), "latency p99", Unit::Ns, Better::Lower),
            kind(Of::Task("é".into()), "", Unit::Percent, Better::Higher),
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

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = Record::read(&bytes);
        }
    }
}

//! The tables of a fleet, and the rows that one recording has in each.

use stealtime_analysis::Answers;
use stealtime_report::{Key, rows};
use stealtime_results::{Cell, CellKind, Column};

/// A table of a fleet: a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Table {
    /// A row for each recording: its host, its source, how its analysis ended.
    Recordings,
    /// Recordings that could not be read, or not to their end.
    Errors,
    /// A table of `analyze`.
    Answers(Key),
    /// Distributions of exits, waits and latencies, which add up over recordings.
    Histograms,
}

impl Table {
    /// Every table, in the order of their files.
    pub fn all() -> impl Iterator<Item = Self> {
        let keys = Key::ALL.into_iter().map(Self::Answers);
        [Self::Recordings, Self::Errors]
            .into_iter()
            .chain(keys)
            .chain([Self::Histograms])
    }

    /// The name of its file, before the dot: that of `--key`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Recordings => "recordings",
            Self::Errors => "errors",
            Self::Answers(key) => key.name(),
            Self::Histograms => "histograms",
        }
    }

    /// Its columns. The first two of every table are the host and the recording.
    #[must_use]
    pub fn columns(self) -> Vec<Column> {
        let text = |name: &str| Column {
            name: name.to_owned(),
            kind: CellKind::Text,
        };
        let mut columns = vec![text("host"), text("recording")];
        match self {
            Self::Recordings => {
                columns.push(text("status"));
                let source = rows::source_columns().into_iter();
                columns.extend(source.filter(|column| column.name != "path"));
                columns.push(text("notes"));
            }
            Self::Errors => columns.extend([text("status"), text("error")]),
            Self::Answers(key) => columns.extend(rows::columns(key)),
            Self::Histograms => columns.extend(rows::histogram_columns()),
        }
        columns
    }
}

/// The rows of a recording in each table, without host and recording.
#[derive(Clone, Debug, Default)]
pub struct RecordingTables(Vec<(Table, Vec<Vec<Cell>>)>);

impl RecordingTables {
    /// The rows of these answers.
    #[must_use]
    pub fn new(answers: &Answers) -> Self {
        let rows = Table::all().filter_map(|table| {
            let rows = match table {
                Table::Answers(key) => rows::cells(answers, key),
                Table::Histograms => rows::histogram_cells(answers),
                Table::Recordings => {
                    let columns = rows::source_columns();
                    let cells = columns.iter().zip(rows::source_cells(answers));
                    let cells = cells.filter(|(column, _)| column.name != "path");
                    let notes = Cell::Text(answers.source.notes.join("\n"));
                    vec![cells.map(|(_, cell)| cell).chain([notes]).collect()]
                }
                Table::Errors => return None,
            };
            Some((table, rows))
        });
        Self(rows.collect())
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Table, &[Vec<Cell>])> {
        let tables = self.0.iter();
        tables.map(|(table, rows)| (*table, rows.as_slice()))
    }
}

//! What one recording leaves in the folder: a head, then the rows of each table.
//!
//! The head is a line of JSON with the place of each table behind it, so that a table is read without the
//! others. Rows are JSON lists.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};
use stealtime_results::{Cell, CellKind};

use crate::FleetError;
use crate::fleet::{Identity, Outcome};
use crate::tables::Table;

/// The head of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Head {
    pub(crate) identity: Identity,
    pub(crate) host: Option<String>,
    /// `done`, `partial` or `failed`.
    pub(crate) status: String,
    pub(crate) error: Option<String>,
    tables: Vec<Section>,
}

/// The rows of a table in a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Section {
    table: String,
    rows: u64,
    /// Their length in the file.
    bytes: u64,
}

/// Writes a part.
pub(crate) fn write(
    identity: &Identity,
    outcome: &Outcome,
    writer: &mut impl Write,
) -> io::Result<()> {
    let mut tables = Vec::new();
    let mut body = Vec::new();
    if let Some(rows) = &outcome.tables {
        for (table, rows) in rows.iter() {
            let begin = body.len();
            serde_json::to_writer(&mut body, rows)?;
            tables.push(Section {
                table: table.name().to_owned(),
                rows: rows.len() as u64,
                bytes: (body.len() - begin) as u64,
            });
        }
    }
    let head = Head {
        identity: identity.clone(),
        host: outcome.host.clone(),
        status: outcome.status().to_owned(),
        error: outcome.error.clone(),
        tables,
    };
    serde_json::to_writer(&mut *writer, &head)?;
    writer.write_all(b"\n")?;
    writer.write_all(&body)
}

/// A part that is there.
pub(crate) struct Part<'p> {
    path: &'p Path,
    file: BufReader<File>,
    pub(crate) head: Head,
    /// Where the rows begin.
    body: u64,
}

impl<'p> Part<'p> {
    /// Opens it.
    pub(crate) fn open(path: &'p Path) -> Result<Self, FleetError> {
        let failed = |source| FleetError::file(path, source);
        let mut file = BufReader::new(File::open(path).map_err(failed)?);
        let mut line = Vec::new();
        file.read_until(b'\n', &mut line).map_err(failed)?;
        let head = serde_json::from_slice(&line);
        Ok(Self {
            path,
            file,
            head: head.map_err(|error| FleetError::damaged(path, error))?,
            body: line.len() as u64,
        })
    }

    /// How many rows of a table it has.
    pub(crate) fn count(&self, table: Table) -> u64 {
        let mut tables = self.head.tables.iter();
        let section = tables.find(|section| section.table == table.name());
        section.map_or(0, |section| section.rows)
    }

    /// The rows of a table, none if the recording could not be read.
    pub(crate) fn rows(&mut self, table: Table) -> Result<Vec<Vec<Cell>>, FleetError> {
        let mut begin = self.body;
        let mut tables = self.head.tables.iter();
        let length = tables.find_map(|section| {
            let is_it = section.table == table.name();
            begin = begin.saturating_add(if is_it { 0 } else { section.bytes });
            is_it.then_some(section.bytes)
        });
        let Some(length) = length else {
            return Ok(Vec::new());
        };
        let failed = |source| FleetError::file(self.path, source);
        self.file.seek(SeekFrom::Start(begin)).map_err(failed)?;
        // At once: a parser that reads byte by byte takes several times as long.
        let mut bytes = Vec::new();
        let section = (&mut self.file).take(length).read_to_end(&mut bytes);
        section.map_err(failed)?;
        let rows: Vec<Vec<Cell>> = serde_json::from_slice(&bytes)
            .map_err(|error| FleetError::damaged(self.path, error))?;
        let columns = table.columns();
        // Host and recording come before them.
        let kinds: Vec<CellKind> = columns.iter().map(|column| column.kind).collect();
        let kinds = kinds.get(2 + usize::from(table == Table::Recordings)..);
        let kinds = kinds.unwrap_or_default();
        let row = |row: Vec<Cell>| match row.len() == kinds.len() {
            true => {
                let cells = row.into_iter().zip(kinds);
                Ok(cells.map(|(cell, kind)| typed(cell, *kind)).collect())
            }
            false => Err(FleetError::damaged(
                self.path,
                format!("a row of {} with {} cells", table.name(), row.len()),
            )),
        };
        rows.into_iter().map(row).collect()
    }
}

/// The cell as one of a column of this type: JSON has one type for numbers.
fn typed(cell: Cell, kind: CellKind) -> Cell {
    match (cell, kind) {
        (Cell::Integer(number), CellKind::Number) => Cell::Number(number as f64),
        (Cell::Number(_), CellKind::Integer | CellKind::Text | CellKind::Switch) => Cell::Null,
        (cell, _) => cell,
    }
}

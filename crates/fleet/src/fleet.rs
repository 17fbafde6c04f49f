//! The folder of a fleet.

use std::borrow::Cow;
use std::fs;
use std::io::{self, Write as _};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::thread;

use serde::{Deserialize, Serialize};
use stealtime_report::escape;
use stealtime_results::{Cell, Encoded, Folder, Form, Note, ROW_GROUP};

use crate::FleetError;
use crate::ahead::Ahead;
use crate::part::{self, Part};
use crate::tables::{RecordingTables, Table};

/// What a fleet is of.
const MANIFEST: &str = "fleet.json";
/// Where its parts are.
const PARTS: &str = "parts";
/// Rows of a piece of a table, at least. Tests have few rows.
const PIECE: u64 = if cfg!(test) { 2 } else { ROW_GROUP as u64 };

/// Which recording a part is of. A file that has changed has another identity.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The file as the user names it.
    recording: String,
    /// Its length, in bytes.
    bytes: u64,
    /// When it was last changed, in ns since 1970.
    modified_ns: i64,
}

impl Identity {
    /// That of a file as it is now.
    ///
    /// # Errors
    /// The file is not there, or is none.
    pub fn of(path: &Path) -> io::Result<Self> {
        let meta = path.metadata()?;
        if meta.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        Ok(Self {
            bytes: meta.len(),
            modified_ns: meta
                .mtime()
                .saturating_mul(1_000_000_000)
                .saturating_add(meta.mtime_nsec()),
            ..Self::without_file(path)
        })
    }

    /// That of a file that is not there.
    #[must_use]
    pub fn without_file(path: &Path) -> Self {
        Self {
            recording: path.to_string_lossy().into_owned(),
            bytes: 0,
            modified_ns: 0,
        }
    }
}

/// What came of a recording.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// The host's name, if the recording has it.
    pub host: Option<String>,
    /// Its rows; `None`: it could not be read at all.
    pub tables: Option<RecordingTables>,
    /// Why it could not be read, or not to its end.
    pub error: Option<String>,
}

impl Outcome {
    pub(crate) const fn status(&self) -> &'static str {
        match (&self.tables, &self.error) {
            (Some(_), None) => "done",
            (Some(_), Some(_)) => "partial",
            (None, _) => "failed",
        }
    }
}

/// What the parts of a folder depend on, apart from the recordings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Manifest {
    version: String,
    /// Options that select a part of each recording, as on the command line.
    options: String,
}

/// A folder with the parts of recordings.
#[derive(Debug)]
pub struct Fleet {
    folder: Folder,
    parts: Folder,
    options: String,
}

/// A table's file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Written {
    /// The table.
    pub table: &'static str,
    /// The file.
    pub path: PathBuf,
    /// Its rows.
    pub rows: u64,
}

/// Neighbouring recordings. Their rows are one row group of a table.
#[derive(Clone, Debug)]
struct Piece {
    table: Table,
    recordings: Range<usize>,
    rows: u64,
}

impl Fleet {
    /// Makes the folder, or opens that of an analysis with the same options. `restart`: removes what it has.
    ///
    /// # Errors
    /// [`FleetError`].
    pub fn open(path: &Path, options: &str, restart: bool) -> Result<Self, FleetError> {
        let failed = |source| FleetError::file(path, source);
        fs::create_dir_all(path).map_err(failed)?;
        let folder = Folder::lock(path)?;
        let manifest = Manifest {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            options: options.to_owned(),
        };
        let present = read_manifest(&folder)?;
        match &present {
            Some(present) if *present == manifest && !restart => {}
            Some(_) if restart => clear(&folder)?,
            Some(present) => {
                return Err(FleetError::Another {
                    path: path.to_owned(),
                    difference: manifest.difference(present),
                });
            }
            // What a process that was killed while it began leaves behind is nothing.
            None if folder.is_empty_but(&[MANIFEST])? => {}
            None => {
                return Err(FleetError::NotAFleet {
                    path: path.to_owned(),
                });
            }
        }
        let text = serde_json::to_string_pretty(&manifest).map_err(|error| failed(error.into()))?;
        folder.whole(MANIFEST, |writer| writeln!(writer, "{text}"))?;
        let parts = path.join(PARTS);
        fs::create_dir_all(&parts).map_err(|source| FleetError::file(&parts, source))?;
        Ok(Self {
            parts: Folder::lock(&parts)?,
            folder,
            options: options.to_owned(),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The recordings without a part, or with one of another state of the file. Recordings that failed are
    /// tried again.
    ///
    /// # Errors
    /// A part cannot be read.
    pub fn missing(&self, recordings: &[PathBuf]) -> Result<Vec<PathBuf>, FleetError> {
        let mut missing = Vec::new();
        for path in recordings {
            let part = self.part_path(path);
            let is_there = match Part::open(&part) {
                Ok(part) => {
                    part.head.status != "failed"
                        && Identity::of(path).is_ok_and(|current| current == part.head.identity)
                }
                Err(FleetError::File { source, .. })
                    if source.kind() == io::ErrorKind::NotFound =>
                {
                    false
                }
                // It is written anew.
                Err(FleetError::Damaged { .. }) => false,
                Err(error) => return Err(error),
            };
            if !is_there {
                missing.push(path.clone());
            }
        }
        Ok(missing)
    }

    /// Keeps what came of a recording. `identity` is the file's before the reading. Rows of a file that
    /// has changed since are of no state that it ever had, and are dropped.
    ///
    /// # Errors
    /// The part cannot be written.
    pub fn keep(
        &self,
        path: &Path,
        identity: io::Result<Identity>,
        outcome: Outcome,
    ) -> Result<(), FleetError> {
        let identity = identity.unwrap_or_else(|_| Identity::without_file(path));
        let has_changed =
            outcome.tables.is_some() && !Identity::of(path).is_ok_and(|now| now == identity);
        let outcome = match has_changed {
            true => Outcome {
                error: Some("the file changed while it was read".to_owned()),
                tables: None,
                ..outcome
            },
            false => outcome,
        };
        self.parts.whole(&part_name(path), |writer| {
            part::write(&identity, &outcome, writer)
        })?;
        Ok(())
    }

    /// How many of these recordings failed, and how many could not be read to their end.
    ///
    /// # Errors
    /// A part is missing or damaged.
    pub fn troubles(&self, recordings: &[PathBuf]) -> Result<(usize, usize), FleetError> {
        let (mut failed, mut partial) = (0, 0);
        for path in recordings {
            let part = self.part_path(path);
            match Part::open(&part)?.head.status.as_str() {
                "failed" => failed += 1,
                "partial" => partial += 1,
                _ => {}
            }
        }
        Ok((failed, partial))
    }

    /// Writes a file for each table, of all these recordings in their order, on so many threads.
    ///
    /// # Errors
    /// A part is missing or damaged, or a file cannot be written. A file that was there stays as it was.
    pub fn write(
        &self,
        recordings: &[PathBuf],
        tables: &[Table],
        form: Form,
        jobs: NonZeroUsize,
    ) -> Result<Vec<Written>, FleetError> {
        let pieces = self.pieces(recordings, tables)?;
        let all_pieces: Vec<&Piece> = pieces.iter().flatten().collect();
        let encode = |piece: &&Piece| self.encode(recordings, piece, form);
        let ahead = Ahead::new(&all_pieces, &encode);
        thread::scope(|scope| {
            let _stop = ahead.stop_at_end();
            // Without further threads, this one does all of it.
            for _ in 1..jobs.get().min(all_pieces.len()) {
                let started = thread::Builder::new().spawn_scoped(scope, || ahead.help());
                if started.is_err() {
                    break;
                }
            }
            let mut encoded = (0..).map(|index| ahead.take(index));
            let written = tables.iter().zip(&pieces);
            let written = written.map(|(table, pieces)| {
                let mut encoded = encoded.by_ref().take(pieces.len());
                self.write_table(*table, &mut encoded, form)
            });
            written.collect()
        })
    }

    /// Cuts each table into pieces, between recordings: one has at least the rows of a row group, apart from
    /// the last. So no piece depends on the number of threads.
    fn pieces(
        &self,
        recordings: &[PathBuf],
        tables: &[Table],
    ) -> Result<Vec<Vec<Piece>>, FleetError> {
        let mut pieces: Vec<Vec<Piece>> = vec![Vec::new(); tables.len()];
        for (index, path) in recordings.iter().enumerate() {
            let part_path = self.part_path(path);
            let part = Part::open(&part_path)?;
            for (table, pieces) in tables.iter().zip(&mut pieces) {
                match pieces.last_mut().filter(|piece| piece.rows < PIECE) {
                    Some(piece) => {
                        piece.recordings.end = index + 1;
                        piece.rows += part.count(*table);
                    }
                    None => pieces.push(Piece {
                        table: *table,
                        recordings: index..index + 1,
                        rows: part.count(*table),
                    }),
                }
            }
        }
        Ok(pieces)
    }

    /// Encodes the rows of a piece.
    fn encode(
        &self,
        recordings: &[PathBuf],
        piece: &Piece,
        form: Form,
    ) -> Result<Encoded, FleetError> {
        let mut rows = Vec::new();
        for path in recordings.get(piece.recordings.clone()).unwrap_or_default() {
            rows.extend(self.rows(path, piece.table)?);
        }
        if form == Form::Csv {
            rows.iter_mut().flatten().for_each(defuse);
        }
        let encoded = form.encode(&piece.table.columns(), &rows, NonZeroUsize::MIN);
        encoded.map_err(|source| FleetError::file(self.path(), source))
    }

    fn write_table(
        &self,
        table: Table,
        encoded: &mut dyn Iterator<Item = Result<Encoded, FleetError>>,
        form: Form,
    ) -> Result<Written, FleetError> {
        let name = format!("{}.{}", table.name(), form.extension());
        let columns = table.columns();
        let notes = [
            Note {
                key: "stealtime.version",
                value: env!("CARGO_PKG_VERSION"),
            },
            Note {
                key: "stealtime.options",
                value: &self.options,
            },
        ];
        let mut count = 0;
        // A part's errors are not the file's.
        let mut unread = None;
        let written = self.folder.whole(&name, |writer| {
            let mut rows = form.begin(table.name(), &columns, &notes, writer)?;
            for piece in encoded {
                match piece {
                    Ok(piece) => {
                        count += piece.rows() as u64;
                        rows.append(piece)?;
                    }
                    Err(error) => {
                        unread = Some(error);
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
            }
            rows.end()
        });
        match (unread, written) {
            (Some(error), _) => Err(error),
            (None, Ok(path)) => Ok(Written {
                table: table.name(),
                path,
                rows: count,
            }),
            (None, Err(error)) => Err(error.into()),
        }
    }

    fn part_path(&self, recording: &Path) -> PathBuf {
        self.parts.path().join(part_name(recording))
    }

    /// The rows of a recording in a table, with host and recording before them.
    fn rows(&self, recording: &Path, table: Table) -> Result<Vec<Vec<Cell>>, FleetError> {
        let path = self.part_path(recording);
        let mut part = Part::open(&path)?;
        if part.head.identity.recording != recording.to_string_lossy() {
            let problem = format!("it is of {}", part.head.identity.recording);
            return Err(FleetError::damaged(&path, problem));
        }
        let text = |text: Option<String>| text.map_or(Cell::Null, Cell::Text);
        let status = Cell::Text(part.head.status.clone());
        let host = text(part.head.host.clone());
        let first = [host, Cell::Text(part.head.identity.recording.clone())];
        let without_recording = match table {
            Table::Errors => match part.head.error.clone() {
                Some(error) => vec![vec![status, Cell::Text(error)]],
                None => Vec::new(),
            },
            Table::Recordings => {
                let mut rows = part.rows(table)?;
                // A recording without answers has a row too.
                if rows.is_empty() {
                    let columns = table.columns().len();
                    rows.push(vec![Cell::Null; columns.saturating_sub(first.len() + 1)]);
                }
                rows.iter_mut()
                    .for_each(|row| row.insert(0, status.clone()));
                rows
            }
            _ => part.rows(table)?,
        };
        let rows = without_recording.into_iter();
        Ok(rows
            .map(|row| first.iter().cloned().chain(row).collect())
            .collect())
    }
}

/// Texts as in the CSV of a single table: a spreadsheet or a terminal that shows them does nothing else.
fn defuse(cell: &mut Cell) {
    if let Cell::Text(text) = cell
        && let Cow::Owned(safe) = escape::csv_text(text)
    {
        *text = safe;
    }
}

impl Manifest {
    fn difference(&self, present: &Self) -> String {
        let shown = |text: &str| match text {
            "" => "none".to_owned(),
            text => format!("`{text}`"),
        };
        match self.version == present.version {
            true => format!(
                "options of the folder: {}, given: {}",
                shown(&present.options),
                shown(&self.options)
            ),
            false => format!(
                "version {} wrote it, this is {}",
                present.version, self.version
            ),
        }
    }
}

fn read_manifest(folder: &Folder) -> Result<Option<Manifest>, FleetError> {
    let damaged = |error| FleetError::damaged(&folder.path().join(MANIFEST), error);
    let bytes = folder.read(MANIFEST)?;
    let manifest = bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(damaged));
    manifest.transpose()
}

/// Removes what an analysis has written, and nothing else.
fn clear(folder: &Folder) -> Result<(), FleetError> {
    for table in Table::all() {
        for form in Form::ALL {
            let name = format!("{}.{}", table.name(), form.extension());
            folder.remove(&name)?;
        }
    }
    let path = folder.path().join(PARTS);
    let entries = match fs::read_dir(&path) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(FleetError::file(&path, source)),
    };
    for entry in entries {
        let entry = entry.map_err(|source| FleetError::file(&path, source))?;
        let name = entry.file_name();
        if name.as_bytes().ends_with(b".part") || name.as_bytes().ends_with(b".part.new") {
            let part = entry.path();
            fs::remove_file(&part).map_err(|source| FleetError::file(&part, source))?;
        }
    }
    Ok(())
}

/// The name of a recording's part: a hash of the path as it is given (FNV-1a, 64 bits).
fn part_name(recording: &Path) -> String {
    const OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
    const PRIME: u64 = 0x0100_0000_01b3;
    let bytes = recording.as_os_str().as_bytes().iter();
    let hash = bytes.fold(OFFSET, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(PRIME)
    });
    format!("{hash:016x}.part")
}

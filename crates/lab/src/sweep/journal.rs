//! Finished runs in the order in which they finished, in a file that only grows.
//!
//! A record is its length and the CRC-32 of what follows (4 bytes each, little-endian), then JSON.
//! A kill or a power failure loses the end of the file. Opening drops it from the first record that
//! is cut or does not match its sum. The lists of metrics that runs have are records of their own; a
//! run has its list's number and the values, bit by bit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::SweepError;
use super::record::{Brief, BriefEnded, Count, Ended, MetricList, Record};
use crate::run::{RunError, RunOutput};

/// What the file begins with.
const MAGIC: &[u8; 24] = b"stealtime sweep runs, 2\n";
/// Bytes before each record.
const HEAD: usize = 8;
/// The longest record: beyond any list of metrics.
const LONGEST: usize = 64 << 20;
/// The place of a run without a record: the file begins with [`MAGIC`].
const NONE: u64 = 0;

/// The journal of a sweep.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Where the next record goes.
    end: u64,
    /// The place of each run's record.
    places: Vec<u64>,
    /// The number of each run's list of metrics.
    lists: Vec<u32>,
    metrics: Vec<MetricList>,
    done: u64,
    cut: u64,
}

impl Journal {
    /// Opens or begins the journal of a sweep of so many runs.
    ///
    /// # Errors
    ///
    /// [`SweepError`]: it cannot be read or written, or is no journal.
    pub fn open(path: &Path, runs: u64) -> Result<Self, SweepError> {
        let failed = |source| SweepError::file(path, source);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path)
            .map_err(failed)?;
        let runs = usize::try_from(runs).unwrap_or(usize::MAX);
        let mut journal = Self {
            file,
            path: path.to_owned(),
            end: MAGIC.len() as u64,
            places: vec![NONE; runs],
            lists: vec![u32::MAX; runs],
            metrics: Vec::new(),
            done: 0,
            cut: 0,
        };
        journal.load().map_err(failed)?;
        Ok(journal)
    }

    /// Reads all records, and drops the end that is not whole.
    fn load(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        if length < self.end {
            // A kill while the sweep began.
            self.file.set_len(0)?;
            return self.file.write_all_at(MAGIC, 0);
        }
        let mut magic = [0; MAGIC.len()];
        self.file.read_exact_at(&mut magic, 0)?;
        if magic != *MAGIC {
            let wrong = "this is no journal of this version: choose another --out, or --restart";
            return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
        }
        while let Some(bytes) = self.bytes_at(self.end, length)? {
            let record = serde_json::from_slice(body(&bytes));
            if !record.is_ok_and(|record| self.accept(record, self.end)) {
                break;
            }
            self.end += bytes.len() as u64;
        }
        self.cut = length - self.end;
        if self.cut > 0 {
            self.file.set_len(self.end)?;
        }
        Ok(())
    }

    /// The record at a place with its head; `None` at the end, and for one that is not whole.
    fn bytes_at(&self, place: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let mut head = [0; HEAD];
        if length.saturating_sub(place) < HEAD as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut head, place)?;
        let [a, b, c, d, sum @ ..] = head;
        let size = u32::from_le_bytes([a, b, c, d]) as usize;
        if size > LONGEST || size as u64 > length - place - HEAD as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; HEAD + size];
        self.file.read_exact_at(&mut bytes, place)?;
        let is_whole = crc32fast::hash(body(&bytes)) == u32::from_le_bytes(sum);
        Ok(is_whole.then_some(bytes))
    }

    /// Takes a record over; `false` for one that belongs to another grid.
    fn accept(&mut self, record: Brief, place: u64) -> bool {
        let (run, ended) = match record {
            Brief::Metrics(metrics) => {
                self.metrics.push(metrics);
                return true;
            }
            Brief::Run(run, ended) => (usize::try_from(run).unwrap_or(usize::MAX), ended),
        };
        let (Some(known), Some(list)) = (self.places.get_mut(run), self.lists.get_mut(run)) else {
            return false;
        };
        if let BriefEnded::Done {
            list: number,
            values: Count(values),
        } = ended
        {
            let metrics = self.metrics.get(number as usize);
            if metrics.is_none_or(|metrics| metrics.0.len() != values) {
                return false;
            }
            *list = number;
        }
        self.done += u64::from(*known == NONE);
        *known = place;
        true
    }

    /// A run's record, and its list of metrics if the journal does not have it yet.
    fn ended_of(&self, result: Result<RunOutput, RunError>) -> (Ended, Option<MetricList>) {
        let output = match result {
            Ok(output) => output,
            Err(error) => return (Ended::Failed(error), None),
        };
        // From the end: most runs have the list of the run before.
        let known = self
            .metrics
            .iter()
            .rposition(|list| list.matches(&output.metrics));
        let ended = Ended::Done {
            list: known.unwrap_or(self.metrics.len()) as u32,
            events: output.events,
            values: output.metrics.iter().map(|metric| metric.value).collect(),
        };
        let new = known.is_none().then(|| MetricList::of(&output.metrics));
        (ended, new)
    }

    /// Adds a finished run.
    ///
    /// # Errors
    ///
    /// The operating system's error; the journal is the same as before.
    pub fn append(
        &mut self,
        run: u64,
        result: Result<RunOutput, RunError>,
    ) -> Result<(), SweepError> {
        let failed = |source| SweepError::file(&self.path, source);
        let (ended, new) = self.ended_of(result);
        let new = new.map(Record::Metrics);
        let mut bytes = Vec::new();
        if let Some(list) = &new {
            frame(list, &mut bytes).map_err(failed)?;
        }
        let place = self.end + bytes.len() as u64;
        let record = Record::Run(run, ended);
        frame(&record, &mut bytes).map_err(failed)?;
        self.write(&bytes)?;
        for record in new.into_iter().chain([record]) {
            let accepted = self.accept(record.into(), place);
            debug_assert!(accepted, "a run of this grid");
        }
        Ok(())
    }

    /// Adds a finished run of another journal of the same grid.
    ///
    /// # Errors
    ///
    /// One of the files cannot be read or written; this journal is the same as before.
    pub(super) fn copy(&mut self, source: &Self, run: u64) -> Result<(), SweepError> {
        let list = usize::try_from(run).ok();
        let list = list.and_then(|run| source.lists.get(run)).copied();
        let list = list.unwrap_or(u32::MAX);
        let number = list as usize;
        let known = self.metrics.get(number);
        if known.is_none() || known != source.metrics.get(number) {
            // Its list has another number here.
            return match source.result(run)? {
                Some(result) => self.append(run, result),
                None => Ok(()),
            };
        }
        let (place, bytes) = (self.end, source.bytes_of(run)?);
        let values = Count(known.map_or(0, |known| known.0.len()));
        self.write(&bytes)?;
        let accepted = self.accept(Brief::Run(run, BriefEnded::Done { list, values }), place);
        debug_assert!(accepted, "a run of this grid");
        Ok(())
    }

    /// Writes at the end.
    fn write(&mut self, bytes: &[u8]) -> Result<(), SweepError> {
        if let Err(source) = self.file.write_all_at(bytes, self.end) {
            // Opening would drop a part of it: this only keeps the file tidy.
            let _ = self.file.set_len(self.end);
            return Err(SweepError::file(&self.path, source));
        }
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Makes what was written so far survive a power failure.
    ///
    /// # Errors
    ///
    /// The operating system's error.
    pub fn sync(&self) -> Result<(), SweepError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| SweepError::file(&self.path, source))
    }

    /// How a run ended; `None` for one that has not.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more.
    pub fn ended(&self, run: u64) -> Result<Option<Ended>, SweepError> {
        if !self.has(run) {
            return Ok(None);
        }
        match serde_json::from_slice(body(&self.bytes_of(run)?)) {
            Ok(Record::Run(_, ended)) => Ok(Some(ended)),
            _ => Err(self.changed()),
        }
    }

    /// The record of a finished run, with its head.
    fn bytes_of(&self, run: u64) -> Result<Vec<u8>, SweepError> {
        let place = self.place(run).unwrap_or(self.end);
        let bytes = self.bytes_at(place, self.end);
        let bytes = bytes.map_err(|source| SweepError::file(&self.path, source))?;
        bytes.ok_or_else(|| self.changed())
    }

    fn changed(&self) -> SweepError {
        let changed = io::Error::new(io::ErrorKind::InvalidData, "it was changed meanwhile");
        SweepError::file(&self.path, changed)
    }

    /// The result of a run; `None` for one that has not ended.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more.
    pub(super) fn result(
        &self,
        run: u64,
    ) -> Result<Option<Result<RunOutput, RunError>>, SweepError> {
        Ok(self.ended(run)?.map(|ended| match ended {
            Ended::Failed(error) => Err(error),
            Ended::Done {
                list,
                events,
                values,
            } => {
                let kinds = self.metrics.get(list as usize);
                Ok(RunOutput {
                    metrics: kinds.map_or_else(Vec::new, |kinds| kinds.with(&values)),
                    events,
                    // Journals do not have it.
                    simulated_ns: 0,
                })
            }
        }))
    }

    /// Whether a finished run has this result, to the last bit.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more.
    pub(super) fn agrees(
        &self,
        run: u64,
        result: Result<RunOutput, RunError>,
    ) -> Result<bool, SweepError> {
        let (again, new) = self.ended_of(result);
        let again = Record::Run(run, again);
        let recorded = self.ended(run)?.map(|ended| Record::Run(run, ended));
        let recorded = recorded.map(|record| serde_json::to_vec(&record).ok());
        Ok(new.is_none() && recorded == Some(serde_json::to_vec(&again).ok()))
    }

    fn place(&self, run: u64) -> Option<u64> {
        let run = usize::try_from(run).ok()?;
        self.places.get(run).copied().filter(|place| *place != NONE)
    }

    /// Whether a run has ended.
    #[must_use]
    pub fn has(&self, run: u64) -> bool {
        self.place(run).is_some()
    }

    /// How many runs have ended.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// Bytes at the end that opening dropped, because they were no whole record.
    #[must_use]
    pub const fn cut(&self) -> u64 {
        self.cut
    }

    /// The lists of metrics of all runs, each once, in the order of the runs.
    pub(super) fn lists(&self) -> Vec<(u32, &MetricList)> {
        let mut known = vec![false; self.metrics.len()];
        let mut found = Vec::new();
        for list in &self.lists {
            let index = *list as usize;
            // A run that failed has no list.
            let (Some(known), Some(metrics)) = (known.get_mut(index), self.metrics.get(index))
            else {
                continue;
            };
            if !std::mem::replace(known, true) {
                found.push((*list, metrics));
            }
        }
        found
    }
}

/// A record without its head.
fn body(bytes: &[u8]) -> &[u8] {
    bytes.get(HEAD..).unwrap_or_default()
}

/// Adds a record with its head.
fn frame(record: &Record, bytes: &mut Vec<u8>) -> io::Result<()> {
    let body = serde_json::to_vec(record)?;
    let size = u32::try_from(body.len()).map_err(io::Error::other)?;
    bytes.extend(size.to_le_bytes());
    bytes.extend(crc32fast::hash(&body).to_le_bytes());
    bytes.extend(body);
    Ok(())
}

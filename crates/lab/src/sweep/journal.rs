//! Finished runs in the order in which they finished, in a file that only grows.
//!
//! A record is its length and the CRC-32 of what follows (4 bytes each, little-endian), then the
//! record. Whatever kills the process or the machine, what is lost is the end: opening drops it
//! from the first record on that is cut or does not match its sum. The lists of metrics that runs
//! have are records of their own; a run has its list's number and the values, bit by bit.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::SweepError;
use super::record::{Ended, Kinds, Record};
use crate::metric::Metric;
use crate::run::{RunError, RunOutput};

/// What the file begins with.
const MAGIC: &[u8; 24] = b"stealtime sweep runs, 1\n";
/// Bytes before each record.
const HEAD: usize = 8;
/// The longest record: beyond any list of metrics.
const LONGEST: usize = 64 << 20;
/// No record is here: the file begins with [`MAGIC`].
const NONE: u64 = 0;

/// The journal of a sweep.
#[derive(Debug)]
pub struct Journal {
    file: File,
    path: PathBuf,
    /// Where the next record goes.
    end: u64,
    /// By run, where its record is.
    places: Vec<u64>,
    /// By run, the number of its list of metrics.
    lists: Vec<u32>,
    kinds: Vec<Kinds>,
    numbers: BTreeMap<Kinds, u32>,
    /// The list of the last run that was added.
    last: u32,
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
            end: 0,
            places: vec![NONE; runs],
            lists: vec![u32::MAX; runs],
            kinds: Vec::new(),
            numbers: BTreeMap::new(),
            last: 0,
            done: 0,
            cut: 0,
        };
        journal.load().map_err(failed)?;
        Ok(journal)
    }

    /// Reads all records, and drops what follows the last whole one.
    fn load(&mut self) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        let mut magic = [0; MAGIC.len()];
        if length >= MAGIC.len() as u64 {
            self.file.read_exact_at(&mut magic, 0)?;
        }
        if magic != *MAGIC {
            // A beginning that never came to be; anything else is not ours to overwrite.
            if length >= MAGIC.len() as u64 {
                let wrong = "this is no journal of a sweep";
                return Err(io::Error::new(io::ErrorKind::InvalidData, wrong));
            }
            self.file.set_len(0)?;
            self.file.write_all_at(MAGIC, 0)?;
            self.end = MAGIC.len() as u64;
            return Ok(());
        }
        self.end = MAGIC.len() as u64;
        while let Some((record, bytes)) = self.record_at(self.end, length)? {
            let at = self.end;
            if !self.accept(record, at) {
                break;
            }
            self.end += bytes;
        }
        self.cut = length - self.end;
        if self.cut > 0 {
            self.file.set_len(self.end)?;
        }
        Ok(())
    }

    /// The record at a place and its length with the head; `None` at the end, and for one that is not
    /// whole.
    fn record_at(&self, at: u64, length: u64) -> io::Result<Option<(Record, u64)>> {
        let mut head = [0; HEAD];
        if length.saturating_sub(at) < HEAD as u64 {
            return Ok(None);
        }
        self.file.read_exact_at(&mut head, at)?;
        let [a, b, c, d, sum @ ..] = head;
        let size = u32::from_le_bytes([a, b, c, d]) as usize;
        if size > LONGEST || size as u64 > length - at - HEAD as u64 {
            return Ok(None);
        }
        let mut bytes = vec![0; size];
        self.file.read_exact_at(&mut bytes, at + HEAD as u64)?;
        if crc32fast::hash(&bytes) != u32::from_le_bytes(sum) {
            return Ok(None);
        }
        let record = Record::read(&bytes);
        Ok(record.map(|record| (record, (HEAD + size) as u64)))
    }

    /// Takes a record over; `false` for one that does not belong here.
    fn accept(&mut self, record: Record, at: u64) -> bool {
        match record {
            Record::Kinds(kinds) => {
                let number = self.kinds.len() as u32;
                self.numbers.insert(kinds.clone(), number);
                self.kinds.push(kinds);
                true
            }
            Record::Run(run, ended) => self.note(run, &ended, at),
        }
    }

    fn note(&mut self, run: u64, ended: &Ended, at: u64) -> bool {
        let run = usize::try_from(run).unwrap_or(usize::MAX);
        let (Some(place), Some(list)) = (self.places.get_mut(run), self.lists.get_mut(run)) else {
            return false;
        };
        if let Ended::Done {
            list: number,
            values,
            ..
        } = ended
        {
            let known = self.kinds.get(*number as usize);
            if known.is_none_or(|kinds| kinds.0.len() != values.len()) {
                return false;
            }
            *list = *number;
        }
        if *place == NONE {
            self.done += 1;
        }
        *place = at;
        true
    }

    /// The number of the list of these metrics, or a new list.
    fn list_of(&self, metrics: &[Metric]) -> Result<u32, Kinds> {
        // Most runs have the list of the run before.
        if self
            .kinds(self.last)
            .is_some_and(|last| last.are_of(metrics))
        {
            return Ok(self.last);
        }
        let kinds = Kinds::of(metrics);
        self.numbers.get(&kinds).copied().ok_or(kinds)
    }

    /// Adds a finished run.
    ///
    /// # Errors
    ///
    /// The file as it was, and what the operating system said.
    pub fn append(
        &mut self,
        run: u64,
        result: Result<RunOutput, RunError>,
    ) -> Result<(), SweepError> {
        let mut bytes = Vec::new();
        let mut new = None;
        let ended = match result {
            Ok(output) => {
                let list = match self.list_of(&output.metrics) {
                    Ok(number) => number,
                    Err(kinds) => {
                        frame(&Record::Kinds(kinds.clone()), &mut bytes);
                        new = Some(kinds);
                        self.kinds.len() as u32
                    }
                };
                self.last = list;
                Ended::Done {
                    list,
                    events: output.events,
                    values: output.metrics.iter().map(|metric| metric.value).collect(),
                }
            }
            Err(error) => Ended::Failed(error),
        };
        let at = self.end + bytes.len() as u64;
        let record = Record::Run(run, ended);
        frame(&record, &mut bytes);
        if let Err(source) = self.file.write_all_at(&bytes, self.end) {
            // A part of it would be dropped when the file is opened: this only keeps it tidy.
            let _ = self.file.set_len(self.end);
            return Err(SweepError::Kept {
                path: self.path.clone(),
                source,
                done: self.done,
                runs: self.places.len() as u64,
            });
        }
        self.end += bytes.len() as u64;
        if let Some(kinds) = new {
            self.accept(Record::Kinds(kinds), 0);
        }
        if let Record::Run(run, ended) = &record {
            self.note(*run, ended, at);
        }
        Ok(())
    }

    /// Makes sure that what was written so far outlives the machine.
    ///
    /// # Errors
    ///
    /// What the operating system said.
    pub fn sync(&self) -> Result<(), SweepError> {
        let synced = self.file.sync_data();
        synced.map_err(|source| SweepError::file(&self.path, source))
    }

    /// How a run has ended; `None` for one that has not.
    ///
    /// # Errors
    ///
    /// It can no more be read.
    pub fn ended(&self, run: u64) -> Result<Option<Ended>, SweepError> {
        let place = usize::try_from(run).ok();
        let place = place.and_then(|run| self.places.get(run)).copied();
        let Some(place) = place.filter(|place| *place != NONE) else {
            return Ok(None);
        };
        let record = self.record_at(place, self.end);
        match record.map_err(|source| SweepError::file(&self.path, source))? {
            Some((Record::Run(_, ended), _)) => Ok(Some(ended)),
            _ => {
                let wrong = io::Error::new(io::ErrorKind::InvalidData, "it was changed meanwhile");
                Err(SweepError::file(&self.path, wrong))
            }
        }
    }

    /// Whether a run has ended.
    #[must_use]
    pub fn has(&self, run: u64) -> bool {
        let place = usize::try_from(run).ok();
        place
            .and_then(|run| self.places.get(run))
            .is_some_and(|place| *place != NONE)
    }

    /// How many runs have ended.
    #[must_use]
    pub const fn done(&self) -> u64 {
        self.done
    }

    /// Bytes at the end that were no whole record and were dropped when it was opened.
    #[must_use]
    pub const fn cut(&self) -> u64 {
        self.cut
    }

    /// The lists of metrics that these runs have, each once, in the order of the runs.
    pub(super) fn lists(&self, runs: std::ops::Range<u64>) -> Vec<(u32, &Kinds)> {
        let mut seen = vec![false; self.kinds.len()];
        let mut found = Vec::new();
        let from = usize::try_from(runs.start).unwrap_or(usize::MAX);
        let count = usize::try_from(runs.end.saturating_sub(runs.start)).unwrap_or(usize::MAX);
        for list in self.lists.iter().skip(from).take(count) {
            let at = *list as usize;
            let (Some(seen), Some(kinds)) = (seen.get_mut(at), self.kinds.get(at)) else {
                continue;
            };
            if !*seen {
                *seen = true;
                found.push((*list, kinds));
            }
        }
        found
    }

    /// A list of metrics by its number.
    pub(super) fn kinds(&self, list: u32) -> Option<&Kinds> {
        self.kinds.get(list as usize)
    }
}

/// A record with its head.
fn frame(record: &Record, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    bytes.extend([0; HEAD]);
    record.write(bytes);
    let Some((head, body)) = bytes
        .get_mut(start..)
        .and_then(|b| b.split_at_mut_checked(HEAD))
    else {
        return;
    };
    let size = u32::try_from(body.len()).unwrap_or(u32::MAX);
    let sum = crc32fast::hash(body);
    head.copy_from_slice(&[size.to_le_bytes(), sum.to_le_bytes()].concat());
}

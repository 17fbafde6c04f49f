//! Finished runs in the order in which they finished, in a file that only grows.
//!
//! A [`Record`] follows its length and CRC-32. A kill or a power failure loses the end of the file.
//! Opening drops it from the first record that is cut or does not match its sum. The lists of metrics
//! that runs have are records of their own; a run has its list's number and the values, bit by bit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use stealtime_results::ROW_GROUP;

use super::SweepError;
use super::folder::Folder;
use super::record::{Ended, MetricList, Record, body};
use super::window::Window;
use crate::metric::Metric;
use crate::run::{RunError, RunOutput};

/// What the file begins with.
const MAGIC: &[u8; 24] = b"stealtime sweep runs, 3\n";
/// The place of a run without a record: the file begins with [`MAGIC`].
const NONE: u64 = 0;
/// The list of a run without metrics.
const NO_LIST: u32 = u32::MAX;

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
            lists: vec![NO_LIST; runs],
            metrics: Vec::new(),
            done: 0,
            cut: 0,
        };
        journal.load().map_err(failed)?;
        Ok(journal)
    }

    /// Reads all records, and drops the end that is not whole.
    fn load(&mut self) -> io::Result<()> {
        let Some(length) = length_of(&self.file)? else {
            // A kill while the sweep began.
            self.file.set_len(0)?;
            return self.file.write_all_at(MAGIC, 0);
        };
        let mut window = Window::of_many();
        while let Some(bytes) = window.record(&self.file, self.end, length)? {
            if !self.accept(body(bytes), self.end) {
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

    /// Takes a record over; `false` for one that belongs to another grid.
    fn accept(&mut self, bytes: &[u8], place: u64) -> bool {
        let record = Record::read(bytes).filter(|record| self.fits(record));
        let (run, number) = match record {
            Some(Record::Metrics(list)) => {
                let list = serde_json::from_slice(list);
                return list.map(|list| self.metrics.push(list)).is_ok();
            }
            Some(Record::Failed { run, .. }) => (run, NO_LIST),
            Some(Record::Done { run, list, .. }) => (run, list),
            None => return false,
        };
        let run = usize::try_from(run).unwrap_or(usize::MAX);
        if let (Some(known), Some(list)) = (self.places.get_mut(run), self.lists.get_mut(run)) {
            self.done += u64::from(*known == NONE);
            *known = place;
            *list = number;
        }
        true
    }

    /// Whether a record is of this grid.
    fn fits(&self, record: &Record<'_>) -> bool {
        let is_run = |run: &u64| *run < self.places.len() as u64;
        match record {
            Record::Metrics(_) => true,
            Record::Failed { run, .. } => is_run(run),
            Record::Done {
                run, list, values, ..
            } => {
                let metrics = self.metrics.get(*list as usize);
                is_run(run) && metrics.is_some_and(|metrics| metrics.0.len() == values.len())
            }
        }
    }

    /// The number of the list that these metrics have, if it has one.
    fn number_of(&self, metrics: &[Metric]) -> Option<u32> {
        // From the end: most runs have the list of the run before.
        let known = self.metrics.iter().rposition(|list| list.matches(metrics));
        known.map(|index| index as u32)
    }

    /// Adds a finished run.
    ///
    /// # Errors
    ///
    /// The operating system's error; the journal has the same runs as before.
    pub fn append(
        &mut self,
        run: u64,
        result: &Result<RunOutput, RunError>,
    ) -> Result<(), SweepError> {
        let list = match result {
            Err(_) => NO_LIST,
            Ok(output) => match self.number_of(&output.metrics) {
                Some(number) => number,
                None => self.add_list(&MetricList::of(&output.metrics))?,
            },
        };
        self.add(record_of(run, result, list))
    }

    /// The number of a list of metrics, which is added if it has none.
    fn number_or_add(&mut self, list: &MetricList) -> Result<u32, SweepError> {
        let known = self.metrics.iter().position(|known| known == list);
        match known {
            Some(index) => Ok(index as u32),
            None => self.add_list(list),
        }
    }

    /// Adds a list of metrics, and returns its number.
    fn add_list(&mut self, list: &MetricList) -> Result<u32, SweepError> {
        let number = self.metrics.len() as u32;
        let json = serde_json::to_vec(list).map_err(io::Error::from);
        self.add(json.and_then(|json| Record::Metrics(&json).framed()))?;
        Ok(number)
    }

    /// Adds a record.
    fn add(&mut self, record: io::Result<Vec<u8>>) -> Result<(), SweepError> {
        let place = self.end;
        let written = record.and_then(|bytes| {
            self.file.write_all_at(&bytes, place)?;
            Ok(bytes)
        });
        match written {
            Ok(bytes) => {
                let accepted = self.accept(body(&bytes), place);
                debug_assert!(accepted, "a record of this grid");
                self.end += bytes.len() as u64;
                Ok(())
            }
            Err(source) => {
                // Opening would drop a part of it: this only keeps the file tidy.
                let _ = self.file.set_len(place);
                Err(SweepError::file(&self.path, source))
            }
        }
    }

    /// Adds the finished runs of another folder of the same sweep.
    ///
    /// # Errors
    ///
    /// [`SweepError::Disagree`], or one of the files cannot be read or written. What was added is kept.
    pub(super) fn take(&mut self, folder: &Folder) -> Result<(), SweepError> {
        let path = folder.journal();
        let failed = |source| SweepError::file(&path, source);
        let file = match File::open(&path) {
            // A kill before the first run.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.map_err(failed)?,
        };
        let length = length_of(&file).map_err(failed)?.unwrap_or(0);
        let mut place = MAGIC.len() as u64;
        let mut window = Window::of_many();
        // By number of a list in that file, its number in this one.
        let mut numbers = Vec::new();
        while let Some(bytes) = window.record(&file, place, length).map_err(failed)? {
            place += bytes.len() as u64;
            let record = Record::read(body(bytes));
            let record = match record {
                Some(Record::Metrics(json)) => {
                    let Ok(list) = serde_json::from_slice(json) else {
                        break;
                    };
                    numbers.push(self.number_or_add(&list)?);
                    continue;
                }
                record => record.and_then(|record| record.renumbered(&numbers)),
            };
            // As in opening, the rest of the file does not count.
            let Some(record) = record.filter(|record| self.fits(record)) else {
                break;
            };
            let framed = record.framed();
            match record.run() {
                Some(run) if self.has(run) => {
                    if self.bytes_of(run)? != framed.map_err(failed)? {
                        return Err(SweepError::Disagree {
                            path: folder.path().to_owned(),
                            run,
                        });
                    }
                }
                _ => self.add(framed)?,
            }
        }
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
        let bytes = self.bytes_of(run)?;
        let ended = match Record::read(body(&bytes)) {
            Some(Record::Done {
                list,
                events,
                values,
                ..
            }) => Some(Ended::Done {
                list,
                events,
                values: values.iter().copied().map(f64::from_le_bytes).collect(),
            }),
            Some(Record::Failed { error, .. }) => {
                serde_json::from_slice(error).ok().map(Ended::Failed)
            }
            _ => None,
        };
        ended.map_or_else(|| Err(self.changed()), |ended| Ok(Some(ended)))
    }

    /// The record of a finished run, with its head.
    fn bytes_of(&self, run: u64) -> Result<Vec<u8>, SweepError> {
        let place = self.place(run).unwrap_or(self.end);
        let mut window = Window::of_one();
        let bytes = window.record(&self.file, place, self.end);
        let bytes = bytes.map_err(|source| SweepError::file(&self.path, source))?;
        bytes.map(<[u8]>::to_vec).ok_or_else(|| self.changed())
    }

    fn changed(&self) -> SweepError {
        let changed = io::Error::new(io::ErrorKind::InvalidData, "it was changed meanwhile");
        SweepError::file(&self.path, changed)
    }

    /// Whether a finished run has this result, to the last bit.
    ///
    /// # Errors
    ///
    /// The file cannot be read any more.
    pub(super) fn agrees(
        &self,
        run: u64,
        result: &Result<RunOutput, RunError>,
    ) -> Result<bool, SweepError> {
        let list = match result {
            Ok(output) => self.number_of(&output.metrics),
            Err(_) => Some(NO_LIST),
        };
        let Some(list) = list.filter(|_| self.has(run)) else {
            return Ok(false);
        };
        let again = record_of(run, result, list);
        let again = again.map_err(|source| SweepError::file(&self.path, source))?;
        Ok(self.bytes_of(run)? == again)
    }

    fn place(&self, run: u64) -> Option<u64> {
        let run = usize::try_from(run).ok()?;
        self.places.get(run).copied().filter(|place| *place != NONE)
    }

    /// The runs that have ended, in the order of the grid, as many at a time as a row group has.
    pub(super) fn groups(&self) -> impl Iterator<Item = Vec<u64>> {
        let mut ended = (0..self.places.len() as u64).filter(|run| self.has(*run));
        core::iter::from_fn(move || {
            let group: Vec<u64> = ended.by_ref().take(ROW_GROUP).collect();
            (!group.is_empty()).then_some(group)
        })
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

/// The length of a journal; `None`: it is cut within [`MAGIC`].
fn length_of(file: &File) -> io::Result<Option<u64>> {
    let length = file.metadata()?.len();
    if length < MAGIC.len() as u64 {
        return Ok(None);
    }
    let mut magic = [0; MAGIC.len()];
    file.read_exact_at(&mut magic, 0)?;
    if magic == *MAGIC {
        return Ok(Some(length));
    }
    let wrong = "this is no journal of this version: choose another --out, or --restart";
    Err(io::Error::new(io::ErrorKind::InvalidData, wrong))
}

/// The record of a run, with its head. Its metrics have the list of this number.
fn record_of(run: u64, result: &Result<RunOutput, RunError>, list: u32) -> io::Result<Vec<u8>> {
    match result {
        Ok(output) => {
            let values = output.metrics.iter();
            let values: Vec<[u8; 8]> = values.map(|metric| metric.value.to_le_bytes()).collect();
            let record = Record::Done {
                run,
                list,
                events: output.events,
                values: &values,
            };
            record.framed()
        }
        Err(error) => {
            let error = serde_json::to_vec(error)?;
            let record = Record::Failed { run, error: &error };
            record.framed()
        }
    }
}

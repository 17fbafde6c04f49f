//! A flight recorder: the latest pages of all CPUs in memory, and a recording of them.
//!
//! Pages are read for the collector anyway. Keeping them costs a copy, and tracing goes on while a recording
//! is written. A second tracing instance would cost each event once more.

use std::collections::VecDeque;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use stealtime_trace::write::raw::{Head, Recording};

use crate::RecordError;
use crate::file::temporary;

/// Recordings of one second and one condition that get names of their own.
const NAMES: u32 = 1000;

/// How much is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    /// Pages that were read longer ago go.
    pub time: Duration,
    /// The oldest pages go beyond so many bytes of events.
    pub bytes: usize,
}

/// A page without the zeros behind its events.
#[derive(Debug, Clone)]
struct Page {
    cpu: u16,
    read: Instant,
    /// Its begin, in ns of the trace's clock.
    time: u64,
    bytes: Arc<[u8]>,
}

/// The latest pages, in the order in which they were read.
#[derive(Debug)]
pub(crate) struct Latest {
    keep: Keep,
    /// The recording without threads and data.
    description: Recording,
    pages: VecDeque<Page>,
    bytes: usize,
}

impl Latest {
    pub(crate) const fn new(keep: Keep, description: Recording) -> Self {
        Self {
            keep,
            description,
            pages: VecDeque::new(),
            bytes: 0,
        }
    }

    /// How long pages are kept.
    pub(crate) const fn time(&self) -> Duration {
        self.keep.time
    }

    /// The next page of a CPU. `time` is its begin, in ns.
    pub(crate) fn push(&mut self, cpu: u16, time: u64, page: &[u8]) {
        let used = page.iter().rposition(|byte| *byte != 0);
        let used = used.map_or(0, |last| last + 1);
        self.bytes += used;
        self.pages.push_back(Page {
            cpu,
            read: Instant::now(),
            time,
            bytes: page[..used].into(),
        });
        while self.bytes > self.keep.bytes && self.pages.len() > 1 {
            self.drop_oldest();
        }
    }

    /// Drops what is too old.
    pub(crate) fn forget(&mut self, now: Instant) {
        let time = self.keep.time;
        let is_old = |page: &Page| now.duration_since(page.read) > time;
        while self.pages.front().is_some_and(is_old) {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(page) = self.pages.pop_front() {
            self.bytes -= page.bytes.len();
        }
    }

    /// A recording of these pages, which stay.
    pub(crate) fn flight(&self) -> Flight {
        let mut pages: Vec<Page> = self.pages.iter().cloned().collect();
        // The order of a CPU's pages stays.
        pages.sort_by_key(|page| page.cpu);
        let mut recording = self.description.clone();
        let size = u64::from(recording.buffer_page_size);
        for cpu in pages.chunk_by(|a, b| a.cpu == b.cpu) {
            if let Some(first) = cpu.first() {
                recording.data.push((first.cpu, cpu.len() as u64 * size));
                recording.cpus = u32::from(first.cpu) + 1;
            }
        }
        Flight { recording, pages }
    }
}

/// The latest pages of a host, and what describes them.
#[derive(Debug)]
pub struct Flight {
    pub(crate) recording: Recording,
    pages: Vec<Page>,
}

impl Flight {
    /// The time from the begin of its first page to that of its last one.
    #[must_use]
    pub fn time(&self) -> Duration {
        let times = || self.pages.iter().map(|page| page.time);
        let (first, last) = (times().min(), times().max());
        let ns = last.unwrap_or(0).saturating_sub(first.unwrap_or(0));
        Duration::from_nanos(ns)
    }

    /// The recording with the host's snapshot, JSON.
    ///
    /// # Errors
    /// Descriptions cannot be compressed.
    pub fn with_snapshot(mut self, snapshot: Option<String>) -> Result<FlightFile, RecordError> {
        self.recording.snapshot = snapshot;
        let head = self.recording.head().map_err(RecordError::Head)?;
        Ok(FlightFile {
            head,
            page: self.recording.buffer_page_size as usize,
            pages: self.pages,
        })
    }
}

/// A recording of the latest pages that is ready to be written.
#[derive(Debug)]
pub struct FlightFile {
    head: Head,
    page: usize,
    pages: Vec<Page>,
}

impl FlightFile {
    /// Bytes of the file.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.head.len
    }

    /// Writes it to a folder as `STEM.dat`, or as `STEM-2.dat` if there is such a file, and so on. Returns
    /// the path. `unfinished` gets the name that the file has until it is whole.
    ///
    /// # Errors
    /// The file cannot be written: nothing is left of it.
    pub fn write(
        &self,
        folder: &Path,
        stem: &str,
        unfinished: &mut dyn FnMut(Option<&Path>),
    ) -> Result<PathBuf, RecordError> {
        let failed = |path: &Path, source| RecordError::Output {
            path: path.to_owned(),
            source,
        };
        let first = folder.join(format!("{stem}.dat"));
        let mut target = temporary(folder).map_err(|error| failed(&first, error))?;
        unfinished(Some(target.path()));
        let written = self.write_to(target.as_file());
        let mut result = written.map_err(|error| failed(&first, error));
        let mut number = 1;
        let path = loop {
            let path = match number {
                1 => first.clone(),
                number => folder.join(format!("{stem}-{number}.dat")),
            };
            if result.is_err() {
                break path;
            }
            match target.persist_noclobber(&path) {
                Ok(_) => break path,
                Err(error)
                    if error.error.kind() == io::ErrorKind::AlreadyExists && number < NAMES =>
                {
                    target = error.file;
                    number += 1;
                }
                Err(error) => {
                    result = Err(failed(&path, error.error));
                    break path;
                }
            }
        };
        unfinished(None);
        result.map(|()| path)
    }

    fn write_to(&self, file: impl Write + Seek) -> io::Result<()> {
        let mut writer = BufWriter::with_capacity(1 << 20, file);
        writer.write_all(&self.head.bytes)?;
        let cpus = self.pages.chunk_by(|a, b| a.cpu == b.cpu);
        for (start, pages) in self.head.starts.iter().zip(cpus) {
            writer.seek(SeekFrom::Start(*start))?;
            for page in pages {
                writer.write_all(&page.bytes)?;
                let zeros = vec![0; self.page.saturating_sub(page.bytes.len())];
                writer.write_all(&zeros)?;
            }
        }
        writer.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 64;

    fn latest(keep: Keep) -> Latest {
        let description = Recording {
            page_size: PAGE as u32,
            buffer_page_size: PAGE as u32,
            ..Recording::default()
        };
        Latest::new(keep, description)
    }

    /// A page of which `used` bytes are not zero.
    fn page(used: usize) -> Vec<u8> {
        let mut page = vec![0; PAGE];
        page[..used].fill(7);
        page
    }

    #[test]
    fn the_latest_pages_are_kept_within_bounds() {
        let keep = Keep {
            time: Duration::from_secs(3600),
            bytes: 100,
        };
        let mut latest = latest(keep);
        for time in 0..20 {
            latest.push(1, time, &page(30));
            assert!(latest.bytes <= 100, "{}", latest.bytes);
        }
        assert_eq!(latest.pages.len(), 3);
        assert_eq!(latest.flight().time(), Duration::from_nanos(2));
        // A page that is larger than the bound stays until the next one comes.
        latest.push(1, 20, &page(PAGE));
        assert_eq!((latest.pages.len(), latest.bytes), (2, 94));
        latest.forget(Instant::now() + Duration::from_secs(3601));
        assert_eq!((latest.pages.len(), latest.bytes), (0, 0));
    }

    #[test]
    fn a_file_has_whole_pages_at_their_places() {
        let keep = Keep {
            time: Duration::from_secs(3600),
            bytes: 1 << 20,
        };
        let mut latest = latest(keep);
        for (cpu, used) in [(3, 10), (0, PAGE), (3, 0), (0, 1)] {
            latest.push(cpu, 0, &page(used));
        }
        let flight = latest.flight();
        assert_eq!(flight.recording.data, [(0, 128), (3, 128)]);
        assert_eq!(flight.recording.cpus, 4);
        let file = flight.with_snapshot(None).expect("a head");
        let folder = tempfile::tempdir().expect("a folder");
        let write = || file.write(folder.path(), "x", &mut |_| {}).expect("a file");
        let paths = [write(), write()].map(|path| path.file_name().expect("a name").to_owned());
        assert_eq!(paths, ["x.dat", "x-2.dat"]);
        let bytes = std::fs::read(folder.path().join("x.dat")).expect("the file");
        assert_eq!(bytes.len() as u64, file.bytes());
        let starts = file.head.starts.iter().map(|start| *start as usize);
        let data: Vec<&[u8]> = starts.map(|start| &bytes[start..start + 128]).collect();
        assert_eq!(data[0], [page(PAGE), page(1)].concat());
        assert_eq!(data[1], [page(10), page(0)].concat());
    }
}

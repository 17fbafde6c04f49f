//! Recordings of triggers, written in a thread of its own, and the room that they may take.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::thread::JoinHandle;

use chrono::{DateTime, Utc};
use stealtime_host::Snapshot;
use stealtime_live::{Flight, RecordError};

use super::trigger::Trigger;
use crate::output;

/// First part of the names of recordings.
const PREFIX: &str = "watch-";
/// Longest part of a name that says what was seen.
const MAX_SUBJECT: usize = 60;

/// Threads that write recordings.
pub(super) const THREADS: usize = 1;

/// Why a recording is not written.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    /// The recording.
    #[error("{0}")]
    File(#[from] RecordError),
    /// The folder's other recordings.
    #[error("{}: {source}", path.display())]
    Folder { path: PathBuf, source: io::Error },
}

/// A recording to write.
pub(super) struct Job {
    pub(super) trigger: Trigger,
    pub(super) time: DateTime<Utc>,
    pub(super) flight: Flight,
    /// A snapshot from before: VMs that have ended since are in this one alone.
    pub(super) before: Option<Arc<Snapshot>>,
}

/// What became of a trigger.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It is in this file.
    Recorded {
        file: PathBuf,
        bytes: u64,
        seconds: f64,
    },
    /// There are as many recordings as `--at-most` allows.
    AtMost,
    /// It would not fit into `--max-size`.
    MaxSize { bytes: u64 },
    /// Two recordings are being written.
    Busy,
    /// It cannot be written.
    Failed(String),
    /// A replay writes nothing.
    Replayed,
}

/// A trigger, and what became of it.
pub(super) struct Done {
    pub(super) trigger: Trigger,
    pub(super) time: Option<DateTime<Utc>>,
    pub(super) outcome: Outcome,
}

/// Where recordings go.
#[derive(Debug, Clone)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// Bytes of all recordings in it.
    pub(super) max_size: u64,
    /// Whether the oldest ones go for a newer one.
    pub(super) deletes_oldest: bool,
}

/// The thread that writes.
pub(super) struct Writer {
    jobs: SyncSender<Job>,
    done: Receiver<Done>,
    thread: JoinHandle<()>,
}

impl Writer {
    /// Starts it.
    pub(super) fn start(folder: Folder) -> io::Result<Self> {
        // One is written, and one waits: their pages bound the memory.
        let (jobs, waiting) = sync_channel::<Job>(1);
        let (sender, written) = channel();
        let run = move || {
            stealtime_live::usual_priority();
            for job in waiting {
                // The watcher reads until the end.
                let _ = sender.send(folder.write(job));
            }
        };
        let thread = std::thread::Builder::new().name("recordings".to_owned());
        Ok(Self {
            jobs,
            done: written,
            thread: thread.spawn(run)?,
        })
    }

    /// Writes a recording, unless two are being written.
    pub(super) fn write(&self, job: Job) -> Option<Done> {
        let (TrySendError::Full(job) | TrySendError::Disconnected(job)) =
            self.jobs.try_send(job).err()?;
        Some(Done {
            trigger: job.trigger,
            time: Some(job.time),
            outcome: Outcome::Busy,
        })
    }

    /// One that is written.
    pub(super) fn done(&self) -> Option<Done> {
        self.done.try_recv().ok()
    }

    /// Waits for the last ones.
    pub(super) fn finish(self) -> Vec<Done> {
        drop(self.jobs);
        let ends = self.done.iter().collect();
        // A panic has its message on standard error.
        let _ = self.thread.join();
        ends
    }
}

impl Folder {
    fn write(&self, job: Job) -> Done {
        let stem = stem(&job.trigger, job.time);
        let seconds = job.flight.time().as_secs_f64();
        let outcome = self.try_write(job.flight, job.before, &stem, seconds);
        Done {
            trigger: job.trigger,
            time: Some(job.time),
            outcome: outcome.unwrap_or_else(|error| Outcome::Failed(error.to_string())),
        }
    }

    fn try_write(
        &self,
        flight: Flight,
        former: Option<Arc<Snapshot>>,
        stem: &str,
        seconds: f64,
    ) -> Result<Outcome, WriteError> {
        let snapshot = Snapshot::read(Path::new("/")).map(|mut snapshot| {
            snapshot.before = former.map(|former| Box::new(Snapshot::clone(&former)));
            snapshot.to_json()
        });
        let file = flight.with_snapshot(snapshot.ok())?;
        let bytes = file.bytes();
        if !self
            .make_room(bytes)
            .map_err(|source| self.failed(source))?
        {
            return Ok(Outcome::MaxSize { bytes });
        }
        let mut unfinished = |path: Option<&Path>| output::unfinished(path.map(Path::to_owned));
        let written = file.write(&self.path, stem, &mut unfinished);
        Ok(Outcome::Recorded {
            file: written?,
            bytes,
            seconds,
        })
    }

    fn failed(&self, source: io::Error) -> WriteError {
        WriteError::Folder {
            path: self.path.clone(),
            source,
        }
    }

    /// Whether so many bytes more are within the bound. Oldest recordings go for it only if that is wanted.
    fn make_room(&self, bytes: u64) -> io::Result<bool> {
        let mut recordings = self.recordings()?;
        let mut sum: u64 = recordings.iter().map(|(_, bytes)| bytes).sum();
        // Names begin with the time: the oldest one is the last.
        recordings.sort_by(|a, b| b.0.cmp(&a.0));
        while sum.saturating_add(bytes) > self.max_size {
            let is_possible = self.deletes_oldest && bytes <= self.max_size;
            let Some((path, freed)) = recordings.pop().filter(|_| is_possible) else {
                return Ok(false);
            };
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => sum -= freed,
            }
        }
        Ok(true)
    }

    /// Recordings of triggers in the folder, and their sizes in bytes.
    fn recordings(&self) -> io::Result<Vec<(PathBuf, u64)>> {
        let mut recordings = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            // One that another watcher deletes meanwhile has no size.
            let meta = entry.metadata().ok().filter(std::fs::Metadata::is_file);
            let is_recording = name.starts_with(PREFIX) && name.ends_with(".dat");
            if let Some(meta) = meta.filter(|_| is_recording) {
                recordings.push((entry.path(), meta.len()));
            }
        }
        Ok(recordings)
    }
}

/// The name of a recording without its ending: time, VM and figure.
fn stem(trigger: &Trigger, time: DateTime<Utc>) -> String {
    let time = time.format("%Y%m%dT%H%M%SZ");
    let subject = trigger.seen.first().map_or(String::new(), |first| {
        format!("{}.{}", first.met.vm, first.met.condition.figure.name())
    });
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    let subject = subject
        .chars()
        .map(|c| if is_plain(c) { c } else { '_' })
        .take(MAX_SUBJECT);
    format!("{PREFIX}{time}-{}", subject.collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recordings_stay_within_the_bound() {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["watch-20260102-b.dat", "watch-20260101-a.dat", "mine.dat"];
        for name in names {
            std::fs::write(folder.path().join(name), [0; 100]).expect("a file");
        }
        let mut bound = Folder {
            path: folder.path().to_owned(),
            max_size: 250,
            deletes_oldest: false,
        };
        let left = || std::fs::read_dir(folder.path()).expect("a folder").count();
        assert!(bound.make_room(50).expect("it fits"));
        assert!(!bound.make_room(51).expect("it is counted"));
        assert_eq!(left(), 3);
        bound.deletes_oldest = true;
        // What never fits deletes nothing.
        assert!(!bound.make_room(251).expect("it is counted"));
        assert_eq!(left(), 3);
        assert!(bound.make_room(51).expect("one goes"));
        assert!(!folder.path().join(names[1]).exists());
        assert_eq!(left(), 2);
    }
}

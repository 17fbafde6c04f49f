//! Recordings of the host, and what became of its values.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use stealtime_host::Snapshot;
use stealtime_trial::{Fate, Outcome, Side, StoreError};
use stealtime_whatif::Recorded;
use tempfile::TempDir;

use super::{stopped, text};
use crate::args::Recording;
use crate::error::CliError;
use crate::output;
use crate::replayable::{self, Replayable};
use crate::verb::record;

/// Sleeps look at the stop flag in this time.
const STEP: Duration = Duration::from_millis(20);

/// Where recordings come from.
pub(super) enum Source {
    /// This host.
    Host,
    /// A folder with a.dat and b.dat, and a root with the host's files: a test.
    Folder { recordings: PathBuf, root: PathBuf },
}

/// Records the host.
pub(super) struct Recorder {
    source: Source,
    folder: Folder,
    stop: &'static AtomicBool,
    /// Slices so far.
    slices: usize,
}

/// The folder of the recordings.
enum Folder {
    Kept(PathBuf),
    /// Removed at the end.
    Temporary(TempDir),
}

impl Folder {
    fn path(&self) -> &Path {
        match self {
            Self::Kept(path) => path,
            Self::Temporary(folder) => folder.path(),
        }
    }
}

impl Recorder {
    pub(super) fn new(
        source: Source,
        keep: Option<&Path>,
        stop: &'static AtomicBool,
    ) -> Result<Self, CliError> {
        let failed = |path: PathBuf| move |source| CliError::Write { path, source };
        let folder = match keep {
            Some(path) => {
                std::fs::create_dir_all(path).map_err(failed(path.to_owned()))?;
                Folder::Kept(path.to_owned())
            }
            None => {
                let folder = tempfile::Builder::new().prefix("stealtime-try-").tempdir();
                Folder::Temporary(folder.map_err(failed(std::env::temp_dir()))?)
            }
        };
        Ok(Self {
            source,
            folder,
            stop,
            slices: 0,
        })
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Ends a trial that was stopped before anything was turned.
    pub(super) fn check_stopped(&self) -> Result<(), CliError> {
        match self.is_stopped() {
            true => Err(CliError::Stopped),
            false => Ok(()),
        }
    }

    pub(super) fn wait(&self, time: Duration) {
        let begin = Instant::now();
        while begin.elapsed() < time && !self.is_stopped() {
            std::thread::sleep(STEP.min(time));
        }
    }

    /// The recording before anything is turned.
    pub(super) fn baseline(&mut self, time: Duration) -> Result<Replayable, CliError> {
        let path = self.folder.path().join("baseline.dat");
        let snapshot = self.snapshot_file();
        let path = match &self.source {
            Source::Host => {
                record::quietly(&path, time, self.stop, true)?;
                path
            }
            Source::Folder { recordings, root } => {
                let text = Snapshot::read(root).map_err(stopped)?.to_json();
                std::fs::write(&snapshot, text).map_err(|source| CliError::Write {
                    path: snapshot.clone(),
                    source,
                })?;
                recordings.join("a.dat")
            }
        };
        self.check_stopped()?;
        let is_given = matches!(self.source, Source::Folder { .. });
        let read = self.read(&path, is_given.then_some(snapshot.as_path()))?;
        if let (Some(host), false) = (&read.snapshot, is_given) {
            std::fs::write(&snapshot, host.to_json()).map_err(|source| CliError::Write {
                path: snapshot,
                source,
            })?;
        }
        Ok(read)
    }

    /// A slice of a turn.
    pub(super) fn slice(
        &mut self,
        turn: usize,
        side: Side,
        time: Duration,
    ) -> Result<Recorded, CliError> {
        self.slices += 1;
        let letter = match side {
            Side::A => 'a',
            Side::B => 'b',
        };
        let name = format!("{:03}-{letter}-{:04}.dat", turn + 1, self.slices);
        let path = self.folder.path().join(name);
        let path = match &self.source {
            Source::Host => {
                // The baseline's snapshot names the VMs: reading another one would disturb the turn.
                record::quietly(&path, time, self.stop, false)?;
                // The end of a trial need not wait for the reading.
                self.check_stopped()?;
                path
            }
            Source::Folder { recordings, .. } => {
                self.wait(time);
                recordings.join(format!("{letter}.dat"))
            }
        };
        let snapshot = self.snapshot_file();
        let snapshot = snapshot.exists().then_some(snapshot.as_path());
        let recorded = self.read(&path, snapshot)?.recorded;
        if let (Source::Host, Folder::Temporary(_)) = (&self.source, &self.folder) {
            // A trial of an hour would fill the disk. What stays is removed with the folder.
            let _ = std::fs::remove_file(&path);
        }
        Ok(recorded)
    }

    fn snapshot_file(&self) -> PathBuf {
        self.folder.path().join("host.json")
    }

    fn read(&self, path: &Path, snapshot: Option<&Path>) -> Result<Replayable, CliError> {
        let recording = Recording {
            trace: path.to_owned(),
            tsc_khz: None,
            formats_from: None,
            vm_of: Vec::new(),
            snapshot: snapshot.map(Path::to_owned),
        };
        let read = replayable::read(path, &recording, true);
        read.map_err(|error| match error {
            CliError::WhatIf(reason) => stopped(format!("a recording cannot be used: {reason}")),
            error => error,
        })
    }
}

/// Says what became of each value.
pub(super) fn tell(outcomes: &[Outcome]) {
    for line in text::restored(outcomes).lines() {
        output::note_safe(line);
    }
}

/// Values that could not be taken back are an error.
pub(super) fn check(outcomes: &[Outcome]) -> Result<(), CliError> {
    let failed = outcomes
        .iter()
        .filter(|outcome| matches!(outcome.fate, Fate::Failed { .. }));
    let failed: Vec<String> = failed
        .map(|outcome| format!("{} was {}", outcome.target, outcome.former))
        .collect();
    match failed.is_empty() {
        true => Ok(()),
        false => Err(stopped(format!(
            "not taken back: {}; set these by hand, or run `stealtime try --restore`",
            failed.join("; ")
        ))),
    }
}

pub(super) fn needs_root(error: StoreError) -> CliError {
    match &error {
        StoreError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => {
            stopped(format!("{error}: turning knobs needs root"))
        }
        // The folder of an earlier trial, which root has made.
        StoreError::NotPrivate(path) if !rustix::process::geteuid().is_root() => stopped(format!(
            "{}: it is not of this user: turning knobs needs root",
            path.display()
        )),
        _ => stopped(error),
    }
}

//! A file that must stay as it is while it is read.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use stealtime_events::Event;

use crate::{EventSource, NameTable, ReadError, SourceInfo};

/// An open file, with its state at that time. A rename over its path does not change it.
pub(crate) struct Opened {
    path: PathBuf,
    file: File,
    state: (u64, SystemTime),
}

impl Opened {
    pub(crate) fn new(path: &Path, file: File) -> io::Result<Self> {
        Ok(Self {
            path: path.to_path_buf(),
            state: state(&file)?,
            file,
        })
    }

    fn has_changed(&self) -> bool {
        state(&self.file).map_or(true, |now| now != self.state)
    }
}

/// Length and time of the last change.
fn state(file: &File) -> io::Result<(u64, SystemTime)> {
    let metadata = file.metadata()?;
    Ok((metadata.len(), metadata.modified()?))
}

/// The events of a file. They end with an error if the file has changed since it was opened: its parts are
/// then of different times.
pub(crate) struct Unchanged {
    source: Box<dyn EventSource>,
    opened: Opened,
    ended: bool,
}

impl Unchanged {
    pub(crate) fn new(source: Box<dyn EventSource>, opened: Opened) -> Self {
        Self {
            source,
            opened,
            ended: false,
        }
    }

    /// The end of the events, for the reason `result`. A change explains an error too.
    fn end<T>(&mut self, result: Result<T, ReadError>) -> Result<T, ReadError> {
        self.ended = true;
        match self.opened.has_changed() {
            true => Err(ReadError::Changed {
                path: self.opened.path.clone(),
            }),
            false => result,
        }
    }
}

impl EventSource for Unchanged {
    fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        if self.ended {
            return Ok(None);
        }
        match self.source.next_event() {
            Ok(Some(event)) => Ok(Some(event)),
            end => self.end(end),
        }
    }

    fn next_events(&mut self, limit: usize, batch: &mut Vec<Event>) -> Result<bool, ReadError> {
        if self.ended {
            return Ok(false);
        }
        match self.source.next_events(limit, batch) {
            Ok(true) => Ok(true),
            end => self.end(end),
        }
    }

    fn names(&self) -> &NameTable {
        self.source.names()
    }

    fn info(&self) -> &SourceInfo {
        self.source.info()
    }

    fn progress(&self) -> (u64, Option<u64>) {
        self.source.progress()
    }
}

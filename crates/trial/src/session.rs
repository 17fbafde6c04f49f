//! A trial: former values on disk, a watchdog, and turns.

use std::io;
use std::process::Command;

use crate::ledger::{Entry, Ledger, RunFolder, StoreError};
use crate::resolve::{Refusal, Wanted};
use crate::restore::{Outcome, settle};
use crate::target::{AccessError, Host};
use crate::turns::Side;
use crate::watchdog::Watchdog;

/// Why a trial cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// Former values cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is no watchdog.
    #[error("the watchdog process that restores after a kill: {0}; nothing was turned")]
    NoWatchdog(io::Error),
    /// The watchdog ended during the trial.
    #[error("the watchdog process has ended: without it a kill would leave the tried values")]
    WatchdogEnded,
    /// A value cannot be read or set.
    #[error("{knob}: {target}: {source}")]
    Access {
        /// The knob.
        knob: String,
        /// The file or thread.
        target: String,
        /// Why.
        source: AccessError,
    },
    /// The kernel took another value than was written.
    #[error("{knob}: {target} reads {present:?} after {written:?} was written")]
    ReadBack {
        /// The knob.
        knob: String,
        /// The file or thread.
        target: String,
        /// What was written.
        written: String,
        /// The present value.
        present: String,
    },
    /// Another program turns the same knob.
    #[error(
        "{knob}: {target} is {present:?}, not {expected:?}: another program has set it meanwhile"
    )]
    Foreign {
        /// The knob.
        knob: String,
        /// The file or thread.
        target: String,
        /// The value that the trial has set.
        expected: String,
        /// The present value.
        present: String,
    },
}

fn access(entry: &Entry) -> impl FnOnce(AccessError) -> TrialError + '_ {
    |source| TrialError::Access {
        knob: entry.knob.clone(),
        target: entry.target.to_string(),
        source,
    }
}

/// Looks at what is wanted, without writing: entries with their present values, and what cannot be turned.
/// A value that is there already gives no entry.
#[must_use]
pub fn prepare(host: &Host, wanted: &[Wanted]) -> (Vec<Entry>, Vec<Refusal>) {
    let mut entries: Vec<Entry> = Vec::new();
    let mut refusals = Vec::new();
    for want in wanted {
        let mut refuse = |reason: String| {
            refusals.push(Refusal {
                knob: want.knob.clone(),
                reason,
            });
        };
        let target = &want.target;
        if entries.iter().any(|entry| entry.target == *target) {
            refuse(format!("{target} is set twice"));
            continue;
        }
        let looked = host
            .check_writable(target)
            .and_then(|()| Ok((host.identity(target)?, host.read(target)?)));
        let (identity, former) = match looked {
            Ok(looked) => looked,
            Err(AccessError::Gone) => {
                refuse(format!("{target}: there is none"));
                continue;
            }
            Err(error) => {
                refuse(format!("{target}: {error}"));
                continue;
            }
        };
        entries.push(Entry {
            knob: want.knob.clone(),
            target: target.clone(),
            identity,
            former,
            tried: want.value.clone(),
        });
    }
    entries.retain(|entry| !entry.target.agrees(&entry.tried, &entry.former));
    (entries, refusals)
}

/// A trial. Dropped, it restores.
#[derive(Debug)]
pub struct Session {
    host: Host,
    folder: RunFolder,
    ledger: Ledger,
    watchdog: Watchdog,
    side: Side,
    is_over: bool,
}

impl Session {
    /// Writes the former values to the disk and starts the watchdog. Then it sets each value to itself: a
    /// file that does not take its own value is refused so. `watchdog` is a command that calls
    /// [`crate::watch`].
    ///
    /// # Errors
    ///
    /// Nothing was changed.
    pub fn begin(
        host: Host,
        folder: RunFolder,
        entries: Vec<Entry>,
        watchdog: Command,
    ) -> Result<Self, TrialError> {
        // The question may have waited for long: another value is not the trial's to restore.
        for entry in &entries {
            check_present(&host, entry, &entry.former)?;
        }
        let ledger = Ledger::new(&host, entries);
        folder.save(&ledger)?;
        let watchdog = match Watchdog::start(watchdog, folder.lock()) {
            Ok(watchdog) => watchdog,
            Err(error) => {
                folder.remove()?;
                return Err(TrialError::NoWatchdog(error));
            }
        };
        let session = Self {
            host,
            folder,
            ledger,
            watchdog,
            side: Side::A,
            is_over: false,
        };
        for entry in &session.ledger.entries {
            session.set(entry, &entry.former)?;
        }
        Ok(session)
    }

    /// Gives all knobs the values of a side.
    ///
    /// # Errors
    ///
    /// [`TrialError`]; some knobs may have been turned. The caller finishes.
    pub fn turn(&mut self, side: Side) -> Result<(), TrialError> {
        self.beat()?;
        for entry in &self.ledger.entries {
            let (expected, value) = (value(entry, self.side), value(entry, side));
            check_present(&self.host, entry, expected)?;
            self.set(entry, value)?;
        }
        self.side = side;
        if side == Side::B && !self.ledger.is_verified {
            self.ledger.is_verified = true;
            self.folder.save(&self.ledger)?;
        }
        // A watchdog that lost patience meanwhile restores before this turn ends, or has ended.
        self.beat()
    }

    /// Tells the watchdog that the trial goes on.
    ///
    /// # Errors
    ///
    /// [`TrialError::WatchdogEnded`]
    pub fn beat(&mut self) -> Result<(), TrialError> {
        let beat = self.watchdog.beat();
        beat.map_err(|_| TrialError::WatchdogEnded)
    }

    /// Takes everything back.
    ///
    /// # Errors
    ///
    /// The ledger cannot be removed; values are back.
    pub fn finish(mut self) -> Result<Vec<Outcome>, StoreError> {
        self.take_back()
    }

    fn take_back(&mut self) -> Result<Vec<Outcome>, StoreError> {
        self.is_over = true;
        let outcomes = settle(&self.host, &self.folder, &mut self.ledger);
        self.watchdog.end();
        outcomes
    }

    /// Writes a value and reads it back.
    fn set(&self, entry: &Entry, value: &str) -> Result<(), TrialError> {
        let written = self.host.write(&entry.target, value);
        written.map_err(access(entry))?;
        let present = self.host.read(&entry.target).map_err(access(entry))?;
        match entry.target.agrees(value, &present) {
            true => Ok(()),
            false => Err(TrialError::ReadBack {
                knob: entry.knob.clone(),
                target: entry.target.to_string(),
                written: value.to_owned(),
                present,
            }),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.is_over {
            // The watchdog tries again if this fails.
            let _ = self.take_back();
        }
    }
}

/// Whether a target is the one that was looked at, and has the value that it should have.
fn check_present(host: &Host, entry: &Entry, expected: &str) -> Result<(), TrialError> {
    let identity = host.identity(&entry.target).map_err(access(entry))?;
    if identity != entry.identity {
        return Err(access(entry)(AccessError::Renewed));
    }
    let present = host.read(&entry.target).map_err(access(entry))?;
    match entry.target.agrees(expected, &present) {
        true => Ok(()),
        false => Err(TrialError::Foreign {
            knob: entry.knob.clone(),
            target: entry.target.to_string(),
            expected: expected.to_owned(),
            present,
        }),
    }
}

fn value(entry: &Entry, side: Side) -> &str {
    match side {
        Side::A => &entry.former,
        Side::B => &entry.tried,
    }
}

//! From a ledger to the former values.

use std::time::Duration;

use serde::Serialize;

use crate::ledger::{Entry, Ledger, RunFolder, StoreError, boot_id};
use crate::target::Host;

/// A busy control group refuses for moments.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

/// What became of a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "fate", rename_all = "snake_case")]
pub enum Fate {
    /// It was set back.
    Back,
    /// It had the former value.
    Already,
    /// The host has rebooted: no value of a trial outlives that.
    Rebooted,
    /// The control group or thread vanished meanwhile.
    Gone {
        /// `it is gone`, `it was made anew`.
        reason: String,
    },
    /// Another program set another value meanwhile, which stays.
    Foreign {
        /// The value.
        present: String,
    },
    /// It cannot be set back.
    Failed {
        /// What the kernel said.
        reason: String,
    },
}

/// A value after a trial.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// The knob.
    pub knob: String,
    /// The file or thread.
    pub target: String,
    /// The former value.
    pub former: String,
    /// What became of it.
    #[serde(flatten)]
    pub fate: Fate,
}

/// Sets former values, the last one first.
#[must_use]
pub fn restore(host: &Host, ledger: &Ledger) -> Vec<Outcome> {
    let is_this_boot = ledger.boot_id == boot_id(host);
    let outcome = |entry: &Entry| Outcome {
        knob: entry.knob.clone(),
        target: entry.target.to_string(),
        former: entry.former.clone(),
        fate: match is_this_boot {
            true => persistent(host, entry, ledger.is_verified),
            false => Fate::Rebooted,
        },
    };
    ledger.entries.iter().rev().map(outcome).collect()
}

/// Restores what a folder's ledger has. The ledger stays for values that cannot be set back.
///
/// # Errors
///
/// The ledger cannot be read, written or removed.
pub fn recover(host: &Host, folder: &RunFolder) -> Result<Option<Vec<Outcome>>, StoreError> {
    let Some(mut ledger) = folder.load()? else {
        return Ok(None);
    };
    let outcomes = settle(host, folder, &mut ledger)?;
    Ok(Some(outcomes))
}

/// Restores, and keeps in the folder what is left to do.
pub(crate) fn settle(
    host: &Host,
    folder: &RunFolder,
    ledger: &mut Ledger,
) -> Result<Vec<Outcome>, StoreError> {
    let outcomes = restore(host, ledger);
    let mut fates = outcomes.iter().rev();
    ledger.entries.retain(|_| {
        let outcome = fates.next();
        outcome.is_some_and(|outcome| matches!(outcome.fate, Fate::Failed { .. }))
    });
    match ledger.entries.is_empty() {
        true => folder.remove()?,
        false => folder.save(ledger)?,
    }
    Ok(outcomes)
}

fn persistent(host: &Host, entry: &Entry, is_verified: bool) -> Fate {
    let mut fate = once(host, entry, is_verified);
    for _ in 1..TRIES {
        if !matches!(fate, Fate::Failed { .. }) {
            break;
        }
        std::thread::sleep(PAUSE);
        fate = once(host, entry, is_verified);
    }
    fate
}

fn once(host: &Host, entry: &Entry, is_verified: bool) -> Fate {
    let fate = |error: crate::AccessError| match error.is_gone() {
        true => Fate::Gone {
            reason: error.to_string(),
        },
        false => Fate::Failed {
            reason: error.to_string(),
        },
    };
    let target = &entry.target;
    match host.identity(target) {
        Ok(identity) if identity == entry.identity => {}
        Ok(_) => return fate(crate::AccessError::Renewed),
        Err(error) => return fate(error),
    }
    let present = match host.read(target) {
        Ok(present) => present,
        Err(error) => return fate(error),
    };
    if target.agrees(&entry.former, &present) {
        return Fate::Already;
    }
    if is_verified && !target.agrees(&entry.tried, &present) {
        return Fate::Foreign { present };
    }
    if let Err(error) = host.write(target, &entry.former) {
        return fate(error);
    }
    match host.read(target) {
        Ok(present) if target.agrees(&entry.former, &present) => Fate::Back,
        Ok(present) => Fate::Failed {
            reason: format!("it reads {present:?} after {:?} was written", entry.former),
        },
        Err(error) => fate(error),
    }
}

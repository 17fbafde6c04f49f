//! Former values on disk, and the lock of the one trial that a host has at a time.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::target::{Host, Target};

/// The version of the file. Another one is refused, with its path.
const VERSION: u32 = 1;
const NAME: &str = "try.json";
const LOCK: &str = "try.lock";
/// A watchdog that restores keeps the lock: it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// A value that a trial turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The knob, as named by the user.
    pub knob: String,
    /// What has the value.
    pub target: Target,
    /// [`Host::identity`] of it.
    pub identity: u64,
    /// The value before the trial.
    pub former: String,
    /// The value of the B turns.
    pub tried: String,
}

/// What a trial has to take back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ledger {
    version: u32,
    /// The boot that the values belong to.
    pub boot_id: String,
    /// The process of the trial.
    pub pid: u32,
    /// Whether all values were set once and read back as written. Until then a value that is neither
    /// the former nor the tried one is taken for the trial's own.
    pub is_verified: bool,
    /// The values, in the order of turning.
    pub entries: Vec<Entry>,
}

impl Ledger {
    /// The ledger of this process.
    #[must_use]
    pub fn new(host: &Host, entries: Vec<Entry>) -> Self {
        Self {
            version: VERSION,
            boot_id: boot_id(host),
            pid: std::process::id(),
            is_verified: false,
            entries,
        }
    }
}

/// The id of a host's boot; empty where it is unknown.
pub(crate) fn boot_id(host: &Host) -> String {
    let text = fs::read_to_string(host.below("/proc/sys/kernel/random/boot_id"));
    text.unwrap_or_default().trim().to_owned()
}

/// Why a ledger cannot be kept or read.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The folder or a file of it cannot be used.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others could have written what root would restore.
    #[error("{0}: others may write there: it must be a directory of this user alone (mode 700)")]
    NotPrivate(PathBuf),
    /// Another trial runs.
    #[error("another `stealtime try` runs on this host: it holds {0}")]
    Busy(PathBuf),
    /// The file is no ledger of this version.
    #[error(
        "{path}: {reason}; it has former values of a trial: restore them by hand, then remove it"
    )]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}

fn io_error(path: &Path) -> impl FnOnce(io::Error) -> StoreError + '_ {
    |source| StoreError::Io {
        path: path.to_owned(),
        source,
    }
}

/// The folder with the ledger: `/run/stealtime`. Its lock is held while it is open.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    lock: Option<File>,
}

impl RunFolder {
    /// Makes the folder if it is missing, and takes the lock.
    ///
    /// # Errors
    ///
    /// Another trial runs, or the folder is not private.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let created = fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path);
        created.map_err(io_error(path))?;
        check_private(path)?;
        let name = path.join(LOCK);
        let mut options = fs::OpenOptions::new();
        let options = options.create(true).truncate(false).write(true).mode(0o600);
        let lock = options.open(&name).map_err(io_error(&name))?;
        let begin = Instant::now();
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            match error {
                Errno::WOULDBLOCK if begin.elapsed() > PATIENCE => {
                    return Err(StoreError::Busy(name));
                }
                Errno::WOULDBLOCK => std::thread::sleep(Duration::from_millis(20)),
                Errno::INTR => {}
                error => return Err(io_error(&name)(error.into())),
            }
        }
        Ok(Self {
            path: path.to_owned(),
            lock: Some(lock),
        })
    }

    /// The folder for a watchdog, which inherits the lock of its session.
    pub(crate) fn inherited(path: &Path) -> Result<Self, StoreError> {
        check_private(path)?;
        Ok(Self {
            path: path.to_owned(),
            lock: None,
        })
    }

    pub(crate) fn lock(&self) -> Option<&File> {
        self.lock.as_ref()
    }

    /// The ledger that was left behind, if there is one.
    ///
    /// # Errors
    ///
    /// It cannot be read, or is of another version.
    pub fn load(&self) -> Result<Option<Ledger>, StoreError> {
        let path = self.path.join(NAME);
        let text = match fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(io_error(&path)(error)),
        };
        let unreadable = |reason: String| StoreError::Unreadable {
            path: path.clone(),
            reason,
        };
        let ledger: Ledger =
            serde_json::from_str(&text).map_err(|error| unreadable(error.to_string()))?;
        match ledger.version {
            VERSION => Ok(Some(ledger)),
            version => Err(unreadable(format!("version {version}, not {VERSION}"))),
        }
    }

    /// Writes a ledger, whole or not at all, and to the disk.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn save(&self, ledger: &Ledger) -> Result<(), StoreError> {
        let path = self.path.join(NAME);
        let part = self.path.join("try.json.new");
        let text = serde_json::to_string_pretty(ledger);
        let text = text.map_err(|error| io_error(&path)(error.into()))?;
        let mut options = fs::OpenOptions::new();
        let options = options.create(true).truncate(true).write(true).mode(0o600);
        let mut file = options.open(&part).map_err(io_error(&part))?;
        file.write_all(text.as_bytes()).map_err(io_error(&part))?;
        file.sync_all().map_err(io_error(&part))?;
        fs::rename(&part, &path).map_err(io_error(&path))?;
        // The name is on the disk once its directory is.
        let folder = File::open(&self.path).and_then(|folder| folder.sync_all());
        folder.map_err(io_error(&self.path))
    }

    /// Removes the ledger: nothing is to be taken back.
    ///
    /// # Errors
    ///
    /// The file cannot be removed.
    pub fn remove(&self) -> Result<(), StoreError> {
        let path = self.path.join(NAME);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(io_error(&path)(error)),
            _ => Ok(()),
        }
    }
}

/// Root writes what the ledger says, so that no other user may write the ledger.
fn check_private(path: &Path) -> Result<(), StoreError> {
    let meta = fs::symlink_metadata(path).map_err(io_error(path))?;
    let is_own = meta.uid() == rustix::process::geteuid().as_raw();
    match meta.is_dir() && is_own && meta.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(StoreError::NotPrivate(path.to_owned())),
    }
}

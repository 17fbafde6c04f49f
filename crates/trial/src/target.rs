//! The values of a running host that a trial turns.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, getpriority_process, setpriority_process};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use stealtime_host::cpulist;

use crate::scheduler;

/// Field `starttime` of proc_pid_stat(5), counted behind the name: `state` is field 3.
const START_TIME: usize = 22 - 3;
/// Bits of a file's mode that let someone write it. kernfs refuses writers without any, root too.
const WRITABLE: u32 = 0o222;

/// What has a value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Target {
    /// A file with one value.
    File {
        /// Its path, from `/`.
        path: String,
    },
    /// A file that lists its choices, the current one in parentheses.
    Choice {
        /// Its path, from `/`.
        path: String,
    },
    /// A word in a file of features, with `NO_` before it while it is off.
    Feature {
        /// The path, from `/`.
        path: String,
        /// The feature, without `NO_`.
        feature: String,
    },
    /// The nice value of a thread.
    Nice {
        /// Its id.
        tid: i32,
    },
    /// The CPUs that a thread may use.
    Affinity {
        /// Its id.
        tid: i32,
    },
    /// The scheduler of the host's tasks: `fair`, or `scx-stealtime` while its program runs.
    Scheduler,
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path } | Self::Choice { path } => f.write_str(path),
            Self::Feature { path, feature } => write!(f, "{path} ({feature})"),
            Self::Nice { tid } => write!(f, "nice of thread {tid}"),
            Self::Affinity { tid } => write!(f, "CPUs of thread {tid}"),
            Self::Scheduler => f.write_str("scheduler of sched_ext"),
        }
    }
}

/// No program of the scheduler is found: a sentence with what to do.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct NoProgram(pub String);

/// Why a target cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum AccessError {
    /// The file or the thread has vanished.
    #[error("it is gone")]
    Gone,
    /// Another control group has the path, or another thread the id.
    #[error("it was made anew")]
    Renewed,
    /// The file has no right to be written for anyone.
    #[error("it is read-only")]
    ReadOnly,
    /// The text is no value of the target.
    #[error("{0:?} is no value of it")]
    Value(String),
    /// The scheduler cannot be loaded or ended: the reason.
    #[error("{0}")]
    Scheduler(String),
    /// There is no program that loads it.
    #[error(transparent)]
    NoProgram(#[from] NoProgram),
    /// The kernel refused.
    #[error("{action}: {source}")]
    Kernel {
        /// What was tried.
        action: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
}

impl AccessError {
    fn new(action: &'static str, source: io::Error) -> Self {
        match source.raw_os_error() {
            // ENODEV: the file was open while its control group was removed.
            Some(libc::ENOENT | libc::ESRCH | libc::ENODEV) => Self::Gone,
            _ => Self::Kernel { action, source },
        }
    }

    /// Whether there is nothing left to restore.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        matches!(self, Self::Gone | Self::Renewed)
    }
}

/// A host below a root directory. With another root than `/` files stand for the kernel: attributes of
/// threads are in `proc/TID/nice` and `proc/TID/affinity`.
#[derive(Clone, Debug)]
pub struct Host {
    root: PathBuf,
    program: Result<PathBuf, NoProgram>,
    loaded: Arc<Mutex<Option<Child>>>,
}

impl Host {
    /// The host below this directory.
    #[must_use]
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            program: Err(NoProgram("no program of the scheduler is named".to_owned())),
            loaded: Arc::default(),
        }
    }

    /// The same with the program of the scheduler, `scx_stealtime`. Without one, for this reason, it can
    /// only be ended.
    #[must_use]
    pub fn with_scheduler(self, program: Result<PathBuf, NoProgram>) -> Self {
        Self { program, ..self }
    }

    /// The scheduler's process, if this one has loaded it.
    pub(crate) fn loaded(&self) -> MutexGuard<'_, Option<Child>> {
        self.loaded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn program(&self) -> Result<&Path, AccessError> {
        let program = self.program.as_deref();
        program.map_err(|reason| reason.clone().into())
    }

    fn is_live(&self) -> bool {
        self.root == Path::new("/")
    }

    pub(crate) fn below(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// Tells a file or thread from a later one of the same name. It is the inode of the file's directory, or
    /// the start of the thread in ticks.
    ///
    /// # Errors
    ///
    /// The target is gone or cannot be read.
    pub fn identity(&self, target: &Target) -> Result<u64, AccessError> {
        match target {
            // Directories of /proc/sys get another inode whenever their entries leave the cache.
            Target::File { path } if path.starts_with("/proc/") => Ok(0),
            // A host has one.
            Target::Scheduler => Ok(0),
            Target::File { path } | Target::Choice { path } | Target::Feature { path, .. } => {
                let path = self.below(path);
                let folder = path.parent().unwrap_or(Path::new("/"));
                let meta = fs::metadata(folder);
                Ok(meta.map_err(|error| AccessError::new("read", error))?.ino())
            }
            Target::Nice { tid } | Target::Affinity { tid } => {
                let text = fs::read_to_string(self.below(&format!("/proc/{tid}/stat")));
                let text = text.map_err(|error| AccessError::new("read", error))?;
                // A name may hold anything: the last parenthesis ends it.
                let fields = text.rsplit_once(')').map_or("", |halves| halves.1);
                let start = fields.split_ascii_whitespace().nth(START_TIME);
                start
                    .and_then(|start| start.parse().ok())
                    .ok_or(AccessError::Value(text))
            }
        }
    }

    /// The present value.
    ///
    /// # Errors
    ///
    /// The target is gone or cannot be read.
    pub fn read(&self, target: &Target) -> Result<String, AccessError> {
        match target {
            Target::File { path } => self.text(path),
            Target::Choice { path } => {
                let text = self.text(path)?;
                let chosen = text.split_once('(').and_then(|rest| rest.1.split_once(')'));
                match chosen {
                    Some((word, _)) => Ok(word.to_owned()),
                    None => Ok(text),
                }
            }
            Target::Feature { path, feature } => {
                let text = self.text(path)?;
                let is_meant = |word: &&str| word.strip_prefix("NO_").unwrap_or(word) == feature;
                let word = text.split_ascii_whitespace().find(is_meant);
                word.map(str::to_owned).ok_or(AccessError::Gone)
            }
            Target::Nice { tid } if self.is_live() => {
                let nice = getpriority_process(Some(pid(*tid)?));
                let nice = nice.map_err(|error| AccessError::new("getpriority", error.into()))?;
                Ok(nice.to_string())
            }
            Target::Affinity { tid } if self.is_live() => {
                let set = sched_getaffinity(Some(pid(*tid)?));
                let set =
                    set.map_err(|error| AccessError::new("sched_getaffinity", error.into()))?;
                let cpus = (0u32..).take(CpuSet::MAX_CPU);
                let cpus: BTreeSet<u32> = cpus.filter(|&cpu| set.is_set(cpu as usize)).collect();
                Ok(cpulist::format(&cpus))
            }
            Target::Nice { tid } => self.text(&format!("/proc/{tid}/nice")),
            Target::Affinity { tid } => self.text(&format!("/proc/{tid}/affinity")),
            Target::Scheduler => scheduler::read(self),
        }
    }

    /// Sets a value.
    ///
    /// # Errors
    ///
    /// The target is gone, or the kernel refuses the value.
    pub fn write(&self, target: &Target, value: &str) -> Result<(), AccessError> {
        match target {
            Target::File { path } => self.put(path, value),
            Target::Choice { path } | Target::Feature { path, .. } if self.is_live() => {
                self.put(path, value)
            }
            Target::Choice { path } => {
                let words = self.text(path)?.replace(['(', ')'], "");
                let mark = |word: &str| match word == value {
                    true => format!("({word})"),
                    false => word.to_owned(),
                };
                let words: Vec<String> = words.split(' ').map(mark).collect();
                self.put(path, &words.join(" "))
            }
            Target::Feature { path, .. } => {
                let former = self.read(target)?;
                let text = self.text(path)?;
                let turn = |word: &str| match word == former {
                    true => value.to_owned(),
                    false => word.to_owned(),
                };
                let words: Vec<String> = text.split(' ').map(turn).collect();
                self.put(path, &words.join(" "))
            }
            Target::Nice { tid } if self.is_live() => {
                let nice = value.parse();
                let nice = nice.map_err(|_| AccessError::Value(value.to_owned()))?;
                let set = setpriority_process(Some(pid(*tid)?), nice);
                set.map_err(|error| AccessError::new("setpriority", error.into()))
            }
            Target::Affinity { tid } if self.is_live() => {
                let cpus = cpulist::parse(value).filter(|cpus| !cpus.is_empty());
                let cpus = cpus.ok_or_else(|| AccessError::Value(value.to_owned()))?;
                let mut set = CpuSet::new();
                for cpu in cpus {
                    let cpu = cpu as usize;
                    if cpu >= CpuSet::MAX_CPU {
                        return Err(AccessError::Value(value.to_owned()));
                    }
                    set.set(cpu);
                }
                let set = sched_setaffinity(Some(pid(*tid)?), &set);
                set.map_err(|error| AccessError::new("sched_setaffinity", error.into()))
            }
            Target::Nice { tid } => self.put(&format!("/proc/{tid}/nice"), value),
            Target::Affinity { tid } => self.put(&format!("/proc/{tid}/affinity"), value),
            Target::Scheduler => scheduler::write(self, value),
        }
    }

    /// Whether the target may be written, as far as that shows without writing.
    ///
    /// # Errors
    ///
    /// The reason why not.
    pub fn check_writable(&self, target: &Target) -> Result<(), AccessError> {
        let path = match target {
            Target::File { path } | Target::Choice { path } | Target::Feature { path, .. } => path,
            Target::Nice { .. } | Target::Affinity { .. } => return Ok(()),
            Target::Scheduler => return scheduler::check(self),
        };
        let path = self.below(path);
        let meta = fs::metadata(&path).map_err(|error| AccessError::new("read", error))?;
        if meta.mode() & WRITABLE == 0 {
            return Err(AccessError::ReadOnly);
        }
        let opened = fs::OpenOptions::new().write(true).open(&path);
        opened
            .map(drop)
            .map_err(|error| AccessError::new("open for writing", error))
    }

    pub(crate) fn text(&self, path: &str) -> Result<String, AccessError> {
        let text = fs::read_to_string(self.below(path));
        let text = text.map_err(|error| AccessError::new("read", error))?;
        Ok(text.trim_end().to_owned())
    }

    /// Writes a file by one system call, so that the kernel sees the value whole or not at all.
    fn put(&self, path: &str, value: &str) -> Result<(), AccessError> {
        let path = self.below(path);
        let failed = |error| AccessError::new("write", error);
        let line = format!("{value}\n");
        if self.is_live() || !path.is_file() {
            let mut file = fs::OpenOptions::new()
                .write(true)
                .open(path)
                .map_err(failed)?;
            return file.write_all(line.as_bytes()).map_err(failed);
        }
        // A kill between truncation and write would leave an empty file, which no kernel has.
        let renamed = path.with_extension("new");
        fs::write(&renamed, line).map_err(failed)?;
        fs::rename(renamed, path).map_err(failed)
    }
}

fn pid(tid: i32) -> Result<Pid, AccessError> {
    Pid::from_raw(tid).ok_or(AccessError::Gone)
}

impl Target {
    /// Whether a value that is read is the one that was written. The kernel writes switches as `Y` and `N`
    /// and adds the period that a quota leaves out.
    #[must_use]
    pub fn agrees(&self, written: &str, present: &str) -> bool {
        if let Self::Affinity { .. } = self {
            return cpulist::parse(written) == cpulist::parse(present);
        }
        let word = |word: &str| match word {
            "Y" | "y" => "1".to_owned(),
            "N" | "n" => "0".to_owned(),
            word => word.to_owned(),
        };
        let words = |text: &str| -> Vec<String> { text.split_whitespace().map(word).collect() };
        let (written, present) = (words(written), words(present));
        written == present || !written.is_empty() && present.starts_with(&written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_agree_in_the_kernel_s_spelling() {
        let file = Target::File {
            path: "/a".to_owned(),
        };
        for (written, present) in [("1", "Y"), ("N", "0"), ("max", "max 100000"), ("5", "5")] {
            assert!(file.agrees(written, present), "{written} {present}");
        }
        for (written, present) in [("1", "N"), ("5", "50"), ("", "5"), ("5 1", "5")] {
            assert!(!file.agrees(written, present), "{written} {present}");
        }
        let cpus = Target::Affinity { tid: 1 };
        assert!(cpus.agrees("0,1,2", "0-2"));
        assert!(!cpus.agrees("0-2", "0-3"));
    }

    #[test]
    fn threads_of_this_process_are_read_and_written() {
        let host = Host::new(Path::new("/"));
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        for target in [Target::Nice { tid }, Target::Affinity { tid }] {
            host.identity(&target).expect("a start");
            let value = host.read(&target).expect("a value");
            host.write(&target, &value).expect("the same value");
            assert!(target.agrees(&value, &host.read(&target).expect("a value")));
        }
        // Ids of threads end at 2^22.
        let gone = Target::Nice { tid: 1 << 23 };
        assert!(host.read(&gone).is_err_and(|error| error.is_gone()));
        assert!(host.identity(&gone).is_err_and(|error| error.is_gone()));
    }
}

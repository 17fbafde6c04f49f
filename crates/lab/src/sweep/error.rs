//! Why a sweep cannot begin or go on.

use std::io;
use std::path::{Path, PathBuf};

use stealtime_results::FolderError;

use super::plan::MOST_RUNS;
use crate::LoadError;

/// Why a sweep cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// Something varied is not known, or has no such values.
    #[error("--vary {knob}: {problem}")]
    Vary {
        /// What is varied.
        knob: String,
        /// What is wrong.
        problem: String,
    },
    /// A machine's profile, or the scenario on that machine.
    #[error("{0}")]
    Load(LoadError),
    /// Beyond what fits into memory.
    #[error("{runs} runs: at most {MOST_RUNS} are one sweep; vary less, or make several of it")]
    TooLarge {
        /// How many there would be.
        runs: u64,
    },
    /// Points that cannot be run.
    #[error(
        "{refused} of {points} points cannot be run; nothing was run\n  {}",
        problems.join("\n  ")
    )]
    Refused {
        /// How many.
        refused: u64,
        /// Of how many.
        points: u64,
        /// The first problems, each once.
        problems: Vec<String>,
    },
    /// Not even one thread for the runs was started.
    #[error("no thread for the runs: {source}; raise the limit of threads (pids)")]
    NoThread {
        /// What the operating system said.
        source: io::Error,
    },
    /// A file of the sweep.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A run, or results, could not be written.
    #[error(
        "{path}: {source}; {done} of {runs} runs are kept: when this is fixed, the same command \
         goes on from there"
    )]
    Kept {
        /// The file.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
        /// Runs in the journal.
        done: u64,
        /// All runs.
        runs: u64,
    },
    /// Another process works there.
    #[error(
        "{path}: another sweep is at work in this folder; wait for it, or choose another --out"
    )]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is another sweep's.
    #[error(
        "{path} is another sweep's folder: choose another --out, or throw its results away by \
         --restart\n  {}",
        differences.join("\n  ")
    )]
    Another {
        /// The folder.
        path: PathBuf,
        /// What is different.
        differences: Vec<String>,
    },
    /// The folder has other things in it.
    #[error("{path} is there, is not empty, and is no sweep's folder: choose another --out")]
    NotASweep {
        /// The folder.
        path: PathBuf,
    },
    /// A folder to merge is none of a sweep.
    #[error("{path}: no sweep's folder: it has no sweep.json")]
    NoSweep {
        /// The folder.
        path: PathBuf,
    },
    /// Folders to merge are of different sweeps.
    #[error("{path} is of another sweep than {first}:\n  {}", differences.join("\n  "))]
    Unlike {
        /// The folder.
        path: PathBuf,
        /// The first folder.
        first: PathBuf,
        /// What is different.
        differences: Vec<String>,
    },
    /// Two folders have one run with different results.
    #[error(
        "{path}: run {run} has other results than a folder before: settings and seed determine a run, so another \
         build of the simulator wrote one of them, or this is a defect: please report it"
    )]
    Disagree {
        /// The folder.
        path: PathBuf,
        /// The run, from 0 on.
        run: u64,
    },
    /// Merged folders lack runs.
    #[error(
        "{missing} of {runs} runs are in no folder; the others are in {path}\n  {}",
        parts.join("\n  ")
    )]
    Missing {
        /// The merged folder.
        path: PathBuf,
        /// Runs that no folder has.
        missing: u64,
        /// All runs.
        runs: u64,
        /// Shards or seeds that lack runs, as clauses.
        parts: Vec<String>,
    },
    /// The folder's description cannot be read.
    #[error(
        "{path}: {problem}; it was not written by this version: choose another --out, or remove the \
         folder"
    )]
    Manifest {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// A run comes out otherwise than it did.
    #[error(
        "{path}: run {run} gives other numbers now than when it was recorded: another build of the \
         simulator wrote this; choose another --out, or throw the {done} runs away by --restart"
    )]
    OtherBuild {
        /// The folder.
        path: PathBuf,
        /// Which run.
        run: u64,
        /// Runs in the folder.
        done: u64,
    },
    /// A metric that no run has.
    #[error("--metric {asked}: no such column; {help}")]
    Metric {
        /// The name given.
        asked: String,
        /// The nearest, or all.
        help: String,
    },
}

impl From<FolderError> for SweepError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::File { path, source } => Self::File { path, source },
            FolderError::Busy { path } => Self::Busy { path },
        }
    }
}

impl SweepError {
    pub(super) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }
}

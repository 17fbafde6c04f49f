//! What can fail.

use std::io;
use std::path::{Path, PathBuf};

use stealtime_results::FolderError;

/// Why a fleet's folder cannot be used, or a file of it not be written.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A file or folder.
    #[error("{path}: {source}", path = .path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// What the operating system says.
        source: io::Error,
    },
    /// The folder has other things in it.
    #[error("{path}: has files, and none of an analysis of recordings: choose another -o",
        path = .path.display())]
    NotAFleet {
        /// The folder.
        path: PathBuf,
    },
    /// The folder is of an analysis with other options, or of another version.
    #[error("{path}: has been analyzed otherwise ({difference}): choose another -o, or --restart",
        path = .path.display())]
    Another {
        /// The folder.
        path: PathBuf,
        /// What is different.
        difference: String,
    },
    /// Another process writes to the folder.
    #[error("{path}: another process writes to it", path = .path.display())]
    Busy {
        /// The folder.
        path: PathBuf,
    },
    /// A part does not have the form in which parts are written.
    #[error("{path}: damaged ({problem}): remove it, and the same command analyzes that recording again",
        path = .path.display())]
    Damaged {
        /// The part's file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

impl From<FolderError> for FleetError {
    fn from(error: FolderError) -> Self {
        match error {
            FolderError::File { path, source } => Self::File { path, source },
            FolderError::Busy { path } => Self::Busy { path },
        }
    }
}

impl FleetError {
    pub(crate) fn file(path: &Path, source: io::Error) -> Self {
        Self::File {
            path: path.to_owned(),
            source,
        }
    }

    pub(crate) fn damaged(path: &Path, problem: impl ToString) -> Self {
        Self::Damaged {
            path: path.to_owned(),
            problem: problem.to_string(),
        }
    }
}

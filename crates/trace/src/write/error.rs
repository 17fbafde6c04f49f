//! Why a recording cannot be written.

use std::io;
use std::path::PathBuf;

/// Why a recording cannot be written. The path of the file is the caller's to say.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The output cannot be written.
    #[error("{0}")]
    Io(io::Error),
    /// The pages have no room in the directory for temporary files.
    #[error(
        "{dir}: {source} (after {spooled} bytes); each CPU's events wait there for the last one: \
         set TMPDIR to a directory with more room",
        dir = dir.display()
    )]
    Spool {
        /// The directory for temporary files.
        dir: PathBuf,
        /// Bytes written until the error.
        spooled: u64,
        /// The operating system's error.
        source: io::Error,
    },
    /// Pages cannot be compressed.
    #[error("zstd: {0}")]
    Compress(io::Error),
    /// Version 6 has no compression.
    #[error("trace.dat version 6 cannot be compressed: write version 7, or none")]
    Version6Compressed,
    /// A clock's name that readers of the file could not find in it.
    #[error(
        "{0:?} is not the name of a trace clock: expected letters, digits, `-` and `_` as in \
         `mono` or `x86-tsc`"
    )]
    Clock(String),
    /// Events known by name only need an ID of 16 bits for each name.
    #[error(
        "more than {limit} different names of events that are known by name only: {name:?} has no \
         ID left"
    )]
    TooManyNames {
        /// How many there can be.
        limit: usize,
        /// The name that does not fit any more.
        name: String,
    },
}

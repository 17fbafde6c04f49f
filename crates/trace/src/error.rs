//! Errors of reading.

use std::path::PathBuf;

/// Why a trace cannot be read. Damage that leaves the rest readable is no error, but a note
/// ([`SourceInfo::notes`](crate::SourceInfo::notes)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// {path}: {source}
    #[error("{path}: {source}", path = path.display())]
    Open {
        /// The file as named by the user.
        path: PathBuf,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The input is none of the formats that are read here.
    #[error(
        "{input}: not a trace: starts with {found}; expected trace.dat (trace-cmd), perf.data or \
         ftrace text, plain or in zstd, xz or gzip"
    )]
    UnknownFormat {
        /// The input's name.
        input: String,
        /// The first bytes, escaped.
        found: String,
    },
    /// The input has no bytes at all.
    #[error("{input}: empty; was the recording stopped before anything was written?")]
    Empty {
        /// The input's name.
        input: String,
    },
    /// The file's own structure is broken where nothing can be read without it.
    #[error("{input}: offset {offset}: {problem}")]
    Corrupt {
        /// The input's name.
        input: String,
        /// Byte offset in the (decompressed) file.
        offset: u64,
        /// The content found, and the one expected.
        problem: String,
    },
    /// A version or option of the format that is not understood.
    #[error("{input}: {problem}")]
    Unsupported {
        /// The input's name.
        input: String,
        /// The version or option, and the way around it.
        problem: String,
    },
    /// Reading or unpacking failed.
    #[error("{input}: offset {offset}: {source}")]
    Io {
        /// The input's name.
        input: String,
        /// Byte offset in the (decompressed) file.
        offset: u64,
        /// The error of the operating system or the decoder.
        source: std::io::Error,
    },
    /// The unpacked recording has no room in the directory for temporary files.
    #[error(
        "{input}: {dir}: {source} (after {unpacked} bytes); the recording must be unpacked to be \
         read: set TMPDIR to a directory with more room, or unpack it yourself",
        dir = dir.display()
    )]
    Spool {
        /// The input's name.
        input: String,
        /// The directory for temporary files.
        dir: PathBuf,
        /// Bytes unpacked until the error.
        unpacked: u64,
        /// The operating system's error.
        source: std::io::Error,
    },
    /// The file is not that which was opened: what was read of it is of different times.
    #[error(
        "{path}: the file changed while it was read; wait until its writer ends, or read a copy",
        path = path.display()
    )]
    Changed {
        /// The file as named by the user.
        path: PathBuf,
    },
}

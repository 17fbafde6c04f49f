//! Why a trace cannot be read (any further).

use std::path::PathBuf;

/// Why a trace cannot be read. Whatever can be read all the same is read, and noted in
/// [`SourceInfo::notes`](crate::SourceInfo::notes) instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// {path}: {source}
    #[error("{path}: {source}", path = path.display())]
    Open {
        /// The file as named by the user.
        path: PathBuf,
        /// What the operating system said.
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
    #[error("{input}: offset {offset}: {what}")]
    Corrupt {
        /// The input's name.
        input: String,
        /// Byte offset in the (decompressed) file.
        offset: u64,
        /// What was found, and what was expected instead.
        what: String,
    },
    /// A version or option of the format that is not understood.
    #[error("{input}: {what}")]
    Unsupported {
        /// The input's name.
        input: String,
        /// What it is, and what could be done.
        what: String,
    },
    /// Reading or unpacking failed.
    #[error("{input}: offset {offset}: {source}")]
    Io {
        /// The input's name.
        input: String,
        /// Byte offset in the (decompressed) file.
        offset: u64,
        /// What the operating system or the decoder said.
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
        /// Bytes that were unpacked by then.
        unpacked: u64,
        /// What the operating system said.
        source: std::io::Error,
    },
}

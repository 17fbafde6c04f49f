//! Options of the writer.

use crate::Clock;

/// Version of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// Read by every trace-cmd and KernelShark.
    #[default]
    V6,
    /// Read by trace-cmd 3.0 and KernelShark 2.2, and later ones.
    V7,
}

/// Compression of the trace data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// zstd, in version 7 only; a reader without zstd cannot read it.
    Zstd,
}

/// Properties of the file and of the recorded host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Version of the file.
    pub version: Version,
    /// Compression of the trace data.
    pub compression: Compression,
    /// The clock of the events' times, [`crate::SourceInfo::clock`] of a recording that is re-written.
    /// An empty name: it is not known.
    pub clock: Clock,
    /// Number of the host's CPUs; 0: not known. CPUs with events count in any case.
    pub cpus: u32,
    /// `uname` of the host.
    pub uname: Option<String>,
    /// Tracepoints that are switched on. Those without events are described too, so that readers know
    /// that they were recorded.
    pub recorded: Vec<String>,
    /// The host's snapshot, JSON.
    pub snapshot: Option<String>,
}

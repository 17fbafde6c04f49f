//! What a user may say of a recording.

use std::path::PathBuf;

use crate::SourceInfo;

/// What a user may know of a recording that the recording does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The frequency of the clock of a recording in ticks (`x86-tsc`), in kHz.
    pub tsc_khz: Option<u64>,
    /// A perf.data or trace.dat file of the same boot of the same kernel. Its event formats are used
    /// where a perf.data file has lost its own.
    pub formats_from: Option<PathBuf>,
    /// The tracepoints to decode; `None`: all. A reader may only count the events of others
    /// ([`SourceInfo::counted`]), if the process of each vCPU's thread is known without them. A reader
    /// that would gain nothing decodes all.
    pub only: Option<Vec<&'static str>>,
    /// Compressed trace data of a trace.dat are unpacked by a thread of their own. The events are the same.
    pub unpack_ahead: bool,
}

/// Notes that the frequency of a clock that counts nanoseconds is of no use.
pub(crate) fn note_unused_khz(options: &Options, info: &mut SourceInfo) {
    if options.tsc_khz.is_some() {
        info.note_unused("--tsc-khz is not used: the recording's times are not ticks of the TSC");
    }
}

/// Notes that formats of another recording are of no use, because the container always has its own or
/// needs none.
pub(crate) fn note_unused_formats(options: &Options, info: &mut SourceInfo) {
    if let Some(path) = &options.formats_from {
        info.note_unused(format!(
            "--formats-from {} is not used: it is for perf.data files that have lost their event formats",
            path.display()
        ));
    }
}

//! From a path to events: what the input is, and which reader reads it.
//!
//! Compression and container are recognised by content, never by the file's name. Readers that need
//! to seek (`trace.dat`, `perf.data`) get a plain file as it is, and anything else (compressed, or
//! from a pipe) unpacked into a temporary file that has no name: up to [`SPOOL_IN_MEMORY`] bytes
//! stay in memory, what is longer lies in the directory that `TMPDIR` names (else the system's
//! default), which must have room for the unpacked recording. Text and the pipe mode of perf are
//! read as they come, and need no room.

mod detect;
mod stored;
mod stream;
mod xz;

use std::io::Read;
use std::path::{Path, PathBuf};

pub(crate) use stored::Stored;
pub(crate) use stream::{Damage, Progress, Stream};

use crate::perf::{self, PerfSource, TracingData};
use crate::text::TextSource;
use crate::{EventSource, ReadError, SourceInfo, TraceDat};
use detect::Container;

/// How much of an unpacked recording is kept in memory before a temporary file is made.
pub const SPOOL_IN_MEMORY: usize = 16 << 20;

/// How many bytes decide what the input is.
pub(crate) const HEAD: usize = 64 << 10;

/// What a user may know of a recording that the recording does not say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// The frequency of the clock of a recording whose times are ticks (`x86-tsc`), in kHz.
    pub tsc_khz: Option<u64>,
    /// A perf.data or trace.dat file of the same boot of the same kernel, whose event formats are
    /// used where a perf.data file has lost its own.
    pub formats_from: Option<PathBuf>,
    /// The tracepoints whose events are wanted; `None`: all. Events of others a reader may count
    /// ([`SourceInfo::counted`]) and not give, where it knows without them which process each vCPU's
    /// thread is of. A reader that would gain nothing gives all.
    pub only: Option<Vec<&'static str>>,
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

/// Opens a trace; `-` is the standard input.
///
/// # Errors
/// See [`open_with`].
pub fn open(path: &Path) -> Result<Box<dyn EventSource>, ReadError> {
    open_with(path, &Options::default())
}

/// Opens a trace; `-` is the standard input.
///
/// # Errors
/// The file cannot be opened or is a directory, is empty, is not a trace, or its beginning is so
/// damaged that nothing can be read; a temporary file is needed and cannot be written.
pub fn open_with(path: &Path, options: &Options) -> Result<Box<dyn EventSource>, ReadError> {
    source_of(Stream::open(path)?, options)
}

/// Whether a file begins as a recording does, compressed or not. What follows may be damaged.
///
/// # Errors
/// The file cannot be opened or read, or is a directory.
pub fn is_recording(path: &Path) -> Result<bool, ReadError> {
    Ok(detect::container(Stream::open(path)?.peek(HEAD)?).is_some())
}

/// Reads a trace from anything that gives bytes: a socket, a child's output, memory. `name` stands
/// for the input in messages.
///
/// # Errors
/// As [`open_with`].
pub fn open_read(
    name: &str,
    input: Box<dyn Read + Send>,
    options: &Options,
) -> Result<Box<dyn EventSource>, ReadError> {
    source_of(Stream::new(name.to_owned(), input, None, None)?, options)
}

fn source_of(mut stream: Stream, options: &Options) -> Result<Box<dyn EventSource>, ReadError> {
    let container = detect::container(stream.peek(HEAD)?);
    match container {
        Some(Container::PerfFile) => Ok(Box::new(PerfSource::file(Stored::new(stream)?, options)?)),
        Some(Container::PerfPipe) => Ok(Box::new(PerfSource::pipe(stream, options)?)),
        Some(Container::Text) => Ok(Box::new(TextSource::new(stream, options)?)),
        Some(Container::TraceDat) => trace_dat(Stored::new(stream)?, options),
        None => Err(unknown(stream)),
    }
}

/// A trace.dat file, its ticks converted if the user knows the frequency.
fn trace_dat(mut file: Stored, options: &Options) -> Result<Box<dyn EventSource>, ReadError> {
    let (name, len) = (file.name.clone(), file.len);
    let (compression, damage) = (file.compression, file.damage.take());
    let mut source = TraceDat::new(Box::new(file), &name, len)?;
    let converts = options.tsc_khz.is_some_and(|khz| source.set_tsc_khz(khz));
    let info = source.info_mut();
    if !converts {
        note_unused_khz(options, info);
    }
    note_unused_formats(options, info);
    info.compression = compression;
    if let Some(damage) = damage {
        info.note(
            true,
            format!("{damage}; what was unpacked until there is read"),
        );
    }
    Ok(Box::new(source))
}

/// The event formats of a recording, for another one that lacks them.
pub(crate) fn formats_of(path: &Path) -> Result<TracingData, ReadError> {
    let mut stream = Stream::open(path)?;
    match detect::container(stream.peek(HEAD)?) {
        Some(Container::PerfFile) => perf::formats(Stored::new(stream)?),
        Some(Container::TraceDat) => {
            let file = Stored::new(stream)?;
            let (name, len) = (file.name.clone(), file.len);
            let (formats, endian) = crate::trace_dat::formats(Box::new(file), &name, len)?;
            Ok(TracingData::of_formats(formats, endian))
        }
        Some(_) => Err(ReadError::Unsupported {
            input: stream.name,
            what: "event formats can be taken from perf.data and trace.dat files only".to_owned(),
        }),
        None => Err(unknown(stream)),
    }
}

/// Nothing that is read here: says what was found instead.
fn unknown(mut stream: Stream) -> ReadError {
    let input = stream.name.clone();
    let head = match stream.peek(HEAD) {
        Ok(head) => detect::escaped(head),
        Err(error) => return error,
    };
    if let Some(damage) = stream.damage.get() {
        let what = format!("{damage}; nothing that is a trace could be unpacked");
        return ReadError::Corrupt {
            input,
            offset: 0,
            what,
        };
    }
    if head.is_empty() {
        return ReadError::Empty { input };
    }
    ReadError::UnknownFormat { input, found: head }
}

#[cfg(test)]
mod tests;

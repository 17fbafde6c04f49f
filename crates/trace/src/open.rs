//! From a path to events: recognises the container and opens its reader.
//!
//! The container is recognised by content, never by the file's name. `trace.dat` and `perf.data` are
//! read at positions; text and the pipe mode of perf are read as they come, and need no room.

use std::io::Read;
use std::path::Path;

use crate::input::{Stored, Stream};
use crate::options::{note_unused_formats, note_unused_khz};
use crate::perf::{self, PerfSource, TracingData};
use crate::recognise::{self, Container};
use crate::text::{self, TextSource};
use crate::unchanged::Unchanged;
use crate::{EventSource, Options, ReadError, TraceDat, trace_dat};

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
/// The file cannot be opened or is a directory, is empty or is not a trace. Its beginning is so
/// damaged that nothing can be read. A temporary file is needed and cannot be written.
pub fn open_with(path: &Path, options: &Options) -> Result<Box<dyn EventSource>, ReadError> {
    let mut stream = Stream::open(path)?;
    let opened = stream.opened.take();
    let source = open_stream(stream, options)?;
    Ok(match opened {
        Some(opened) => Box::new(Unchanged::new(source, opened)),
        None => source,
    })
}

/// Whether a file begins as a recording does, compressed or not. What follows may be damaged.
///
/// # Errors
/// The file cannot be opened or read, or is a directory.
pub fn is_recording(path: &Path) -> Result<bool, ReadError> {
    Ok(recognise::container(Stream::open(path)?.peek(text::HEAD)?).is_some())
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
    open_stream(Stream::new(name.to_owned(), input, None, None)?, options)
}

fn open_stream(mut stream: Stream, options: &Options) -> Result<Box<dyn EventSource>, ReadError> {
    let container = recognise::container(stream.peek(text::HEAD)?);
    match container {
        Some(Container::PerfFile) => {
            let file = Stored::new(stream)?;
            Ok(Box::new(PerfSource::file(file, options, formats_of)?))
        }
        Some(Container::PerfPipe) => Ok(Box::new(PerfSource::pipe(stream, options)?)),
        Some(Container::Text) => Ok(Box::new(TextSource::new(stream, options)?)),
        Some(Container::TraceDat) => open_trace_dat(Stored::new(stream)?, options),
        None => Err(unknown(stream)),
    }
}

/// A trace.dat file, its ticks converted if the user knows the frequency.
fn open_trace_dat(mut file: Stored, options: &Options) -> Result<Box<dyn EventSource>, ReadError> {
    let (name, len) = (file.name.clone(), file.len);
    let (compression, damage) = (file.compression, file.damage.take());
    let mut source = TraceDat::new(Box::new(file), &name, len)?;
    let converts = options.tsc_khz.is_some_and(|khz| source.set_tsc_khz(khz));
    if options.unpack_ahead {
        source.unpack_ahead();
    }
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
fn formats_of(path: &Path) -> Result<TracingData, ReadError> {
    let mut stream = Stream::open(path)?;
    match recognise::container(stream.peek(text::HEAD)?) {
        Some(Container::PerfFile) => perf::formats(Stored::new(stream)?),
        Some(Container::TraceDat) => {
            let file = Stored::new(stream)?;
            let (name, len) = (file.name.clone(), file.len);
            let (formats, endian) = trace_dat::formats(Box::new(file), &name, len)?;
            Ok(TracingData::from_formats(formats, endian))
        }
        Some(_) => Err(ReadError::Unsupported {
            input: stream.name,
            problem: "event formats can be taken from perf.data and trace.dat files only"
                .to_owned(),
        }),
        None => Err(unknown(stream)),
    }
}

/// Nothing that is read here: says what was found instead.
fn unknown(mut stream: Stream) -> ReadError {
    let input = stream.name.clone();
    let head = match stream.peek(text::HEAD) {
        Ok(head) => recognise::escaped(head),
        Err(error) => return error,
    };
    if let Some(damage) = stream.damage.get() {
        let problem = format!("{damage}; nothing that is a trace could be unpacked");
        return ReadError::Corrupt {
            input,
            offset: 0,
            problem,
        };
    }
    if head.is_empty() {
        return ReadError::Empty { input };
    }
    ReadError::UnknownFormat { input, found: head }
}

#[cfg(test)]
#[path = "open_tests.rs"]
mod tests;

//! `stealtime import`.

mod events;
mod format;
mod stream;

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use clap::Args;
use stealtime_trace::write::{Options, TraceDatWriter, WriteError};
use stealtime_trace::{Clock, NameTable, ReadError};

use crate::error::CliError;
use crate::output;
use events::Importer;
use stream::Stream;

/// Write the event stream of the bare hypervisor as a trace.dat
///
/// `scripts/bare run SCENARIO` leaves the stream in target/bare/SCENARIO/events.bin. The trace.dat has
/// exits with VMX reasons, entries, posted interrupts, timers and switches. A phase of the scenario is
/// a VM. docs/bare.md describes the stream.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime import target/bare/table/events.bin -o trace.dat
  stealtime analyze trace.dat")]
pub(crate) struct Import {
    /// The event stream
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Where to write the trace.dat
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: PathBuf,
}

impl Import {
    /// Reads once; writes at the end. A stream that breaks off gives what comes before, and an error.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        output::check_named("-o", &self.output, "a file")?;
        output::check_apart(&self.output, &self.file)?;
        let input = self.file.display().to_string();
        let file = File::open(&self.file).map_err(|source| {
            CliError::Open(ReadError::Open {
                path: self.file.clone(),
                source,
            })
        })?;
        let mut stream = Stream::new(BufReader::new(file), input).map_err(CliError::Open)?;
        let mut names = NameTable::default();
        let cut = output::to_file(&self.output, |writer| {
            let failed = |error| failed(&self.output, error);
            let options = options(&stream);
            let mut recording = TraceDatWriter::new(options).map_err(failed)?;
            let cut = write_all(&mut stream, &mut recording, &mut names, &failed)?;
            recording.finish(writer).map_err(failed)?;
            Ok(cut)
        })?;
        let skipped = stream.skipped();
        if skipped > 0 {
            output::note(&format!(
                "stealtime: {skipped} frames of kinds that this version does not know are left out"
            ));
        }
        cut.map_or(Ok(()), |error| Err(CliError::Cut(error)))
    }
}

fn options<R: Read>(stream: &Stream<R>) -> Options {
    Options {
        clock: Clock {
            name: "local".to_owned(),
            ..Clock::default()
        },
        cpus: u32::from(stream.header().cpus),
        uname: Some("bare x86_64".to_owned()),
        ..Options::default()
    }
}

fn failed(path: &Path, error: WriteError) -> CliError {
    match error {
        WriteError::Io(source) => CliError::Write {
            path: path.to_owned(),
            source,
        },
        error => CliError::TraceDat(error),
    }
}

/// Writes the events up to the end of the stream, or to where it breaks off.
fn write_all<R: Read>(
    stream: &mut Stream<R>,
    writer: &mut TraceDatWriter,
    names: &mut NameTable,
    failed: &impl Fn(WriteError) -> CliError,
) -> Result<Option<ReadError>, CliError> {
    let mut importer = Importer::new(stream.header().tsc_khz);
    loop {
        let frame = match stream.next_frame() {
            Ok(Some(frame)) => frame,
            Ok(None) => return Ok(None),
            Err(error) => return Ok(Some(error)),
        };
        for event in importer.events(&frame, names) {
            writer.push(&event, &*names).map_err(failed)?;
        }
    }
}

/// The error of an interrupted or failed read.
fn io_error(input: &str, offset: u64, source: io::Error) -> ReadError {
    ReadError::Io {
        input: input.to_owned(),
        offset,
        source,
    }
}

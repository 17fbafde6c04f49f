//! `stealtime export`.

use std::io::{IsTerminal, Write, stdout};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use stealtime_analysis::Selection;
use stealtime_report::perfetto::{Exporter, Options};
use stealtime_trace::ReadError;

use super::pick;
use crate::args::{Recording, Window};
use crate::error::CliError;
use crate::input::{self, Analyzed, Twice, Unwanted};
use crate::output;

/// Write a recording for another tool
///
/// Reads the recording twice: first to learn which thread is which VM's vCPU.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime export trace.dat.zst --to perfetto -o trace.pftrace
  stealtime export trace.dat --to perfetto --from 200ms --until 300ms -o short.pftrace

Open the result in https://ui.perfetto.dev or with Perfetto's trace_processor.")]
pub(crate) struct Export {
    #[command(flatten)]
    recording: Recording,

    #[command(flatten)]
    window: Window,

    /// The form
    #[arg(long, value_enum)]
    to: Form,

    /// Where to write; `-` is standard output
    #[arg(short, long, value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Only tracks of this VM (repeat for several)
    #[arg(long, value_name = "NAME")]
    vm: Vec<String>,

    /// Only tracks of this host CPU (repeat, or separate by commas)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    cpu: Vec<u16>,
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A Perfetto trace: tracks of host CPUs and vCPUs, arrows from IPIs to their injection
    Perfetto,
}

impl Export {
    /// Reads twice, writes once.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let Form::Perfetto = self.to;
        let to_stdout = self.output.as_os_str() == "-";
        if to_stdout && stdout().is_terminal() {
            return Err(CliError::Terminal);
        }
        let twice = Twice::new(&self.recording.trace)?;
        let analyzed = input::analyze(
            twice.path(),
            &self.recording,
            None,
            Selection::default(),
            Unwanted::default(),
        )?;
        pick::vms(&self.vm, &pick::names(&analyzed.answers))?;
        pick::cpus(&self.cpu, &analyzed.answers)?;
        pick::window(self.window, &analyzed)?;
        let cut = if to_stdout {
            let out = std::io::BufWriter::new(stdout().lock());
            self.write(out, &twice, &analyzed, CliError::Stdout)?
        } else {
            output::to_file(&self.output, |out| {
                let path = self.output.clone();
                let failed = move |source| CliError::Write {
                    path: path.clone(),
                    source,
                };
                self.write(out, &twice, &analyzed, failed)
            })?
        };
        cut.map_or(Ok(()), |error| Err(CliError::Cut(error)))
    }

    fn write(
        &self,
        out: impl Write,
        twice: &Twice,
        analyzed: &Analyzed,
        failed: impl Fn(std::io::Error) -> CliError,
    ) -> Result<Option<ReadError>, CliError> {
        let first = analyzed.first_ns;
        let options = Options {
            from_ns: self.window.from.map(|from| from.resolve(first)),
            to_ns: self.window.until.map(|until| until.resolve(first)),
            cpus: self.cpu.clone(),
            vms: self.vm.clone(),
        };
        let mut exporter = Exporter::new(out, &analyzed.answers, options).map_err(&failed)?;
        let mut source = input::open(twice.path(), &self.recording, None)?;
        let cut = input::drive("exporting", &mut *source, |event, source| {
            exporter.event(event, source.names()).map_err(&failed)
        })?;
        exporter.finish().map_err(&failed)?;
        Ok(cut)
    }
}

//! `stealtime export`.

mod trace_dat;

use std::io::{self, IsTerminal, Write, stdout};
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use stealtime_analysis::Selection;
use stealtime_report::perfetto::{Exporter, Options};
use stealtime_trace::ReadError;

use super::pick;
use crate::args::{CpuRange, Recording, Window};
use crate::error::CliError;
use crate::input::{self, Analyzed, Twice, Unwanted};
use crate::output;

/// Write a recording for another tool
///
/// For Perfetto, the recording is read twice: first to learn which thread is which VM's vCPU.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime export trace.dat.zst --to perfetto -o trace.pftrace
  stealtime export trace.dat --to perfetto --from 200ms --until 300ms -o short.pftrace
  stealtime export perf.data --to trace.dat -o trace.dat.new

Open a Perfetto trace in https://ui.perfetto.dev or with Perfetto's trace_processor,
a trace.dat with trace-cmd report or KernelShark.")]
pub(crate) struct Export {
    #[command(flatten)]
    recording: Recording,

    #[command(flatten)]
    window: Window,

    /// The form
    #[arg(long, value_enum)]
    to: Form,

    /// Where to write; `-` is standard output
    #[arg(short, long, alias = "out", value_name = "FILE", default_value = "-")]
    output: PathBuf,

    /// Only tracks of this VM (repeat for several); for Perfetto only
    #[arg(long, value_name = "NAME")]
    vm: Vec<String>,

    /// Only this host CPU's tracks, or events (repeat, or separate by commas)
    #[arg(long, value_name = "N", value_delimiter = ',')]
    cpu: Vec<CpuRange>,

    /// Compress a trace.dat: version 7 with zstd, for trace-cmd 3.1 and later
    #[arg(long)]
    compress: bool,
}

/// What to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Form {
    /// A Perfetto trace: tracks of host CPUs and vCPUs, arrows from IPIs to their injection
    Perfetto,
    /// A trace.dat of trace-cmd: what is read of the recording, for trace-cmd report and KernelShark
    #[value(name = "trace.dat")]
    TraceDat,
}

impl Export {
    /// Reads and writes.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let to_stdout = self.output.as_os_str() == "-";
        if to_stdout && stdout().is_terminal() {
            return Err(CliError::Terminal);
        }
        if !to_stdout {
            for input in self.recording.inputs() {
                output::check_apart(&self.output, input)?;
            }
        }
        match self.to {
            Form::Perfetto if self.compress => Err(CliError::ForTraceDat),
            Form::TraceDat if !self.vm.is_empty() => Err(CliError::ForPerfetto),
            Form::TraceDat if !self.recording.vm_of.is_empty() => Err(CliError::VmOfForPerfetto),
            Form::Perfetto => self.perfetto(),
            Form::TraceDat => self.trace_dat(),
        }
    }

    /// Gives the output to `write`, with what makes an error of writing to it.
    fn output<T>(
        &self,
        write: impl FnOnce(&mut dyn Write, &dyn Fn(io::Error) -> CliError) -> Result<T, CliError>,
    ) -> Result<T, CliError> {
        if self.output.as_os_str() == "-" {
            let mut writer = io::BufWriter::new(stdout().lock());
            return write(&mut writer, &CliError::Stdout);
        }
        output::to_file(&self.output, |writer| {
            write(writer, &|source| CliError::Write {
                path: self.output.clone(),
                source,
            })
        })
    }

    /// Reads twice, writes once.
    fn perfetto(&self) -> Result<(), CliError> {
        let twice = Twice::new(&self.recording.trace)?;
        let analyzed = input::analyze(
            twice.path(),
            &self.recording,
            None,
            Selection::default(),
            Unwanted::default(),
        )?;
        pick::vms(&self.vm, &pick::names(&analyzed.answers))?;
        pick::cpus(&CpuRange::numbers(&self.cpu), &analyzed.answers)?;
        pick::window(self.window, &analyzed)?;
        let cut = self.output(|writer, failed| self.write(writer, &twice, &analyzed, failed))?;
        analyzed.tell();
        cut.map_or(Ok(()), |error| Err(CliError::Cut(error)))
    }

    fn write(
        &self,
        writer: &mut dyn Write,
        twice: &Twice,
        analyzed: &Analyzed,
        failed: impl Fn(std::io::Error) -> CliError,
    ) -> Result<Option<ReadError>, CliError> {
        let first = analyzed.first_ns;
        let options = Options {
            from_ns: self.window.from.map(|moment| moment.resolve(first)),
            to_ns: self.window.until.map(|moment| moment.resolve(first)),
            cpus: CpuRange::numbers(&self.cpu),
            vms: self.vm.clone(),
            run: None,
        };
        let mut exporter = Exporter::new(writer, &analyzed.answers, options).map_err(&failed)?;
        let mut source = input::open(twice.path(), &self.recording, None)?;
        let cut = input::drive("exporting", &mut *source, |events, source| {
            exporter.events(events, source.names()).map_err(&failed)
        })?;
        exporter.finish().map_err(&failed)?;
        Ok(cut)
    }
}

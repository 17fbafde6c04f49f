//! `stealtime fit`: how many more VMs fit on the host of a recording, and which one to take away.

mod self_test;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use stealtime_report::html::fit as page;
use stealtime_report::json;
use stealtime_report::terminal::{Style, fit as tables};
use stealtime_whatif::capacity::{Capacity, FitDocument, Limit, Question, RecordedHost};
use stealtime_whatif::{Baseline, HostFacts};

use crate::args::{self, Form, Replayed, VmOf};
use crate::error::CliError;
use crate::input::Twice;
use crate::output;
use crate::progress::RunProgress;
use crate::replayable::{self, Replayable};
use crate::report::ReportTo;
use crate::verb::whatif;

/// Replays of a count that is near a limit, unless `--seeds` says how many.
const SEEDS: u64 = 5;

/// Say how many more VMs fit on a recorded host, and which one to take away.
///
/// A copy of a VM does what the recorded one did, from another time of the recording on. Counts are replayed
/// until the first limit fails: steps double, then halve. Without a limit the search ends at the knee.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime fit trace.dat --add web --limit 'ready<5%' --limit 'wakeup.p99<2ms'
  stealtime fit trace.dat --limit 'db.work>98%'
  stealtime fit trace.dat --report fit.html
  stealtime fit trace.dat --move
  stealtime fit trace.dat --move 2 --json
  stealtime fit --self-test traces/

Figures of a limit, of each VM or of one (`db.ready<5%`):
  ready        time without a CPU, in percent of the vCPUs' time (steal)
  wakeup.p50   median time from a wakeup to running
  wakeup.p99   the same, 99th percentile
  work         work per second, in percent of that of the VM alone on the host
  overhead     the host's CPU time outside of guests, in percent of its CPUs' time")]
pub(crate) struct Fit {
    /// A recording with scheduler, KVM and timer events: trace.dat, perf.data or ftrace text
    #[arg(value_name = "TRACE", required_unless_present = "self_test")]
    trace: Option<PathBuf>,

    /// Count this VM (repeat for several, each by itself) [default: each VM, and the mix of all]
    #[arg(long, value_name = "VM")]
    add: Vec<String>,

    /// What must hold, for each VM: `ready<5%`; or behind a VM's name and a dot: `db.work>98%` (repeat for
    /// several)
    #[arg(long = "limit", value_name = "LIMIT")]
    limits: Vec<String>,

    /// Say which VM to take away instead, or which N of them
    #[arg(long = "move", value_name = "N", num_args = 0..=1, default_missing_value = "1",
        conflicts_with = "add")]
    moves: Option<NonZeroUsize>,

    /// Settings of the recorded host, as of `whatif --host`
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,

    /// Replays of each count that is near a limit [default: 5]
    #[arg(long = "seeds", value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1000))]
    asked_seeds: Option<u64>,

    /// Replays at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N", visible_alias = "threads")]
    jobs: Option<NonZeroUsize>,

    /// Print predicted next to recorded figures of each series below this directory: recordings of one host
    /// with more and fewer VMs
    #[arg(long, value_name = "DIR", conflicts_with_all = ["trace", "add", "limits", "moves", "host", "report"])]
    self_test: Option<PathBuf>,

    #[command(flatten)]
    replayed: Replayed,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,
}

impl Fit {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if let Some(folder) = &self.self_test {
            let series = self_test::series(self, folder)?;
            return output::to_stdout(|writer| match self.form.is_json() {
                true => json::write_any(&series, writer),
                false => writer.write_all(tables::self_test(&series).as_bytes()),
            });
        }
        let Some(path) = &self.trace else {
            return Err(CliError::Fit("no recording was given".to_owned()));
        };
        // Limits are checked before the recording is read, which takes longer.
        let question = Question {
            added: self.add.clone(),
            limits: Limit::parse_all(&self.limits)
                .map_err(stealtime_whatif::capacity::FitError::from)?,
            moves: self.moves.map(NonZeroUsize::get),
        };
        self.check_outputs(path)?;
        let twice = Twice::new(path)?;
        let base = self.baseline(twice.path(), &self.replayed.vm_of, false)?;
        let document = self.answer(path, &base, &question)?;
        self.write(&document)
    }

    fn check_outputs(&self, path: &Path) -> Result<(), CliError> {
        let files = self.host.iter().chain(self.replayed.files());
        let inputs: Vec<&Path> = std::iter::once(path)
            .chain(files.map(PathBuf::as_path))
            .collect();
        self.report.check(self.form.is_json(), &inputs)
    }

    /// A recording, and the replay that fits it best.
    fn baseline(&self, path: &Path, vm_of: &[VmOf], is_quiet: bool) -> Result<Baseline, CliError> {
        let snapshot = self.replayed.snapshot.as_ref();
        let opened = self.replayed.recording(path, vm_of, snapshot);
        let Replayable { recorded, snapshot } = replayable::read(path, &opened, is_quiet)?;
        let mut facts = match &self.host {
            Some(file) => whatif::host_facts(file, &recorded)?,
            None => HostFacts::default(),
        };
        if let Some(snapshot) = &snapshot {
            facts.add_snapshot(snapshot, &recorded);
        }
        let question = stealtime_whatif::Question::default();
        Ok(Baseline::fit(recorded, facts, &question)?)
    }

    fn answer(
        &self,
        path: &Path,
        base: &Baseline,
        question: &Question,
    ) -> Result<FitDocument, CliError> {
        let jobs = args::threads(self.jobs);
        let bar = RunProgress::unbounded("fit");
        let progress = |replays: usize| bar.done(replays);
        let host = RecordedHost::new(base, jobs, output::stop_by_interrupt(), &progress);
        let capacity = Capacity::answer(
            &host,
            question,
            self.seeds(),
            jobs.get(),
            host.span_ns(),
            &host.wakeups(),
        )?;
        let shown = path.display().to_string();
        let replays = host.finished();
        Ok(FitDocument::new(
            shown,
            base,
            self.seeds(),
            replays,
            capacity,
        ))
    }

    fn write(&self, document: &FitDocument) -> Result<(), CliError> {
        let has_tables = !self.form.is_json() && !self.report.is_stdout();
        let printed = if self.form.is_json() {
            output::to_stdout(|writer| json::write_any(document, writer))
        } else if has_tables {
            let text = tables::render(document, Style::new(output::color()));
            output::to_stdout(|writer| writer.write_all(text.as_bytes()))
        } else {
            Ok(())
        };
        output::go_on(printed, self.report.is_file())?;
        self.report.write(|command| page::page(document, command))
    }

    fn seeds(&self) -> u64 {
        self.asked_seeds.unwrap_or(SEEDS)
    }
}

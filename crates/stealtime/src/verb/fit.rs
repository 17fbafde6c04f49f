//! `stealtime fit`: how many more VMs fit on the host of a recording, which one to take away, and which ones
//! to move between hosts.

mod rebalance;
mod self_test;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use stealtime_report::html::{Page, fit as page};
use stealtime_report::json;
use stealtime_report::terminal::{Style, fit as tables};
use stealtime_whatif::capacity::{Capacity, FitDocument, FitError, Limit, Question, RecordedHost};
use stealtime_whatif::{Baseline, Plan};

use crate::added_from::AddedFrom;
use crate::args::{self, Form, Replayed, VmOf};
use crate::error::CliError;
use crate::input::Twice;
use crate::output;
use crate::progress::RunProgress;
use crate::replayable;
use crate::report::ReportTo;

/// Replays of a count that is near a limit, unless `--seeds` says how many.
const SEEDS: u64 = 5;

/// Say how many more VMs fit on a recorded host, which one to take away, or which ones to move.
///
/// A copy of a VM does what the recorded one did, from another time of the recording on. Counts are replayed
/// until the first limit fails: steps double, then halve. Without a limit the search ends at the knee.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime fit trace.dat --add web --limit 'ready<5%' --limit 'wakeup.p99<2ms'
  stealtime fit trace.dat --limit 'db.work>98%'
  stealtime fit trace.dat --report fit.html
  stealtime fit trace.dat --with other.dat:db --limit 'ready<5%'
  stealtime fit trace.dat --set sched.base_slice_ns=700us
  stealtime fit trace.dat --move
  stealtime fit trace.dat --move 2 --json
  stealtime fit host1.dat host2.dat --rebalance --limit 'ready<5%'
  stealtime fit --self-test traces/

Figures of a limit, of each VM or of one (`db.ready<5%`):
  ready        time without a CPU, in percent of the vCPUs' time (steal)
  wakeup.p50   median time from a wakeup to running
  wakeup.p99   the same, 99th percentile
  work         work per second, in percent of that of the VM alone on the host
  overhead     the host's CPU time outside of guests, in percent of its CPUs' time")]
pub(crate) struct Fit {
    /// A recording with scheduler, KVM and timer events: trace.dat, perf.data or ftrace text. `--rebalance`
    /// takes one of each host
    #[arg(value_name = "TRACE", required_unless_present = "self_test")]
    traces: Vec<PathBuf>,

    /// Count this VM (repeat for several, each by itself) [default: each VM, and the mix of all]
    #[arg(long, value_name = "VM")]
    add: Vec<String>,

    /// Count this VM of another recording, under its name or another one (repeat for several, each by
    /// itself)
    #[arg(long = "with", value_name = "FILE:VM[=NAME]", conflicts_with = "moves")]
    with: Vec<AddedFrom>,

    /// What must hold, for each VM: `ready<5%`; or behind a VM's name and a dot: `db.work>98%` (repeat for
    /// several)
    #[arg(long = "limit", value_name = "LIMIT")]
    limits: Vec<String>,

    /// Say which VM to take away instead, or which N of them
    #[arg(long = "move", value_name = "N", num_args = 0..=1, default_missing_value = "1",
        conflicts_with = "add")]
    moves: Option<NonZeroUsize>,

    /// Say which VMs to move between the hosts of these recordings, so that all limits hold on each
    #[arg(long, conflicts_with_all = ["add", "with", "moves", "set", "pin", "host", "vm_of", "snapshot",
        "tsc_khz", "formats_from"])]
    rebalance: bool,

    /// Take this knob for changed (repeat for several), as of `whatif`
    #[arg(long, value_name = "KNOB=VALUE")]
    set: Vec<String>,

    /// Take these tasks for bound to these CPUs, as of `whatif`
    #[arg(long, value_name = "VM[/VCPU]=CPUS")]
    pin: Vec<String>,

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
    #[arg(long, value_name = "DIR", conflicts_with_all = ["traces", "add", "with", "limits", "moves",
        "rebalance", "set", "pin", "host", "report"])]
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
        self.answer_all().map_err(|error| match error {
            // Replays are those of `whatif`, and the question is of this verb.
            CliError::WhatIf(text) => CliError::Fit(text),
            error => error,
        })
    }

    fn answer_all(&self) -> Result<(), CliError> {
        if let Some(folder) = &self.self_test {
            let series = self_test::series(self, folder)?;
            return output::to_stdout(|writer| match self.form.is_json() {
                true => json::write_any(&series, writer),
                false => writer.write_all(tables::self_test(&series).as_bytes()),
            });
        }
        // Limits are checked before a recording is read, which takes longer.
        let limits = Limit::parse_all(&self.limits).map_err(FitError::from)?;
        self.check_outputs()?;
        if self.rebalance {
            return rebalance::run(self, &limits);
        }
        let [path] = &self.traces[..] else {
            return Err(CliError::Fit(format!(
                "{} recordings: give one, or add --rebalance for the moves between their hosts",
                self.traces.len()
            )));
        };
        let question = Question {
            added: self.add.clone(),
            limits,
            moves: self.moves.map(NonZeroUsize::get),
        };
        let twice = Twice::new(path)?;
        let (mut base, changes) = self.baseline(twice.path(), &self.replayed.vm_of, false)?;
        for added in &self.with {
            let vm = added.read(base.recorded())?;
            base.add(vm).map_err(stealtime_whatif::Error::from)?;
        }
        let document = self.answer(path, &base, changes, &question)?;
        self.write(&document, tables::render, page::page)
    }

    fn check_outputs(&self) -> Result<(), CliError> {
        let added = self.with.iter().map(|added| &added.file);
        let files = self.traces.iter().chain(&self.host);
        let files = files.chain(self.replayed.files()).chain(added);
        let inputs: Vec<&Path> = files.map(PathBuf::as_path).collect();
        self.report.check(self.form.is_json(), &inputs)
    }

    /// A recording with the replay that fits it best, and the changes to take for made.
    fn baseline(
        &self,
        path: &Path,
        vm_of: &[VmOf],
        is_quiet: bool,
    ) -> Result<(Baseline, Plan), CliError> {
        let snapshot = self.replayed.snapshot.as_ref();
        let opened = self.replayed.recording(path, vm_of, snapshot);
        let read = replayable::read(path, &opened, is_quiet)?;
        let facts = read.facts(self.host.as_deref())?;
        let changes =
            stealtime_whatif::Question::parse(&read.recorded, &facts, &self.set, &[], &self.pin)?;
        let base = Baseline::fit(read.recorded, facts, &changes)?;
        let (plans, reasons) = changes.plans(&base)?;
        debug_assert!(reasons.is_empty(), "one variant is answered, or an error");
        Ok((base, plans.into_iter().next().unwrap_or_default()))
    }

    fn answer(
        &self,
        path: &Path,
        base: &Baseline,
        changes: Plan,
        question: &Question,
    ) -> Result<FitDocument, CliError> {
        let jobs = args::threads(self.jobs);
        let bar = RunProgress::unbounded("fit");
        let progress = |replays: usize| bar.done(replays);
        let host = RecordedHost::new(base, jobs, output::stop_by_interrupt(), &progress)
            .with_changes(changes.clone())?;
        let capacity = Capacity::answer(
            &host,
            question,
            self.seeds(),
            jobs,
            host.span_ns(),
            &host.wakeups(),
        )?;
        let shown = path.display().to_string();
        let replays = host.finished();
        Ok(FitDocument::new(
            shown,
            base,
            &changes,
            self.seeds(),
            replays,
            capacity,
        ))
    }

    /// Writes an answer in each form that is asked for.
    fn write<D: Serialize>(
        &self,
        document: &D,
        tables: fn(&D, Style) -> String,
        page: fn(&D, &str) -> Page,
    ) -> Result<(), CliError> {
        let has_tables = !self.form.is_json() && !self.report.is_stdout();
        let printed = if self.form.is_json() {
            output::to_stdout(|writer| json::write_any(document, writer))
        } else if has_tables {
            let text = tables(document, Style::new(output::color()));
            output::to_stdout(|writer| writer.write_all(text.as_bytes()))
        } else {
            Ok(())
        };
        output::go_on(printed, self.report.is_file())?;
        self.report.write(|command| page(document, command))
    }

    fn seeds(&self) -> u64 {
        self.asked_seeds.unwrap_or(SEEDS)
    }
}

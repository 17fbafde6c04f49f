//! `stealtime whatif`: a recording replayed as it was, and with knobs changed.

mod export;
mod self_test;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use clap::Args;
use stealtime_report::html::whatif as page;
use stealtime_report::json;
use stealtime_report::terminal::whatif as tables;
use stealtime_whatif::{AddedVm, Baseline, Document, Observation, Plan, Question, Recorded, Run};

use crate::added_from::AddedFrom;
use crate::args::{self, Form, Recording, Replayed};
use crate::error::CliError;
use crate::input::{self, Twice};
use crate::output;
use crate::progress::{self, RunProgress};
use crate::replayable::{self, Replayable};
use crate::report::ReportTo;

/// Replays of each variant, unless `--seeds` says how many.
const SEEDS: u64 = 5;
/// More variants ask for `--yes`.
const MANY: usize = 1_000;
/// Fewer replays begin without an estimate of their time, which costs a replay.
const FEW: f64 = 200.0;

/// Replay a recording on a simulated host, as recorded and with knobs changed.
///
/// Each task's computing and its waits for tasks and timers become its demand. The output begins with
/// the distance between the replay as recorded and the recording. The effects of each variant follow,
/// with 95% confidence intervals over several replays. Chance moves what the recording leaves open.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime whatif trace.dat.zst
  stealtime whatif trace.dat --set kvm.halt_poll_ns=0
  stealtime whatif trace.dat --set sched.features=NO_WAKEUP_PREEMPTION --json
  stealtime whatif trace.dat --vary kvm.halt_poll_ns=0,50000,200000,1000000
  stealtime whatif trace.dat --set sched.base_slice_ns=700us --report slice.html
  stealtime whatif trace.dat --pin vm0/0=0 --pin vm0/1=1
  stealtime whatif trace.dat --with other.dat:db --set vm.db.count=2
  stealtime whatif trace.dat --auto
  stealtime whatif trace.dat --auto --set host.hz=1000 --json
  stealtime whatif trace.dat --set kvm.halt_poll_ns=0 --export both.pftrace
  stealtime whatif before.dat --set kvm.halt_poll_ns=0 --seen after.dat
  stealtime whatif --self-test traces/")]
pub(crate) struct WhatIf {
    /// A recording with scheduler, KVM and timer events: trace.dat, perf.data or ftrace text
    #[arg(value_name = "TRACE", required_unless_present = "self_test")]
    trace: Option<PathBuf>,

    /// Set a knob (repeat for several at once)
    #[arg(long, value_name = "KNOB=VALUE")]
    set: Vec<String>,

    /// A variant for each value; repeat for a grid
    #[arg(long, value_name = "KNOB=A,B,C…")]
    vary: Vec<String>,

    /// Bind a vCPU, all of a VM, or other tasks (task:NAME, task:TID) to these CPUs: 0,2-3.
    /// `VM=1:1 0-3` gives each vCPU one of them in turn (repeat for several)
    #[arg(long, value_name = "VM[/VCPU]=CPUS")]
    pin: Vec<String>,

    /// Add this VM of another recording (repeat for several): one of it, or as many as --set vm.NAME.count
    /// says. NAME is its name on this host
    #[arg(long = "with", value_name = "FILE:VM[=NAME]")]
    with: Vec<AddedFrom>,

    /// Try the changes that the findings of `analyze` suggest, on top of --set and --pin, and rank them
    /// by guest time given back
    #[arg(long, conflicts_with = "vary")]
    auto: bool,

    /// Settings of the recorded host, as lines KEY = VALUE: knobs, and four more keys. `groups`: VMs in
    /// cgroups of their own (true, false). `vcpu_cgroups`: each vCPU in a cgroup of its own below, as
    /// libvirt has it (true, false). `balanced`: guests move work to idle vCPUs (true, false).
    /// `placement`: recorded, simulated
    #[arg(long, value_name = "FILE")]
    host: Option<PathBuf>,

    /// Write the recording, its replay and those of the variants as one Perfetto trace; of --auto the
    /// best. Into a folder (existing, or ending in `/`) also each replay as a trace.dat
    #[arg(long, value_name = "FILE|DIR")]
    export: Option<PathBuf>,

    /// Replays of each variant [default: 5]
    #[arg(long = "seeds", value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1000))]
    asked_seeds: Option<u64>,

    /// Begin even if it takes more than an hour, or has more than 1,000 variants
    #[arg(long)]
    yes: bool,

    /// Replays at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N", visible_alias = "threads")]
    jobs: Option<NonZeroUsize>,

    /// A recording made with the change: prints predicted next to seen values (repeat for several: their
    /// differences are the spread)
    #[arg(long, value_name = "TRACE", conflicts_with_all = ["vary", "auto", "self_test"])]
    seen: Vec<PathBuf>,

    /// Another recording without the change, for the spread of --seen
    #[arg(long, value_name = "TRACE", requires = "seen")]
    again: Vec<PathBuf>,

    /// Print the error of the replay of each recording below this directory, and nothing else
    #[arg(long, value_name = "DIR",
        conflicts_with_all = ["trace", "set", "vary", "pin", "with", "auto", "export", "report", "asked_seeds", "jobs",
            "yes"])]
    self_test: Option<PathBuf>,

    #[command(flatten)]
    replayed: Replayed,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,
}

impl WhatIf {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        self.outputs()?;
        if let Some(folder) = &self.self_test {
            let rows = self_test::rows(self, folder)?;
            return match self.form.is_json() {
                true => output::to_stdout(|writer| json::write_any(&rows, writer)),
                false => print(&tables::self_test::table(&rows)),
            };
        }
        let Some(path) = &self.trace else {
            return Err(CliError::WhatIf("no recording was given".to_owned()));
        };
        // Without a change there is nothing that another recording could show of it.
        if !self.seen.is_empty() && self.set.is_empty() && self.pin.is_empty() {
            return Err(CliError::WhatIf(
                "--seen needs the change that was made: --set KNOB=VALUE or --pin VM=CPUS"
                    .to_owned(),
            ));
        }
        let twice = Twice::new(path)?;
        let (base, question) = self.baseline(twice.path())?;
        let (plans, not_answerable) = question.plans(&base)?;
        if self.export.is_some() && plans.len() > export::MOST {
            let (available, limit) = (plans.len(), export::MOST);
            let problem = format!("--export is for up to {limit} variants, not {available}");
            return Err(CliError::WhatIf(problem));
        }
        let observation = self.observation(&base)?;
        self.check_time(&base, plans.len())?;
        input::tell(&self.unused(plans.len()));
        let mut document = Document::new(path.display().to_string(), &base, not_answerable);
        document.add_assumptions(&base, &plans);
        // The fit is printed before the variants run, which may take minutes.
        let has_tables = !self.form.is_json() && !self.report.is_stdout();
        if has_tables {
            self.go_on(print(&tables::before(&document.marked())))?;
        }
        self.replay(&base, &plans, &mut document)?;
        if let (Some(observation), Some(variant)) = (observation, document.variants.first()) {
            document.seen = observation.compare(variant);
        }
        if !document.partial {
            self.export(&base, twice.path(), &plans, &mut document)?;
        }
        self.write(&document, has_tables)
    }

    /// Writes the document in each form that is asked for.
    fn write(&self, document: &Document, has_tables: bool) -> Result<(), CliError> {
        if self.form.is_json() {
            self.go_on(output::to_stdout(|writer| {
                json::write_any(document, writer)
            }))?;
        }
        if has_tables {
            self.go_on(print(&tables::after(&document.marked())))?;
        }
        self.report
            .write(|command| page::page(&document.marked(), command))?;
        match document.partial {
            true => Err(CliError::Stopped),
            false => Ok(()),
        }
    }

    /// Refuses, before anything takes its time, outputs that could not be written or would take the place of
    /// what is read, or of each other.
    fn outputs(&self) -> Result<(), CliError> {
        let several = self.seen.iter().chain(&self.again);
        let unused = self
            .trace
            .iter()
            .chain(&self.host)
            .chain(self.with.iter().map(|added| &added.file))
            .chain(self.replayed.files());
        let inputs: Vec<&Path> = unused.chain(several).map(PathBuf::as_path).collect();
        self.report.check(self.form.is_json(), &inputs)?;
        let Some(target) = &self.export else {
            return Ok(());
        };
        output::check_named("--export", target, "a file or a folder")?;
        for file in export::files(target, export::MOST) {
            for input in &inputs {
                output::check_apart(&file, input)?;
            }
            output::check_report("--export", &file, self.report.file())?;
        }
        export::check(target)
    }

    /// Decides whether to continue after printing, with a closed pipe for one.
    fn go_on(&self, printed: Result<(), CliError>) -> Result<(), CliError> {
        output::go_on(printed, self.report.is_file() || self.export.is_some())
    }

    fn source(&self, path: &Path, snapshot: Option<&PathBuf>) -> Recording {
        let vm_of = &self.replayed.vm_of;
        self.replayed.recording(path, vm_of, snapshot)
    }

    fn read(&self, path: &Path, snapshot: Option<&PathBuf>) -> Result<Replayable, CliError> {
        replayable::read(path, &self.source(path, snapshot), self.self_test.is_some())
    }

    /// A recording, and the replay that fits it best.
    fn baseline(&self, path: &Path) -> Result<(Baseline, Question), CliError> {
        let read = self.read(path, self.replayed.snapshot.as_ref())?;
        let facts = read.facts(self.host.as_deref())?;
        let recorded = read.recorded;
        let added = self.with.iter().map(|added| added.read(&recorded));
        let added: Vec<AddedVm> = added.collect::<Result<_, _>>()?;
        let (set, vary, pins) = (&self.set, &self.vary, &self.pin);
        let question = Question::parse_with_added(&recorded, &facts, set, vary, pins, &added)?;
        let mut base = Baseline::fit(recorded, facts, &question)?;
        for vm in added {
            base.add(vm).map_err(stealtime_whatif::Error::from)?;
        }
        Ok((base, question))
    }

    /// Reads what `--seen` and `--again` name.
    fn observation(&self, base: &Baseline) -> Result<Option<Observation>, CliError> {
        if self.seen.is_empty() {
            return Ok(None);
        }
        // A snapshot is of one boot: others may be of another one.
        let read = |path: &Path| -> Result<Recorded, CliError> {
            Ok(self.read(Twice::new(path)?.path(), None)?.recorded)
        };
        let name = |path: &Path| path.display().to_string();
        let mut observation = Observation::new(base);
        for path in &self.seen {
            let added = observation.add_changed(base, name(path), &read(path)?);
            added.map_err(|error| of_file(path, &error))?;
        }
        for path in &self.again {
            let added = observation.add_unchanged(base, name(path), &read(path)?);
            added.map_err(|error| of_file(path, &error))?;
        }
        Ok(Some(observation))
    }

    /// Replays what is asked, or what `--auto` chooses.
    fn replay(
        &self,
        base: &Baseline,
        plans: &[Plan],
        document: &mut Document,
    ) -> Result<(), CliError> {
        let run = Run {
            seeds: self.seeds(),
            jobs: self.threads(),
            stop: self.stop(),
            progress: &|total| {
                let progress = RunProgress::new("whatif", total);
                Box::new(move |finished| progress.done(finished))
            },
        };
        if self.auto {
            let first = plans.first().cloned().unwrap_or_default();
            document.add_candidates(base, &first, &run)?;
        } else {
            document.add_variants(base, plans, &run)?;
        }
        Ok(())
    }

    /// The first Ctrl-C ends the run after the replays that have begun.
    fn stop(&self) -> &'static AtomicBool {
        output::stop_by_interrupt()
    }

    fn export(
        &self,
        base: &Baseline,
        file: &Path,
        plans: &[Plan],
        document: &mut Document,
    ) -> Result<(), CliError> {
        let Some(target) = &self.export else {
            return Ok(());
        };
        let first = plans.first().cloned().unwrap_or_default();
        let best = document
            .auto
            .as_ref()
            .map(|auto| auto.best(&first, export::BEST));
        let plans = best.unwrap_or_else(|| plans.to_vec());
        document.exported = shown(&export::write(self, base, file, &plans, target)?);
        Ok(())
    }

    /// A long run begins only if the user knows that it is one.
    fn check_time(&self, base: &Baseline, variants: usize) -> Result<(), CliError> {
        let replays = (variants as f64 + 1.0) * self.seeds() as f64;
        if self.yes || replays < FEW {
            return Ok(());
        }
        let begin = Instant::now();
        base.replay_once()?;
        let seconds = replays * begin.elapsed().as_secs_f64() / self.threads().get() as f64;
        if seconds < progress::LONG_SECONDS && variants <= MANY {
            return Ok(());
        }
        Err(CliError::WhatIf(format!(
            "{variants} variants, {} replays of each, take about {} with {} at a time: add --yes to \
             begin, or vary less",
            self.seeds(),
            progress::long(seconds),
            self.threads()
        )))
    }

    /// Replays of each variant.
    fn seeds(&self) -> u64 {
        self.asked_seeds.unwrap_or(SEEDS)
    }

    /// Options about replays of variants where there are none: what they are for, and that they do nothing.
    fn unused(&self, variants: usize) -> Vec<String> {
        let options = [
            ("--seeds", self.asked_seeds.is_some()),
            ("--jobs", self.jobs.is_some()),
            ("--yes", self.yes),
        ];
        let is_given = options
            .iter()
            .filter(|(_, is_given)| *is_given && variants == 0 && !self.auto);
        let text = |(name, _): &(&str, bool)| {
            format!(
                "{name} is not used: nothing is changed, so that the recording is replayed once as it \
                 was; add --set, --vary, --pin, --with or --auto"
            )
        };
        is_given.map(text).collect()
    }

    /// How many replays run at a time.
    fn threads(&self) -> NonZeroUsize {
        args::threads(self.jobs)
    }
}

fn of_file(path: &Path, error: &stealtime_whatif::Error) -> CliError {
    CliError::WhatIf(format!("{}: {error}", path.display()))
}

fn shown(paths: &[PathBuf]) -> Vec<String> {
    let paths = paths.iter();
    paths.map(|path| path.display().to_string()).collect()
}

fn print(text: &str) -> Result<(), CliError> {
    output::to_stdout(|writer| writer.write_all(text.as_bytes()))
}

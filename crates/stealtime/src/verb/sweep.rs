//! `stealtime sweep`: a grid of runs on all cores, to Parquet, that goes on where it was stopped.

mod merge;
mod shard;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use stealtime_lab::knobs::replaces;
use stealtime_lab::scenario::Variant;
use stealtime_lab::simulate::Simulator;
use stealtime_lab::sweep::{self, Estimate, Plan, Shard, Summary, SweepError};
use stealtime_report::terminal::Style;
use stealtime_report::{html, json, terminal};

use self::shard::shard;
use super::run_args::{RunArgs, split, unusable};
use crate::args::Form;
use crate::error::CliError;
use crate::output;
use crate::progress::{LONG_SECONDS, RunProgress, long};
use crate::report::ReportTo;

/// A sweep of so many runs asks for `--yes`.
const MANY: u64 = 1_000_000;

/// Run a grid of knobs, sizes, machines, variants and seeds on all cores, to Parquet.
///
/// The grid is every combination of the values of each --vary, of the scenario's variants and seeds.
/// A folder keeps finished runs. After a stop at any moment, the same command resumes, and the results
/// are the same bytes.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime sweep scenarios/halt-polling.toml --vary kvm.halt_poll_ns=0,50us,200us --variant polling
  stealtime sweep scenarios/shootdowns.toml --vary vm.dedup.count=1..4 --vary host.cpus=8,16
  stealtime sweep a.toml --vary vm.web.workload.period_ns=10us..10ms*10 --vary run.seeds=20
  stealtime sweep scenarios/halt-polling.toml --vary kvm.halt_poll_ns=0,50us,200us --report polling.html
  stealtime sweep a.toml --vary host.profile=skylake-sp,sapphire-rapids --results parquet,csv
  stealtime sweep a.toml --vary 'host.nohz_full=[\"2-7\", \"4-7\"]' --out nohz --metric host.exits_HLT_per_s
  stealtime sweep a.toml --vary host.cpus=4,8 --shard 2/3; stealtime sweep merge a.*.sweep --out a.sweep")]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Sweep {
    #[command(subcommand)]
    merge: Option<Part>,

    #[command(flatten)]
    runs: Option<RunArgs>,

    /// What to vary (repeat for each): a knob, vm.NAME.count, vm.NAME.workload, host.cpus,
    /// host.profile, run.seeds, run.duration… Values may be ranges: 1..8, 0..100+20, 10us..640us*2
    #[arg(long, value_name = "KNOB=VALUE,VALUE…")]
    vary: Vec<String>,

    /// Run one of N parts, for several machines: see `sweep merge`. By auto or auto/N, a manager of jobs
    /// chooses the part: docs/sweep.md
    #[arg(long, value_name = "K/N", value_parser = shard)]
    shard: Option<Shard>,

    /// Begin even if it takes more than an hour, or has a million runs
    #[arg(long)]
    yes: bool,

    #[command(flatten)]
    outputs: Outputs,
}

/// Other things to do with sweeps.
#[derive(Debug, Subcommand)]
enum Part {
    Merge(merge::Merge),
}

/// Where a sweep and its results go.
#[derive(Debug, Args)]
struct Outputs {
    /// The sweep's folder; without it the scenario's name with .sweep, in this folder
    #[arg(long, short = 'o', alias = "output", value_name = "FOLDER")]
    out: Option<PathBuf>,

    /// Delete the results of this or another sweep in the folder, and begin again
    #[arg(long)]
    restart: bool,

    /// Files of results to write
    #[arg(
        long,
        value_enum,
        value_name = "FORM",
        value_delimiter = ',',
        default_value = "parquet"
    )]
    results: Vec<ResultsForm>,

    /// Columns of the results to sum up (repeat, or separate by commas); without it throughput and
    /// mean latency
    #[arg(long, value_name = "COLUMN", value_delimiter = ',')]
    metric: Vec<String>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,
}

/// A file of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ResultsForm {
    /// results.parquet
    Parquet,
    /// results.csv
    Csv,
}

impl From<ResultsForm> for sweep::Form {
    fn from(form: ResultsForm) -> Self {
        match form {
            ResultsForm::Parquet => Self::Parquet,
            ResultsForm::Csv => Self::Csv,
        }
    }
}

#[derive(Debug, Serialize)]
struct Output<'s> {
    scenario: &'s str,
    folder: String,
    results: Vec<String>,
    seeds: &'s [u64],
    vary: &'s [sweep::Dimension],
    #[serde(flatten)]
    summary: &'s Summary,
}

impl Sweep {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if let Some(Part::Merge(merge)) = &self.merge {
            return merge.run();
        }
        let Some(run_args) = &self.runs else {
            return Err(CliError::Sweep("no scenario is named".to_owned()));
        };
        let outputs = &self.outputs;
        outputs
            .report
            .check(outputs.form.is_json(), &[&run_args.scenario])?;
        if self.shard.is_some() && outputs.report.is_file() {
            let problem = "a shard has no report: `stealtime sweep merge` makes it of all shards";
            return Err(CliError::Sweep(problem.to_owned()));
        }
        let plan = self.plan(run_args)?;
        let jobs = run_args.jobs();
        let folder = self.folder(&run_args.scenario)?;
        outputs.check_folder(&folder)?;
        plan.check(jobs).map_err(failed)?;
        let stop = output::stop_by_interrupt();
        let opened = sweep::Sweep::open(&folder, plan, self.shard, outputs.restart);
        let mut sweep = opened.map_err(failed)?;
        go_on(&sweep, stop)?;
        self.ask(&mut sweep, jobs, stop)?;
        let (earlier, runs) = (sweep.journal().done(), sweep.runs());
        {
            let total = usize::try_from(runs).unwrap_or(usize::MAX);
            let bar = RunProgress::new("sweep", total).resumed(earlier);
            let mut report =
                |finished: u64| bar.done(usize::try_from(finished).unwrap_or(usize::MAX));
            sweep
                .run(&Simulator, jobs, stop, &mut report)
                .map_err(failed)?;
        }
        if !sweep.is_done() {
            return Err(stopped(&sweep));
        }
        match self.shard {
            Some(shard) => shard::show(&sweep, shard, outputs.form.is_json()),
            None => outputs.write(&sweep, earlier < runs, jobs),
        }
    }

    fn plan(&self, run_args: &RunArgs) -> Result<Plan, CliError> {
        let mut vary = Vec::new();
        for text in &self.vary {
            let wrong = |problem| CliError::Sweep(format!("--vary {text}: {problem}"));
            vary.push(sweep::vary(text).map_err(wrong)?);
        }
        for (option, is_set, knob) in [
            ("--seeds", run_args.seeds.is_some(), "run.seeds"),
            ("--duration", run_args.duration.is_some(), "run.duration"),
        ] {
            if is_set
                && vary
                    .iter()
                    .any(|varied: &sweep::Varied| varied.knob == knob)
            {
                let problem = format!("{option} and --vary {knob} say two things: leave one out");
                return Err(CliError::Sweep(problem));
            }
        }
        for set in &run_args.set {
            let (knob, _) = split(set)?;
            let is_lost = |varied: &&sweep::Varied| replaces(&varied.knob, knob);
            if knob != "sched.features"
                && let Some(sweep::Varied { knob, .. }) = vary.iter().find(is_lost)
            {
                let problem =
                    format!("--set {set} and --vary {knob} say two things: leave one out");
                return Err(CliError::Sweep(problem));
            }
        }
        let scenario = run_args.scenario()?;
        let variants = run_args.variants(&scenario)?;
        let variants: Vec<Variant> = variants.into_iter().cloned().collect();
        Plan::new(scenario, variants, vary).map_err(failed)
    }

    fn folder(&self, scenario: &Path) -> Result<PathBuf, CliError> {
        if let Some(path) = &self.outputs.out {
            return Ok(path.clone());
        }
        match scenario.file_stem() {
            Some(name) if scenario != Path::new("-") => {
                let mut name = name.to_owned();
                if let Some(shard) = self.shard {
                    name.push(format!(".{}-of-{}", shard.number(), shard.count()));
                }
                name.push(".sweep");
                Ok(PathBuf::from(name))
            }
            _ => {
                let problem = "the scenario has no name to call the sweep by: add --out FOLDER";
                Err(CliError::Sweep(problem.to_owned()))
            }
        }
    }

    /// A long sweep begins when the user knows that it is one.
    fn ask(
        &self,
        sweep: &mut sweep::Sweep,
        jobs: NonZeroUsize,
        stop: &AtomicBool,
    ) -> Result<(), CliError> {
        if self.yes {
            return Ok(());
        }
        let estimate = sweep.estimate(&Simulator, jobs, stop).map_err(failed)?;
        let Some(Estimate {
            remaining,
            seconds,
            at_least,
        }) = estimate
        else {
            return Ok(());
        };
        if stop.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(stopped(sweep));
        }
        if seconds < LONG_SECONDS && sweep.runs() < MANY {
            return Ok(());
        }
        let about = if at_least { "more than" } else { "about" };
        let text = format!(
            "{remaining} runs are left, which take {about} {} with {jobs} at a time: add --yes to begin, or \
             vary less\n{}: {} runs were tried and are kept",
            long(seconds),
            sweep.path().display(),
            sweep.journal().done()
        );
        Err(CliError::Sweep(text))
    }
}

impl Outputs {
    /// Writes and shows the results of all runs, on so many threads. `is_new`: some of them were run now.
    fn write(
        &self,
        sweep: &sweep::Sweep,
        is_new: bool,
        threads: NonZeroUsize,
    ) -> Result<(), CliError> {
        let mut results = Vec::new();
        for form in &self.results {
            let form = sweep::Form::from(*form);
            if is_new || !sweep.has_results(form) {
                sweep.write(form, threads).map_err(failed)?;
            }
            results.push(sweep.path().join(format!("results.{}", form.extension())));
        }
        let summary = sweep.summary(&self.metric, threads).map_err(failed)?;
        if !self.report.is_stdout() {
            let shown = self.show(sweep, &summary, &results);
            output::go_on(shown, self.report.is_file())?;
        }
        self.report
            .write(|command| page(&sweep.plan, &summary, command))?;
        match summary.failed {
            0 => Ok(()),
            failed => Err(CliError::Runs {
                failed: usize::try_from(failed).unwrap_or(usize::MAX),
                all: usize::try_from(summary.runs).unwrap_or(usize::MAX),
            }),
        }
    }

    /// Refuses a folder that is none, and a report that would take the place of one of the sweep's own files.
    fn check_folder(&self, folder: &Path) -> Result<(), CliError> {
        if folder.exists() && !folder.is_dir() {
            let problem = format!("{}: is no folder: choose another --out", folder.display());
            return Err(CliError::Sweep(problem));
        }
        let of_forms = ResultsForm::value_variants().iter();
        let of_forms =
            of_forms.map(|form| format!("results.{}", sweep::Form::from(*form).extension()));
        let outputs = ["sweep.json", "runs.journal"].map(str::to_owned);
        for file in outputs.into_iter().chain(of_forms) {
            let file = folder.join(file);
            output::check_report("--out", &file, self.report.file())?;
        }
        Ok(())
    }

    fn show(
        &self,
        sweep: &sweep::Sweep,
        summary: &Summary,
        results: &[PathBuf],
    ) -> Result<(), CliError> {
        let scenario = sweep.plan.scenario();
        output::to_stdout(|writer| {
            if self.form.is_json() {
                let output = Output {
                    scenario: scenario.map_or("", |scenario| &scenario.file),
                    folder: sweep.path().display().to_string(),
                    results: results.iter().map(|p| p.display().to_string()).collect(),
                    seeds: &sweep.plan.seeds,
                    vary: &sweep.plan.dimensions,
                    summary,
                };
                return json::write_any(&output, writer);
            }
            let style = Style::new(output::color());
            writer.write_all(terminal::sweep::render(summary, style).as_bytes())?;
            let files: Vec<String> = results.iter().map(|p| p.display().to_string()).collect();
            let files = files.join(", ");
            let files = stealtime_report::escape::terminal(&files);
            writeln!(writer, "\n{} runs: {files}", summary.finished)
        })
    }
}

/// Reports an end of the journal that was no whole run.
fn note_cut(sweep: &sweep::Sweep) {
    let bytes = sweep.journal().cut();
    if bytes > 0 {
        let folder = sweep.path().display();
        output::note(&format!(
            "{folder}: the last {bytes} bytes of the journal were no whole run and are gone"
        ));
    }
}

/// Reports the runs that the folder has, and checks that this build gives the same results.
fn go_on(sweep: &sweep::Sweep, stop: &AtomicBool) -> Result<(), CliError> {
    let journal = sweep.journal();
    let (finished, runs) = (journal.done(), sweep.runs());
    let folder = sweep.path().display();
    note_cut(sweep);
    if finished == 0 {
        return Ok(());
    }
    if finished < runs {
        output::note(&format!(
            "{folder}: {finished} of {runs} runs are there; going on"
        ));
    }
    sweep.verify(&Simulator, stop).map_err(failed)
}

/// What was run and what came out, as a page.
fn page(plan: &Plan, summary: &Summary, command: &str) -> html::Page {
    let scenario = plan.scenario();
    let name = scenario.map_or("", |scenario| match scenario.about.as_str() {
        "" => &scenario.file,
        about => about,
    });
    let mut facts: Vec<String> = Vec::new();
    let file = scenario.map_or("", |scenario| &scenario.file);
    facts.push(format!(
        "{file}: {} runs of {} points, {} seeds.",
        summary.finished,
        plan.points(),
        plan.seeds.len()
    ));
    for dimension in &plan.dimensions {
        facts.push(format!("{}={}", dimension.knob, dimension.values.join(",")));
    }
    let text = scenario.map_or("", |scenario| scenario.text());
    html::sweep::page(summary, name, text, facts, command)
}

fn failed(error: SweepError) -> CliError {
    match error {
        SweepError::Load(error) => unusable(error),
        error => CliError::Sweep(error.to_string()),
    }
}

fn stopped(sweep: &sweep::Sweep) -> CliError {
    let (finished, runs) = (sweep.journal().done(), sweep.runs());
    let folder = sweep.path().display();
    CliError::StoppedSweep(format!(
        "stopped: {finished} of {runs} runs are in {folder}; the same command goes on from there"
    ))
}

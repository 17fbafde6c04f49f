//! `stealtime simulate`: a scenario's variants side by side.

mod one;

use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stealtime_lab::LoadError;
use stealtime_lab::compare::{Comparison, compare};
use stealtime_lab::run::{Runs, run};
use stealtime_lab::scenario::{MOST_SEEDS, Scenario, Variant};
use stealtime_lab::simulate::Simulator;
use stealtime_lab::units::{Plain, time};
use stealtime_report::terminal::Style;
use stealtime_report::{html, json, terminal};

use crate::args::{Form, threads};
use crate::error::CliError;
use crate::output;
use crate::progress::RunProgress;
use crate::report::ReportTo;

/// The most bytes of a scenario on standard input.
const MOST_BYTES: u64 = 4 << 20;

/// Run a scenario's variants on the simulated host, side by side.
///
/// Each variant runs with every seed; what they differ in is shown with 95% confidence intervals.
/// Ctrl-C ends the runs and shows what was finished.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime simulate scenarios/halt-polling.toml
  stealtime simulate scenarios/halt-polling.toml --seeds 20 --duration 5s
  stealtime simulate scenarios/halt-polling.toml --set kvm.halt_poll_ns=50us --variant polling
  stealtime simulate scenarios/halt-polling.toml --timeline 2ms --of off
  stealtime simulate scenarios/halt-polling.toml --trace polling.dat --of polling
  stealtime simulate scenarios/halt-polling.toml --report polling.html
  stealtime simulate scenarios/halt-polling.toml --format json")]
pub(crate) struct Simulate {
    /// A scenario file (see docs/scenarios.md); `-` is standard input
    #[arg(value_name = "SCENARIO")]
    scenario: PathBuf,

    /// Set a knob in all variants that do not set it themselves (repeat for each knob)
    #[arg(long, value_name = "KNOB=VALUE")]
    set: Vec<String>,

    /// Only these variants; the first one in the file is what the others are compared with
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    variant: Vec<String>,

    /// How many seeds, instead of those of the scenario
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SEEDS as u64))]
    seeds: Option<u64>,

    /// How long each run is measured, such as 500ms or 10s, instead of what the scenario says
    #[arg(long, value_name = "TIME", value_parser = duration)]
    duration: Option<u64>,

    /// How many runs at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,

    /// Say how fast the simulation was
    #[arg(long)]
    stats: bool,

    /// Write one more run, with the first seed, as a trace.dat that `analyze` and `export` read
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Draw what CPUs did in so much time after the warm-up, such as 5ms, in one more run
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["json", "format"])]
    timeline: Option<u64>,

    /// The CPUs to draw (repeat, or separate by commas); without it the first 16
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "timeline")]
    cpu: Vec<u16>,

    /// The variant of --trace and --timeline; without it the first one
    #[arg(long, value_name = "VARIANT")]
    of: Option<String>,
}

/// How fast the simulation was.
#[derive(Debug, Serialize)]
struct Speed {
    runs: usize,
    jobs: usize,
    events: u64,
    simulated_seconds: f64,
    seconds: f64,
    events_per_second: f64,
    simulated_seconds_per_second: f64,
}

/// A comparison, and how long it took if that was asked for.
#[derive(Debug, Serialize)]
struct Output<'r> {
    #[serde(flatten)]
    comparison: &'r Comparison,
    #[serde(skip_serializing_if = "Option::is_none")]
    stats: Option<Speed>,
}

impl Simulate {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        self.report
            .check(self.form.is_json() || self.timeline.is_some())?;
        let mut scenario = load(&self.scenario)?;
        if let Some(ns) = self.duration {
            scenario.set_duration_ns(ns);
        }
        if let Some(seeds) = self.seeds {
            scenario.set_seeds(usize::try_from(seeds).unwrap_or(MOST_SEEDS));
        }
        set_knobs(&mut scenario, &self.set)?;
        let variants = chosen(&scenario, &self.variant, &self.set)?;
        let closer = self.closer(&variants)?;
        let jobs = threads(self.jobs);
        let begin = Instant::now();
        let bar = RunProgress::new("simulate", scenario.seeds.len() * variants.len());
        let stop = output::stop_by_interrupt();
        let runs = run(&Simulator, &scenario, &variants, jobs, stop, &|done, _| {
            bar.done(done)
        });
        drop(bar);
        let runs = runs.map_err(unusable)?;
        let speed = self
            .stats
            .then(|| speed(&runs, jobs.get(), begin.elapsed().as_secs_f64()));
        let comparison = compare(&scenario, &runs);
        if !self.report.is_stdout() {
            self.show(&comparison, speed)?;
        }
        self.report
            .write(|command| html::simulate::page(&comparison, scenario.text(), command))?;
        ended(&comparison)?;
        self.look(&scenario, closer)
    }

    /// The variant of `--of`.
    fn closer<'s>(&self, variants: &[&'s Variant]) -> Result<Option<&'s Variant>, CliError> {
        let Some(name) = &self.of else {
            return Ok(variants.first().copied());
        };
        if self.trace.is_none() && self.timeline.is_none() {
            let problem = "--of chooses the variant of --trace and --timeline: add one of them";
            return Err(CliError::Simulate(problem.to_owned()));
        }
        let found = variants
            .iter()
            .find(|variant| variant.name == *name)
            .copied();
        let none = || CliError::Simulate(format!("--of {name}: no such variant is run"));
        found.map(Some).ok_or_else(none)
    }

    /// Does what `--trace` and `--timeline` ask for.
    fn look(&self, scenario: &Scenario, variant: Option<&Variant>) -> Result<(), CliError> {
        let Some(variant) = variant else {
            return Ok(());
        };
        let stop = output::stop_by_interrupt();
        if let Some(ns) = self.timeline {
            let text = one::timeline(scenario, variant, ns, &self.cpu, stop)?;
            output::to_stdout(|out| out.write_all(text.as_bytes()))?;
        }
        match &self.trace {
            Some(path) => one::trace(scenario, variant, path, stop),
            None => Ok(()),
        }
    }

    fn show(&self, comparison: &Comparison, speed: Option<Speed>) -> Result<(), CliError> {
        output::to_stdout(|out| {
            if self.form.is_json() {
                return json::write_any(
                    &Output {
                        comparison,
                        stats: speed,
                    },
                    out,
                );
            }
            let style = Style::new(output::color());
            out.write_all(terminal::compare::render(comparison, style).as_bytes())?;
            match speed {
                Some(speed) => writeln!(out, "\n{}", shown(&speed)),
                None => Ok(()),
            }
        })
    }
}

pub(super) fn load(path: &Path) -> Result<Scenario, CliError> {
    if path != Path::new("-") {
        return Scenario::load(path).map_err(unusable);
    }
    let mut text = String::new();
    let read = std::io::stdin()
        .lock()
        .take(MOST_BYTES)
        .read_to_string(&mut text);
    read.map_err(CliError::Spool)?;
    Scenario::from_text("standard input", &text).map_err(unusable)
}

/// Applies `--set`.
pub(super) fn set_knobs(scenario: &mut Scenario, set: &[String]) -> Result<(), CliError> {
    for set in set {
        let (knob, value) = split(set)?;
        let wrong = |error| CliError::Simulate(format!("--set {set}: {error}"));
        scenario.set(knob, value).map_err(wrong)?;
    }
    Ok(())
}

/// The variants of `--variant`, or all, in the order of the file; `set` is what `--set` says.
pub(super) fn chosen<'s>(
    scenario: &'s Scenario,
    names: &[String],
    set: &[String],
) -> Result<Vec<&'s Variant>, CliError> {
    let all = &scenario.variants;
    for name in names {
        if !all.iter().any(|variant| variant.name == *name) {
            let there: Vec<&str> = all.iter().map(|v| v.name.as_str()).collect();
            let there = there.join(", ");
            let problem = format!("--variant {name}: no such variant; there are {there}");
            return Err(CliError::Simulate(problem));
        }
    }
    let variants: Vec<&Variant> = all
        .iter()
        .filter(|v| names.is_empty() || names.contains(&v.name))
        .collect();
    // A knob that every variant sets itself cannot be set for all.
    for set in set {
        let (knob, _) = split(set)?;
        let own = |variant: &&&Variant| variant.settings.iter().any(|s| s.knob == knob);
        if variants.iter().filter(own).count() == variants.len() {
            let problem = format!("--set {set} changes nothing: each variant sets {knob} itself");
            return Err(CliError::Simulate(problem));
        }
    }
    Ok(variants)
}

pub(super) fn unusable(error: LoadError) -> CliError {
    match error {
        LoadError::Wrong(_) => CliError::Scenario(error.to_string()),
        _ => CliError::Simulate(error.to_string()),
    }
}

fn split(set: &str) -> Result<(&str, &str), CliError> {
    let wrong = || CliError::Simulate(format!("--set {set}: expected KNOB=VALUE"));
    set.split_once('=')
        .map(|(knob, value)| (knob.trim(), value.trim()))
        .ok_or_else(wrong)
}

pub(super) fn duration(text: &str) -> Result<u64, String> {
    match time(text, Plain::Refused)? {
        ns @ 1_000..=1_000_000_000_000_000 => Ok(ns),
        _ => Err("must be within 1us and 1000000s".to_owned()),
    }
}

fn speed(runs: &Runs, jobs: usize, seconds: f64) -> Speed {
    let done = || {
        runs.variants
            .iter()
            .flat_map(|variant| variant.runs.iter().flatten())
    };
    let events: u64 = done().map(|run| run.events).sum();
    let simulated_seconds = done().map(|run| run.simulated_ns as f64 / 1e9).sum::<f64>();
    // A run takes time, but a clock may be coarse.
    let seconds = seconds.max(1e-9);
    Speed {
        runs: done().count(),
        jobs,
        events,
        simulated_seconds,
        seconds,
        events_per_second: events as f64 / seconds,
        simulated_seconds_per_second: simulated_seconds / seconds,
    }
}

fn shown(speed: &Speed) -> String {
    let Speed {
        runs,
        jobs,
        events,
        simulated_seconds,
        seconds,
        ..
    } = speed;
    format!(
        "{runs} runs, {jobs} at a time: {events} events in {seconds:.2} s are {:.2} million a second; \
         {simulated_seconds:.2} s simulated are {:.2} a second",
        speed.events_per_second / 1e6,
        speed.simulated_seconds_per_second
    )
}

/// What is left to say when the result was shown.
fn ended(comparison: &Comparison) -> Result<(), CliError> {
    if comparison.partial {
        return Err(CliError::Stopped);
    }
    match comparison
        .variants
        .iter()
        .map(|variant| variant.failures.len())
        .sum()
    {
        0 => Ok(()),
        failed => Err(CliError::Runs {
            failed,
            all: comparison.variants.len() * comparison.seeds.len(),
        }),
    }
}

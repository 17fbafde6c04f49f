//! `stealtime simulate`: a scenario's variants side by side.

mod host;
mod one;

use std::path::PathBuf;
use std::time::Instant;

use clap::Args;
use serde::Serialize;
use stealtime_lab::compare::{Comparison, compare};
use stealtime_lab::run::{Runs, run};
use stealtime_lab::scenario::{Scenario, Variant};
use stealtime_lab::simulate::Simulator;
use stealtime_report::terminal::Style;
use stealtime_report::{html, json, terminal};

use super::run_args::{RunArgs, duration, unusable};
use crate::args::{CpuRange, Form};
use crate::error::CliError;
use crate::output;
use crate::progress::RunProgress;
use crate::report::ReportTo;

/// Run a scenario's variants on the simulated host, side by side.
///
/// Each variant runs with every seed. The output has their differences, with 95% confidence
/// intervals. Ctrl-C ends the runs and shows the finished ones.
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
    #[command(flatten)]
    runs: RunArgs,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,

    /// Show the speed of the simulation
    #[arg(long)]
    stats: bool,

    /// Write one more run, with the first seed, as a trace.dat that `analyze` and `export` read
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,

    /// Draw the CPUs' tasks for this time after the warm-up, such as 5ms, in one more run
    #[arg(long, value_name = "TIME", value_parser = duration, conflicts_with_all = ["json", "format"])]
    timeline: Option<u64>,

    /// The CPUs to draw, such as 0-3,8; without it the first 16
    #[arg(long, value_name = "N", value_delimiter = ',', requires = "timeline")]
    cpu: Vec<CpuRange>,

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
        self.report.check(
            self.form.is_json() || self.timeline.is_some(),
            &[&self.runs.scenario],
        )?;
        if self.stats && self.report.is_stdout() {
            return Err(CliError::OfNoUse {
                option: "--stats",
                why: "says it below the tables, and with --report - there are none",
            });
        }
        if let Some(path) = &self.trace {
            output::check_named("--trace", path, "a file")?;
            output::check_apart(path, &self.runs.scenario)?;
            output::check_report("--trace", path, self.report.file())?;
            output::check(path)?;
        }
        let scenario = self.runs.scenario()?;
        let variants = self.runs.variants(&scenario)?;
        let closer = self.closer(&variants)?;
        let drawn = CpuRange::numbers(&self.cpu);
        if let Some(variant) = closer {
            one::check_cpus(&scenario, variant, &drawn)?;
        }
        let jobs = self.runs.jobs();
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
            let is_file_wanted = self.report.is_file() || self.trace.is_some();
            output::go_on(self.show(&comparison, speed), is_file_wanted)?;
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
        let unknown = || {
            let known: Vec<&str> = variants.iter().map(|v| v.name.as_str()).collect();
            let known = known.join(", ");
            CliError::Simulate(format!(
                "--of {name}: no such variant is run; there are {known}"
            ))
        };
        found.map(Some).ok_or_else(unknown)
    }

    /// Does what `--trace` and `--timeline` ask for.
    fn look(&self, scenario: &Scenario, variant: Option<&Variant>) -> Result<(), CliError> {
        let Some(variant) = variant else {
            return Ok(());
        };
        let stop = output::stop_by_interrupt();
        if let Some(ns) = self.timeline {
            let text = one::timeline(scenario, variant, ns, &CpuRange::numbers(&self.cpu), stop)?;
            output::to_stdout(|writer| writer.write_all(text.as_bytes()))?;
        }
        match &self.trace {
            Some(path) => one::trace(scenario, variant, path, stop),
            None => Ok(()),
        }
    }

    fn show(&self, comparison: &Comparison, speed: Option<Speed>) -> Result<(), CliError> {
        output::to_stdout(|writer| {
            if self.form.is_json() {
                return json::write_any(
                    &Output {
                        comparison,
                        stats: speed,
                    },
                    writer,
                );
            }
            let style = Style::new(output::color());
            writer.write_all(terminal::compare::render(comparison, style).as_bytes())?;
            match speed {
                Some(speed) => writeln!(writer, "\n{}", shown(&speed)),
                None => Ok(()),
            }
        })
    }
}

fn speed(runs: &Runs, jobs: usize, seconds: f64) -> Speed {
    let completed = || {
        runs.variants
            .iter()
            .flat_map(|variant| variant.runs.iter().flatten())
    };
    let events: u64 = completed().map(|run| run.events).sum();
    let simulated_seconds = completed()
        .map(|run| run.simulated_ns as f64 / 1e9)
        .sum::<f64>();
    // A run takes time, but a clock may be coarse.
    let seconds = seconds.max(1e-9);
    Speed {
        runs: completed().count(),
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
        "{runs} runs, {jobs} at a time: {events} events in {seconds:.2} s are {:.2} million a second;\n\
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

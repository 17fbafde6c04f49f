//! `stealtime reproduce`: published results next to simulated ones.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Args;
use serde::Serialize;
use stealtime_lab::run::RunError;
use stealtime_lab::simulate::Simulator;
use stealtime_published::{
    ReproduceError, Reproduced, Request, chosen, html, reproduce, runs_of, terminal,
};
use stealtime_report::json;
use stealtime_report::terminal::Style;

use crate::args::{Form, threads};
use crate::error::CliError;
use crate::output;
use crate::progress::RunProgress;
use crate::report::ReportTo;

/// Run the experiments of published results on the simulated host, and compare.
///
/// Figures of machines without a mechanism may be fitted, by the parameters that are shown; what
/// the mechanism changes is predicted. Exit status 1: something published does not come out.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime reproduce
  stealtime reproduce notification-suppression --quick
  stealtime reproduce wakeup-batching --tolerance 10
  stealtime reproduce --report published.html
  stealtime reproduce --format json")]
pub(crate) struct Reproduce {
    /// Only these: posted-timer, wakeup-batching, counter-offsets, directed-yield,
    /// notification-suppression
    #[arg(value_name = "RESULT")]
    results: Vec<String>,

    /// Fewer seeds and shorter runs: wider intervals
    #[arg(long)]
    quick: bool,

    /// Largest error of a figure, in percent of the published value
    #[arg(long, value_name = "PERCENT", default_value_t = 25.0, value_parser = percent)]
    tolerance: f64,

    /// Runs at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,
}

#[derive(Debug, Serialize)]
struct Output<'r> {
    quick: bool,
    tolerance_percent: f64,
    results: &'r [Reproduced],
}

impl Reproduce {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        self.report.check(self.form.is_json(), &[])?;
        let chosen = chosen(&self.results).map_err(failed)?;
        let mut runs = 0;
        for result in &chosen {
            runs += runs_of(result, self.quick).map_err(failed)?;
        }
        let request = Request {
            quick: self.quick,
            tolerance: self.tolerance,
            threads: threads(self.jobs),
        };
        let bar = RunProgress::new("reproduce", runs);
        let finished = AtomicUsize::new(0);
        let progress = || bar.done(finished.fetch_add(1, Ordering::Relaxed) + 1);
        let stop = output::stop_by_interrupt();
        let mut results = Vec::new();
        for result in &chosen {
            results.push(reproduce(&Simulator, result, request, stop, &progress).map_err(failed)?);
        }
        drop(bar);
        if !self.report.is_stdout() {
            output::go_on(self.show(&results), self.report.is_file())?;
        }
        self.report
            .write(|command| html::page(&results, self.tolerance, self.quick, command))?;
        match results.iter().map(Reproduced::misses).sum() {
            0 => Ok(()),
            misses => Err(CliError::Found(format!(
                "reproduce: {misses} published figures or claims do not come out"
            ))),
        }
    }

    fn show(&self, results: &[Reproduced]) -> Result<(), CliError> {
        output::to_stdout(|writer| {
            if self.form.is_json() {
                let output = Output {
                    quick: self.quick,
                    tolerance_percent: self.tolerance,
                    results,
                };
                return json::write_any(&output, writer);
            }
            let style = Style::new(output::color());
            let text = terminal::render(results, self.tolerance, style);
            writer.write_all(text.as_bytes())
        })
    }
}

fn failed(error: ReproduceError) -> CliError {
    match error {
        ReproduceError::Run {
            error: RunError::Stopped,
            ..
        } => CliError::Stopped,
        error => CliError::Simulate(error.to_string()),
    }
}

/// A tolerance that is no number, or out of range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("must be a number within 0 and 1000")]
struct PercentError;

fn percent(text: &str) -> Result<f64, PercentError> {
    match text.parse::<f64>() {
        Ok(value) if (0.0..=1000.0).contains(&value) => Ok(value),
        _ => Err(PercentError),
    }
}

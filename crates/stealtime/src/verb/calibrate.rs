//! `stealtime calibrate`: fits what scenarios of published results leave open.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use chrono::{Datelike, Utc};
use clap::Args;
use serde::Serialize;
use stealtime_lab::run::RunError;
use stealtime_lab::simulate::Simulator;
use stealtime_published::calibrate::{
    CalibrateError, CalibrateRequest, Calibrated, Date, Fit, calibrate, terminal,
};
use stealtime_published::{Part, PublishedResult, ReproduceError, chosen};
use stealtime_report::json;
use stealtime_report::terminal::Style;

use crate::args::{Form, threads};
use crate::error::CliError;
use crate::output;

/// Fit the parameters that published results' scenarios list under [[calibrate]].
///
/// Each is fitted to one published figure of a machine without the mechanism; figures with it are
/// refused. Changed values are written to the scenario files, and comments stay. Each value has the
/// date, the rest of the error, and the slope of the figure. The scenarios are built into reproduce, so
/// build it anew after a change. Exit status 1: --check has found a difference.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime calibrate --dry-run
  stealtime calibrate notification-suppression
  stealtime calibrate --check")]
pub(crate) struct Calibrate {
    /// Only these: posted-timer, wakeup-batching, counter-offsets, directed-yield,
    /// notification-suppression
    #[arg(value_name = "RESULT")]
    results: Vec<String>,

    /// Where the scenario files are
    #[arg(long, value_name = "DIR", default_value = "scenarios/published")]
    scenarios: PathBuf,

    /// Write nothing; exit status 1 if a value is not what the fit gives
    #[arg(long, conflicts_with = "dry_run")]
    check: bool,

    /// Write nothing
    #[arg(long)]
    dry_run: bool,

    /// Runs at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N")]
    jobs: Option<NonZeroUsize>,

    #[command(flatten)]
    form: Form,
}

#[derive(Debug, Serialize)]
struct Output<'f> {
    written: bool,
    fits: &'f [Fit],
}

impl Calibrate {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let chosen = chosen(&self.results).map_err(|error| failed(error.into()))?;
        let request = CalibrateRequest {
            today: today()?,
            threads: threads(self.jobs),
        };
        let mut fits = Vec::new();
        let mut changed: Vec<(PathBuf, String)> = Vec::new();
        for result in &chosen {
            for part in &result.scenario {
                let path = self.scenarios.join(part.file());
                let text = read(&path)?;
                let Calibrated {
                    fits: new,
                    text: after,
                } = one(result, part, &text, request)?;
                fits.extend(new);
                if after != text {
                    changed.push((path, after));
                }
            }
        }
        // All fits are done before the first file is touched.
        let writes = !self.check && !self.dry_run;
        if writes {
            for (path, text) in &changed {
                output::to_file(path, |writer| {
                    let written = writer.write_all(text.as_bytes());
                    written.map_err(|source| CliError::Write {
                        path: path.clone(),
                        source,
                    })
                })?;
            }
        }
        self.show(&fits, writes && !changed.is_empty())?;
        match fits.iter().filter(|fit| fit.changed).count() {
            different if self.check && different > 0 => Err(CliError::Found(format!(
                "calibrate: {different} of {} values are not what the fit gives",
                fits.len()
            ))),
            _ => Ok(()),
        }
    }

    fn show(&self, fits: &[Fit], written: bool) -> Result<(), CliError> {
        output::to_stdout(|writer| {
            if self.form.is_json() {
                return json::write_any(&Output { written, fits }, writer);
            }
            let style = Style::new(output::color());
            writer.write_all(terminal::render(fits, style).as_bytes())
        })
    }
}

fn one(
    result: &PublishedResult,
    part: &Part,
    text: &str,
    request: CalibrateRequest,
) -> Result<Calibrated, CliError> {
    let stop = output::stop_by_interrupt();
    calibrate(&Simulator, result, part, text, request, stop, &|| {}).map_err(failed)
}

fn read(path: &Path) -> Result<String, CliError> {
    std::fs::read_to_string(path).map_err(|error| {
        CliError::Simulate(format!(
            "{}: {error}; --scenarios DIR says where the published results' scenarios are",
            path.display()
        ))
    })
}

/// The date in UTC, which does not depend on the place.
fn today() -> Result<Date, CliError> {
    let date = Utc::now().date_naive();
    let wrong = |_| CliError::Simulate(format!("the system's clock says {date}"));
    Ok(Date {
        year: u16::try_from(date.year()).map_err(wrong)?,
        month: u8::try_from(date.month()).map_err(wrong)?,
        day: u8::try_from(date.day()).map_err(wrong)?,
    })
}

fn failed(error: CalibrateError) -> CliError {
    match error {
        CalibrateError::Reproduce(ReproduceError::Run {
            error: RunError::Stopped,
            ..
        }) => CliError::Stopped,
        CalibrateError::Reproduce(ReproduceError::Scenario(error)) => {
            CliError::Scenario(error.to_string())
        }
        error => CliError::Simulate(error.to_string()),
    }
}

//! Fits the parameters that a scenario lists under `[[calibrate]]` to published figures of machines
//! *without* the mechanism, and to nothing else.
//!
//! The search is a bisection over whole steps, with the same seeds at each value, so it is a pure
//! function of the scenario. A bisection needs no smoothness. On a steep or ragged slope it ends
//! between two values with the published figure between them. The residual is the error of the
//! nearer one.

mod edit;
mod parameter;
mod search;
pub mod terminal;

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use crate::{Bound, Effect, Figure, Part, PublishedResult, ReproduceError, Side, check, measure};
use stealtime_lab::run::{Runner, run};
use stealtime_lab::scenario::Scenario;
use stealtime_lab::spelling::suggestion;
use stealtime_lab::stats::estimate;

pub use parameter::{FitRecord, Parameter, ValueKind};
pub use toml::value::Date;

/// How often all parameters of a scenario are fitted anew, each with the others' new values.
const MOST_ROUNDS: usize = 5;

/// Why a parameter cannot be fitted.
#[derive(Debug, thiserror::Error)]
pub enum CalibrateError {
    /// No published figure has this name.
    #[error(
        "{scenario}: {parameter} is to be fitted to {to:?}, which {result} does not have; {help}"
    )]
    NoFigure {
        /// The scenario.
        scenario: String,
        /// The parameter.
        parameter: String,
        /// The figure asked for.
        to: String,
        /// The result.
        result: String,
        /// The name that was probably meant.
        help: String,
    },
    /// The figure is of a machine with the mechanism: it must be predicted.
    #[error(
        "{scenario}: {parameter} is to be fitted to {to:?}, which was measured with the mechanism and \
         must be predicted; only figures without it may be fitted"
    )]
    NotWithout {
        /// The scenario.
        scenario: String,
        /// The parameter.
        parameter: String,
        /// The figure.
        to: String,
    },
    /// The figure is no number of this scenario that a run could meet.
    #[error("{scenario}: {parameter} cannot be fitted to {to:?}: {why}")]
    NoValue {
        /// The scenario.
        scenario: String,
        /// The parameter.
        parameter: String,
        /// The figure.
        to: String,
        /// What it is instead.
        why: &'static str,
    },
    /// The figure is not between what the ends of the range give.
    #[error("{0}")]
    NotBracketed(Box<NotBracketed>),
    /// Parameters of one scenario chase one another.
    #[error(
        "{scenario}: after {rounds} rounds over its parameters {parameter} still changes; fit fewer of \
         them, or narrow the ranges"
    )]
    NotSettled {
        /// The scenario.
        scenario: String,
        /// A parameter that still changes.
        parameter: String,
        /// How many rounds there were.
        rounds: usize,
    },
    /// The scenario cannot be run, or its text cannot be edited.
    #[error("{0}")]
    Reproduce(#[from] ReproduceError),
}

/// A figure that is not between what the ends of a parameter's range give.
#[derive(Debug, thiserror::Error)]
#[error(
    "{scenario}: no {parameter} from {low} to {high} gives {to:?}: {published} {unit} is not between \
     {at_low} {unit} at {low} and {at_high} {unit} at {high}; widen the range"
)]
pub struct NotBracketed {
    /// The scenario.
    pub scenario: String,
    /// The parameter.
    pub parameter: String,
    /// The figure.
    pub to: String,
    /// What was published.
    pub published: f64,
    /// Its unit.
    pub unit: String,
    /// The lowest value.
    pub low: String,
    /// What it gives.
    pub at_low: f64,
    /// The highest value.
    pub high: String,
    /// What it gives.
    pub at_high: f64,
}

impl From<stealtime_lab::LoadError> for CalibrateError {
    fn from(error: stealtime_lab::LoadError) -> Self {
        Self::Reproduce(error.into())
    }
}

/// How a fit is done.
#[derive(Clone, Copy, Debug)]
pub struct CalibrateRequest {
    /// What a new value is dated with.
    pub today: Date,
    /// How many runs at a time.
    pub threads: NonZeroUsize,
}

/// A parameter and its fitted value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// The scenario.
    pub scenario: String,
    /// Where the parameter stands in it.
    pub parameter: String,
    /// The value that stood there, as it is written.
    pub before: String,
    /// The fitted one.
    pub value: String,
    /// Whether it is another one.
    pub changed: bool,
    /// The figure that it is fitted to.
    pub to: String,
    /// The figure's unit.
    pub unit: String,
    /// What was published.
    pub published: f64,
    /// What the simulation gives with the fitted value.
    pub reached: f64,
    /// Half the width of its 95 % interval; `None` for one seed.
    pub half_width: Option<f64>,
    /// How far off that is, in percent of what was published.
    pub residual_percent: f64,
    /// By how many percent the figure changes if the parameter grows by one.
    pub slope: f64,
    /// How many values were tried.
    pub tried: usize,
}

/// A scenario and what was fitted in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibrated {
    /// The fits, in the order of the file.
    pub fits: Vec<Fit>,
    /// The file's text with the fitted values: the same bytes if nothing is different.
    pub text: String,
}

/// Fits the parameters of a scenario; `text` is its file, `progress` is called after each run.
///
/// # Errors
///
/// [`CalibrateError`].
pub fn calibrate(
    runner: &dyn Runner,
    result: &PublishedResult,
    part: &Part,
    text: &str,
    request: CalibrateRequest,
    stop: &AtomicBool,
    progress: &(dyn Fn() + Sync),
) -> Result<Calibrated, CalibrateError> {
    part.read(text)?;
    let calibrations = part.parameters(text)?;
    let targets = calibrations.iter().map(|c| target(result, part, c));
    let targets: Vec<&Figure> = targets.collect::<Result<_, _>>()?;
    let runs = Evaluate {
        runner,
        part,
        request,
        stop,
        progress,
    };
    let mut new = text.to_owned();
    let mut values: Vec<u64> = calibrations.iter().map(|c| c.value).collect();
    let mut found: Vec<search::Found> = Vec::new();
    // With one parameter a second round would give the first again.
    let rounds = if calibrations.len() > 1 {
        MOST_ROUNDS
    } else {
        1
    };
    let mut unsettled = None;
    for _ in 0..rounds {
        found.clear();
        unsettled = None;
        for ((calibration, figure), value) in calibrations.iter().zip(&targets).zip(&mut values) {
            let fit = runs.fit(&new, calibration, figure)?;
            if *value != fit.value {
                *value = fit.value;
                unsettled = Some(calibration.parameter.clone());
                let shown = calibration.kind.show(fit.value);
                new = edit::value(
                    &new,
                    &calibration.parameter,
                    calibration.kind,
                    fit.value,
                    &shown,
                )?;
            }
            found.push(fit);
        }
        if unsettled.is_none() {
            break;
        }
    }
    if let (Some(parameter), true) = (unsettled, calibrations.len() > 1) {
        return Err(CalibrateError::NotSettled {
            scenario: part.name.clone(),
            parameter,
            rounds: MOST_ROUNDS,
        });
    }
    let mut fits = Vec::new();
    for ((calibration, figure), found) in calibrations.iter().zip(&targets).zip(&found) {
        let fit = shown(part, calibration, figure, found);
        if let Some(record) = renewed(calibration, &fit, request.today) {
            new = edit::record(&new, &calibration.parameter, &record)?;
        }
        fits.push(fit);
    }
    Ok(Calibrated { fits, text: new })
}

/// The figure that a parameter is fitted to, if it may be.
fn target<'r>(
    result: &'r PublishedResult,
    part: &Part,
    calibration: &Parameter,
) -> Result<&'r Figure, CalibrateError> {
    let (scenario, parameter) = (part.name.clone(), calibration.parameter.clone());
    let figure_name = calibration.to.clone();
    let Some(figure) = result
        .figure
        .iter()
        .find(|figure| figure.name == figure_name)
    else {
        let names: Vec<&str> = result.figure.iter().map(|f| f.name.as_str()).collect();
        return Err(CalibrateError::NoFigure {
            help: suggestion(&figure_name, &names),
            result: result.name.clone(),
            scenario,
            parameter,
            to: figure_name,
        });
    };
    if figure.side != Side::Without || figure.effect != Effect::None {
        return Err(CalibrateError::NotWithout {
            scenario,
            parameter,
            to: figure_name,
        });
    }
    let reason = if figure.bound != Bound::Value {
        "it is a limit"
    } else if figure.scenario != part.name {
        "it is compared with another scenario's runs"
    } else {
        return Ok(figure);
    };
    Err(CalibrateError::NoValue {
        scenario,
        parameter,
        to: figure_name,
        why: reason,
    })
}

/// What runs a scenario at a value.
struct Evaluate<'a> {
    runner: &'a dyn Runner,
    part: &'a Part,
    request: CalibrateRequest,
    stop: &'a AtomicBool,
    progress: &'a (dyn Fn() + Sync),
}

impl Evaluate<'_> {
    /// Searches one parameter's value. The scenario's other parameters stay.
    fn fit(
        &self,
        text: &str,
        calibration: &Parameter,
        figure: &Figure,
    ) -> Result<search::Found, CalibrateError> {
        let (low, high) = calibration.range;
        let steps = (high - low) / calibration.step;
        let value_of = |step: u64| low + step * calibration.step;
        let found = search::search(steps, value_of, figure.value, &mut |value| {
            self.figure(text, calibration, figure, value)
        })?;
        found.map_err(|(at_low, at_high)| {
            CalibrateError::NotBracketed(Box::new(NotBracketed {
                scenario: self.part.name.clone(),
                parameter: calibration.parameter.clone(),
                to: figure.name.clone(),
                published: figure.value,
                unit: figure.unit.clone(),
                low: calibration.kind.show(low),
                at_low,
                high: calibration.kind.show(high),
                at_high,
            }))
        })
    }

    /// The figure's mean and half the width of its interval at a value of the parameter.
    fn figure(
        &self,
        text: &str,
        calibration: &Parameter,
        figure: &Figure,
        value: u64,
    ) -> Result<(f64, Option<f64>), CalibrateError> {
        let shown = calibration.kind.show(value);
        let text = edit::value(
            text,
            &calibration.parameter,
            calibration.kind,
            value,
            &shown,
        )?;
        let mut scenario: Scenario = self.part.read(&text)?;
        if let Some(seeds) = calibration.seeds {
            scenario.set_seeds(seeds);
        }
        if let Some(ns) = calibration.duration_ns {
            scenario.set_duration_ns(ns);
        }
        let variants = scenario.variants.iter();
        let variants: Vec<_> = variants.filter(|v| v.name == figure.variant).collect();
        let progress = |_, _| (self.progress)();
        let threads = self.request.threads;
        let runs = run(
            self.runner,
            &scenario,
            &variants,
            threads,
            self.stop,
            &progress,
        )?;
        check(&self.part.name, &runs)?;
        let values = measure::values(figure, &runs, &figure.variant)?;
        let scale = measure::scale(&figure.unit);
        let no_runs = || {
            let text = format!("figure {:?}: nothing was run", figure.name);
            ReproduceError::Data(text)
        };
        let estimate = estimate(&values).ok_or_else(no_runs)?;
        let half = estimate.half_width.map(|half| half / scale);
        Ok((estimate.mean / scale, half))
    }
}

fn shown(part: &Part, calibration: &Parameter, figure: &Figure, found: &search::Found) -> Fit {
    let residual = (found.figure - figure.value) / figure.value.abs() * 100.0;
    Fit {
        scenario: part.name.clone(),
        parameter: calibration.parameter.clone(),
        before: calibration.kind.show(calibration.value),
        value: calibration.kind.show(found.value),
        changed: calibration.value != found.value,
        to: calibration.to.clone(),
        unit: figure.unit.clone(),
        published: figure.value,
        reached: found.figure,
        half_width: found.half_width,
        residual_percent: rounded(residual),
        slope: rounded(found.slope),
        tried: found.tried,
    }
}

/// What a file keeps of a number: enough to read, and the same on any machine.
fn rounded(number: f64) -> f64 {
    let rounded = (number * 1_000.0).round() / 1_000.0;
    // No -0.0.
    if rounded == 0.0 { 0.0 } else { rounded }
}

/// The record to be written, if it is not what the file has. The date is that of the value.
fn renewed(calibration: &Parameter, fit: &Fit, today: Date) -> Option<FitRecord> {
    let recorded = calibration.fitted.as_ref();
    let unchanged = recorded.filter(|_| !fit.changed);
    let is_same = unchanged.is_some_and(|record| {
        record.residual_percent == fit.residual_percent && record.slope == fit.slope
    });
    if is_same {
        return None;
    }
    let date = unchanged.map_or_else(|| today.to_string(), |record| record.date.clone());
    Some(FitRecord {
        date,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        residual_percent: fit.residual_percent,
        slope: fit.slope,
    })
}

#[cfg(test)]
mod tests;

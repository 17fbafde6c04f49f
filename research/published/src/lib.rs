//! Published results next to simulations of the same experiments.
//!
//! A figure of a machine *without* a mechanism may be fitted, by a parameter that no publication
//! gives. Figures *with* the mechanism are predicted. A figure that is off by more than the tolerance
//! is shown with the reason.
//!
//! ```no_run
//! use std::num::NonZeroUsize;
//! use std::sync::atomic::AtomicBool;
//! use stealtime_lab::simulate::Simulator;
//! use stealtime_published::{Request, calibrate, chosen, html, reproduce, terminal};
//! use stealtime_report::terminal::Style;
//!
//! let request = Request { quick: true, tolerance: 25.0, threads: NonZeroUsize::MIN };
//! let stop = AtomicBool::new(false);
//! let mut results = Vec::new();
//! for result in chosen(&[])? {
//!     results.push(reproduce(&Simulator, &result, request, &stop, &|| {})?);
//! }
//! let style = Style::new(false);
//! println!("{}", terminal::render(&results, request.tolerance, style));
//! html::page(&results, request.tolerance, true, "stealtime reproduce").write(std::io::stdout())?;
//! // The fits of `calibrate::calibrate`.
//! let fits: Vec<calibrate::Fit> = Vec::new();
//! println!("{}", calibrate::terminal::render(&fits, style));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod calibrate;
mod data;
pub mod html;
mod measure;
pub mod terminal;

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use stealtime_lab::LoadError;
use stealtime_lab::run::{RunError, Runner, Runs, run};
use stealtime_lab::scenario::{Scenario, Variant};
use stealtime_lab::stats::{Difference, Verdict};

pub use data::{
    Bound, Claim, Effect, Expect, Figure, Fitted, LeftOut, Measure, Part, PublishedResult, Side,
    UNCHANGED_WITHIN_PERCENT, published,
};

/// A full run repeats a scenario with up to this many times the seeds that it lists.
const MOST_REPEATS: usize = 4;
/// An interval of this part of the published effect needs not become smaller.
const BEYOND_DOUBT: f64 = 10.0;
/// The same of an effect that is off by more than the tolerance with all of its interval. More
/// seeds would not change that.
const SURELY_OFF: f64 = 5.0;

/// Why results cannot be reproduced.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// The data that comes along contradicts itself: a defect.
    #[error("{0}")]
    Data(String),
    /// A scenario cannot be run: a defect.
    #[error("{0}")]
    Scenario(#[from] LoadError),
    /// A run gave nothing.
    #[error("scenario {scenario}, variant {variant}: {error}")]
    Run {
        /// The scenario.
        scenario: String,
        /// The variant.
        variant: String,
        /// What happened.
        error: RunError,
    },
    /// No result has this name.
    #[error("no published result {asked:?}; there are {there}")]
    NoResult {
        /// The name given.
        asked: String,
        /// The names there are.
        there: String,
    },
}

/// What is to be done.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Few seeds and short runs.
    pub quick: bool,
    /// How far a figure may be off, in percent of what was published.
    pub tolerance: f64,
    /// How many runs at a time.
    pub threads: NonZeroUsize,
}

/// How a figure's sign compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sign {
    /// The same as published, and not chance.
    Right,
    /// The other one, and not chance.
    Wrong,
    /// The interval includes 0.
    Unclear,
}

/// A figure, published and simulated.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FigureRow {
    /// Its name.
    pub name: String,
    /// Without or with the mechanism.
    pub side: Side,
    /// The unit of the values.
    pub unit: String,
    /// What was published.
    pub published: f64,
    /// Whether that is a limit.
    pub bound: Bound,
    /// What the simulation gives.
    pub simulated: f64,
    /// Half the width of its 95 % interval; `None` for one seed.
    pub half_width: Option<f64>,
    /// How far off it is, in percent of what was published; 0 within a limit.
    pub error_percent: f64,
    /// Not further off than the tolerance.
    pub within: bool,
    /// Whether a parameter was fitted to it.
    pub fitted: bool,
    /// Its sign, of an effect.
    pub sign: Option<Sign>,
    /// Why it is off, if it is.
    pub miss: Option<String>,
}

/// Something published in words, and whether it came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClaimRow {
    /// The words.
    pub says: String,
    /// The metric's mean without.
    pub base: f64,
    /// Half the width of its 95 % interval; `None` for one seed.
    pub base_half_width: Option<f64>,
    /// The metric's mean with.
    pub simulated: f64,
    /// Half the width of its 95 % interval; `None` for one seed.
    pub half_width: Option<f64>,
    /// The change, of pairs with the same seed, in percent of the base; `None` if that is 0.
    pub change_percent: Option<f64>,
    /// Half the width of its 95 % interval; `None` for one seed.
    pub change_half_width: Option<f64>,
    /// Of a claim that nothing changes: the largest change that counts as none, in percent.
    pub within_percent: Option<f64>,
    /// Whether it came out.
    pub holds: bool,
    /// Why not, if not.
    pub miss: Option<String>,
}

/// Figures with a published order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OrderRow {
    /// What they are figures of.
    pub group: String,
    /// Figures by what was published, lowest first.
    pub published: Vec<String>,
    /// The same by what the simulation gives.
    pub simulated: Vec<String>,
    /// How the two compare.
    pub verdict: OrderVerdict,
}

/// How a simulated order compares with the published one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderVerdict {
    /// The same.
    Same,
    /// Means stand otherwise, but only where their intervals overlap: no pair is shown to be the
    /// other way round.
    WithinNoise,
    /// Some pair is the other way round, beyond its intervals.
    Otherwise,
}

/// A result, published and simulated.
#[derive(Clone, Debug, Serialize)]
pub struct Reproduced {
    /// Its name.
    pub name: String,
    /// The document with the figures.
    pub document: String,
    /// The machine.
    pub host: String,
    /// What ran.
    pub workload: String,
    /// Seeds of each of its simulations.
    pub seeds: Vec<usize>,
    /// Parameters that were fitted.
    pub fitted: Vec<Fitted>,
    /// Figures.
    pub figures: Vec<FigureRow>,
    /// Orders.
    pub orders: Vec<OrderRow>,
    /// Words.
    pub claims: Vec<ClaimRow>,
    /// What is not simulated.
    pub left_out: Vec<LeftOut>,
}

impl Reproduced {
    /// Figures and claims that did not come out.
    #[must_use]
    pub fn misses(&self) -> usize {
        let figures = self.figures.iter().filter(|row| !row.within).count();
        figures + self.claims.iter().filter(|row| !row.holds).count()
    }
}

impl ClaimRow {
    /// A claim that nothing changes, with an interval on both sides of the margin: neither shown
    /// nor refuted.
    #[must_use]
    pub fn is_open(&self) -> bool {
        let (Some(change), Some(margin)) = (self.change_percent, self.within_percent) else {
            return false;
        };
        let least = |half: f64| change.abs() - half <= margin;
        !self.holds && self.change_half_width.is_none_or(least)
    }
}

/// The results of these names, all without any.
///
/// # Errors
///
/// [`ReproduceError::NoResult`].
pub fn chosen(names: &[String]) -> Result<Vec<PublishedResult>, ReproduceError> {
    let results = published()?;
    for name in names {
        if !results.iter().any(|result| result.name == *name) {
            let known: Vec<&str> = results.iter().map(|result| result.name.as_str()).collect();
            return Err(ReproduceError::NoResult {
                asked: name.clone(),
                there: known.join(", "),
            });
        }
    }
    let is_chosen = |result: &PublishedResult| names.is_empty() || names.contains(&result.name);
    Ok(results.into_iter().filter(is_chosen).collect())
}

/// How many runs a result takes at least: a full run adds seeds where intervals are wide.
///
/// # Errors
///
/// [`ReproduceError`] for a scenario that cannot be read.
pub fn runs_of(result: &PublishedResult, quick: bool) -> Result<usize, ReproduceError> {
    let mut runs = 0;
    for part in &result.scenario {
        let scenario = part.load(quick)?;
        runs += scenario.seeds.len() * scenario.variants.len();
    }
    Ok(runs)
}

/// Runs a result's scenarios and compares; `progress` is called after each run.
///
/// # Errors
///
/// [`ReproduceError`].
pub fn reproduce(
    runner: &dyn Runner,
    result: &PublishedResult,
    request: Request,
    stop: &AtomicBool,
    progress: &(dyn Fn() + Sync),
) -> Result<Reproduced, ReproduceError> {
    let mut parts = Vec::new();
    for part in &result.scenario {
        let scenario = part.load(request.quick)?;
        let mut runs = repeat(runner, part, &scenario, request, stop, progress)?;
        if !request.quick {
            let limit = scenario.seeds.len().saturating_mul(MOST_REPEATS);
            while runs.seeds.len() < limit && !is_enough(result, part, &runs, request)? {
                let further = more_seeds(&scenario, &runs.seeds, limit);
                runs.append(repeat(runner, part, &further, request, stop, progress)?);
            }
        }
        parts.push(measure::PartRuns {
            name: &part.name,
            runs,
        });
    }
    let all_fitted = result.fitted()?;
    let mut figures = Vec::new();
    for figure in &result.figure {
        let fitted = all_fitted.iter().any(|fitted| fitted.to == figure.name);
        let runs = measure::scenario(&parts, &figure.scenario)?;
        figures.push(measure::figure(figure, runs, request.tolerance, fitted)?);
    }
    let claims = result.claim.iter().map(|claim| {
        let runs = measure::scenario(&parts, &claim.scenario)?;
        measure::claim(claim, runs)
    });
    Ok(Reproduced {
        name: result.name.clone(),
        document: result.document.clone(),
        host: result.host.clone(),
        workload: result.workload.clone(),
        seeds: parts.iter().map(|part| part.runs.seeds.len()).collect(),
        fitted: all_fitted,
        orders: orders(result, &figures),
        figures,
        claims: claims.collect::<Result<_, _>>()?,
        left_out: result.left_out.clone(),
    })
}

/// Runs a part's scenario with the seeds that it has.
fn repeat(
    runner: &dyn Runner,
    part: &Part,
    scenario: &Scenario,
    request: Request,
    stop: &AtomicBool,
    progress: &(dyn Fn() + Sync),
) -> Result<Runs, ReproduceError> {
    let variants: Vec<&Variant> = scenario.variants.iter().collect();
    let notify = |_, _| progress();
    let runs = run(runner, scenario, &variants, request.threads, stop, &notify)?;
    check(&part.name, &runs)?;
    Ok(runs)
}

/// The scenario with as many new seeds as there were, up to `limit` in all.
fn more_seeds(scenario: &Scenario, seeds: &[u64], limit: usize) -> Scenario {
    let mut extended = scenario.clone();
    extended.set_seeds((seeds.len() * 2).min(limit));
    extended.seeds.retain(|seed| !seeds.contains(seed));
    extended
}

/// Whether more seeds would add nothing to a part.
///
/// The interval of each effect must be at most a third of it, or must exclude the published effect
/// beyond doubt. It may be wider where the effect is surely off. Each claim that
/// nothing changes must be shown or refuted.
fn is_enough(
    result: &PublishedResult,
    part: &Part,
    runs: &Runs,
    request: Request,
) -> Result<bool, ReproduceError> {
    let of_part = result.figure.iter().filter(|f| f.scenario == part.name);
    for figure in of_part.filter(|figure| figure.effect != Effect::None) {
        let row = measure::figure(figure, runs, request.tolerance, false)?;
        let Some(half) = row.half_width else {
            return Ok(false);
        };
        let (third, published) = (row.simulated.abs() / 3.0, row.published.abs());
        let nearest = (row.simulated - row.published).abs() - half;
        let part = match nearest > published * request.tolerance / 100.0 {
            true => SURELY_OFF,
            false => BEYOND_DOUBT,
        };
        if half > third.max(published / part) {
            return Ok(false);
        }
    }
    for claim in result.claim.iter().filter(|c| c.scenario == part.name) {
        if measure::claim(claim, runs)?.is_open() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The first run that gave nothing ends all: half a comparison is none.
fn check(scenario: &str, runs: &Runs) -> Result<(), ReproduceError> {
    for variant in &runs.variants {
        if let Some(error) = variant.runs.iter().find_map(|run| run.as_ref().err()) {
            return Err(ReproduceError::Run {
                scenario: scenario.to_owned(),
                variant: variant.name.clone(),
                error: error.clone(),
            });
        }
    }
    Ok(())
}

fn orders(result: &PublishedResult, rows: &[FigureRow]) -> Vec<OrderRow> {
    let mut groups: Vec<(&str, Vec<&FigureRow>)> = Vec::new();
    for (figure, row) in result.figure.iter().zip(rows) {
        let Some(group) = &figure.group else { continue };
        match groups.iter_mut().find(|(known, _)| known == group) {
            Some((_, rows)) => rows.push(row),
            None => groups.push((group, vec![row])),
        }
    }
    let sorted = |rows: &[&FigureRow], value: fn(&FigureRow) -> f64| {
        let mut rows = rows.to_vec();
        rows.sort_by(|a, b| value(a).total_cmp(&value(b)));
        rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>()
    };
    let row = |(group, rows): (&str, Vec<&FigureRow>)| {
        let published = sorted(&rows, |row| row.published);
        let simulated = sorted(&rows, |row| row.simulated);
        let verdict = if published == simulated {
            OrderVerdict::Same
        } else if is_contradicted(&rows) {
            OrderVerdict::Otherwise
        } else {
            OrderVerdict::WithinNoise
        };
        OrderRow {
            group: group.to_owned(),
            published,
            simulated,
            verdict,
        }
    };
    groups.into_iter().map(row).collect()
}

/// Whether the intervals of some pair, published the one way round, lie the other way round.
fn is_contradicted(rows: &[&FigureRow]) -> bool {
    let ends = |row: &FigureRow| {
        // One seed has no interval: its value counts as it is.
        let half = row.half_width.unwrap_or(0.0);
        (row.simulated - half, row.simulated + half)
    };
    let reversed =
        |a: &FigureRow, b: &FigureRow| a.published < b.published && ends(a).0 > ends(b).1;
    rows.iter().any(|a| rows.iter().any(|b| reversed(a, b)))
}

/// Whether a difference is what the words say; `margin` in percent, for those that say that there
/// is none.
fn holds(expect: Expect, difference: &Difference, margin: f64) -> bool {
    let change = difference.estimate.mean;
    match (expect, difference.verdict) {
        (Expect::Same | Expect::Unchanged | Expect::NotLower, Verdict::Same) => true,
        (Expect::Unchanged, _) => {
            let interval = difference.percent.zip(difference.percent_half_width);
            interval.is_some_and(|(percent, half)| percent.abs() + half <= margin)
        }
        (Expect::NotLower, _) => {
            let interval = difference.percent.zip(difference.percent_half_width);
            interval.is_some_and(|(percent, half)| percent - half >= -margin)
        }
        (Expect::Same, _) | (_, Verdict::Same | Verdict::WithinNoise) => false,
        (Expect::Lower, _) => change < 0.0,
        (Expect::Higher, _) => change > 0.0,
    }
}

#[cfg(test)]
mod tests;

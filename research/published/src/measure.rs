//! From runs to a row next to a published figure.

use stealtime_lab::metric::{Better, Metric, Subject};
use stealtime_lab::run::{RunOutput, Runs};
use stealtime_lab::stats::{Difference, Estimate, difference, estimate};

use crate::{
    Bound, Claim, ClaimRow, Effect, Expect, Figure, FigureRow, Measure, ReproduceError, Sign,
    UNCHANGED_WITHIN_PERCENT, holds,
};

/// The runs of a part of a result.
pub(super) struct PartRuns<'p> {
    /// The part's scenario.
    pub(super) name: &'p str,
    pub(super) runs: Runs,
}

/// The runs of a scenario.
pub(super) fn scenario<'r>(
    parts: &'r [PartRuns<'_>],
    name: &str,
) -> Result<&'r Runs, ReproduceError> {
    let found = parts.iter().find(|part| part.name == name);
    found
        .map(|part| &part.runs)
        .ok_or_else(|| ReproduceError::Data(format!("published results: {name:?} is not run")))
}

/// A figure's row; `tolerance` in percent of what was published.
pub(super) fn figure(
    figure: &Figure,
    runs: &Runs,
    tolerance: f64,
    fitted: bool,
) -> Result<FigureRow, ReproduceError> {
    let read = |variant: &str| values(figure, runs, variant);
    let changed = read(&figure.variant)?;
    let (simulated, half_width) = match (figure.effect, &figure.base) {
        (Effect::None, _) => of_values(&changed, &figure.unit),
        (effect, Some(base)) => of_effect(&read(base)?, &changed, effect),
        (_, None) => None,
    }
    .ok_or_else(|| {
        let Figure { name, metric, .. } = figure;
        ReproduceError::Data(format!("figure {name:?}: {metric:?} cannot be compared"))
    })?;
    let error_percent = error(figure.bound, figure.value, simulated);
    let is_within = error_percent.abs() <= tolerance;
    Ok(FigureRow {
        name: figure.name.clone(),
        side: figure.side,
        unit: figure.unit.clone(),
        published: figure.value,
        bound: figure.bound,
        simulated,
        half_width,
        error_percent,
        within: is_within,
        fitted,
        sign: (figure.effect != Effect::None).then(|| sign(figure.value, simulated, half_width)),
        miss: (!is_within).then(|| figure.miss.clone()),
    })
}

/// How far off, in percent of what was published.
fn error(bound: Bound, published: f64, simulated: f64) -> f64 {
    let is_met = match bound {
        Bound::Value => false,
        Bound::AtMost => simulated <= published,
        Bound::AtLeast => simulated >= published,
    };
    match is_met {
        true => 0.0,
        false => (simulated - published) / published.abs() * 100.0,
    }
}

fn sign(published: f64, simulated: f64, half_width: Option<f64>) -> Sign {
    // One seed has no interval, so the sign is unknown.
    if half_width.is_none_or(|half| simulated.abs() <= half) {
        return Sign::Unclear;
    }
    match (simulated > 0.0) == (published > 0.0) {
        true => Sign::Right,
        false => Sign::Wrong,
    }
}

/// Mean and interval in the figure's unit.
fn of_values(values: &[f64], unit: &str) -> Option<(f64, Option<f64>)> {
    let Estimate {
        mean, half_width, ..
    } = estimate(values)?;
    let scale = scale(unit);
    Some((mean / scale, half_width.map(|half| half / scale)))
}

/// How much of a metric's own unit a figure's unit is.
pub(super) fn scale(unit: &str) -> f64 {
    match unit {
        "us" => 1_000.0,
        _ => 1.0,
    }
}

/// Effect and interval in percent of the base.
fn of_effect(base: &[f64], changed: &[f64], effect: Effect) -> Option<(f64, Option<f64>)> {
    let Difference {
        percent,
        percent_half_width,
        ..
    } = difference(base, changed, Better::Neither)?;
    let percent = match effect {
        // Not `-percent`: nothing is 0, and not -0.
        Effect::Decrease => 0.0 - percent?,
        _ => percent?,
    };
    Some((percent, percent_half_width))
}

/// The row of something published in words.
pub(super) fn claim(claim: &Claim, runs: &Runs) -> Result<ClaimRow, ReproduceError> {
    let read = |variant: &str| {
        let outputs = outputs(runs, variant)?;
        let scope = of(claim.vm.as_deref());
        let values = outputs.iter().map(|run| value(run, &claim.metric, &scope));
        values.collect::<Result<Vec<f64>, _>>()
    };
    let (base, changed) = (read(&claim.base)?, read(&claim.variant)?);
    let no_runs = || ReproduceError::Data(format!("claim {:?}: nothing was run", claim.says));
    let difference = difference(&base, &changed, Better::Neither).ok_or_else(no_runs)?;
    let (of_base, of_with) = match (estimate(&base), estimate(&changed)) {
        (Some(base), Some(changed)) => (base, changed),
        _ => return Err(no_runs()),
    };
    let margin = claim.within_percent.unwrap_or(UNCHANGED_WITHIN_PERCENT);
    let holds = holds(claim.expect, &difference, margin);
    Ok(ClaimRow {
        says: claim.says.clone(),
        base: of_base.mean,
        base_half_width: of_base.half_width,
        simulated: of_with.mean,
        half_width: of_with.half_width,
        change_percent: difference.percent,
        change_half_width: difference.percent_half_width,
        within_percent: matches!(claim.expect, Expect::Unchanged | Expect::NotLower)
            .then_some(margin),
        holds,
        miss: (!holds).then(|| claim.miss.clone()),
    })
}

/// The figure's measure of each run of a variant.
pub(super) fn values(
    figure: &Figure,
    runs: &Runs,
    variant: &str,
) -> Result<Vec<f64>, ReproduceError> {
    let scope = of(figure.vm.as_deref());
    let measured = |run: &&RunOutput| {
        let value = value(run, &figure.metric, &scope)?;
        Ok(match figure.measure {
            Measure::Value => value,
            Measure::PerOperation => 1e9 / value,
            Measure::OfExits => value / exits(run) * 100.0,
        })
    };
    outputs(runs, variant)?.iter().map(measured).collect()
}

fn of(vm: Option<&str>) -> Subject {
    vm.map_or(Subject::Host, |vm| Subject::Vm(vm.to_owned()))
}

fn outputs<'r>(runs: &'r Runs, variant: &str) -> Result<Vec<&'r RunOutput>, ReproduceError> {
    let found = runs.variants.iter().find(|known| known.name == variant);
    found
        .map(|variant| variant.runs.iter().flatten().collect())
        .ok_or_else(|| ReproduceError::Data(format!("published results: no variant {variant:?}")))
}

/// A metric's value; what a run counts and does not name is 0.
fn value(run: &RunOutput, name: &str, scope: &Subject) -> Result<f64, ReproduceError> {
    let mut metrics = run.metrics.iter();
    let found = metrics.find(|metric| metric.name == name && metric.of == *scope);
    match found {
        Some(Metric { value, .. }) => Ok(*value),
        None if name.starts_with("exits ") => Ok(0.0),
        None => Err(ReproduceError::Data(format!(
            "published results: a run has no metric {name:?}"
        ))),
    }
}

/// All exits of guests a second.
fn exits(run: &RunOutput) -> f64 {
    let is_exit =
        |metric: &&Metric| metric.of == Subject::Host && metric.name.starts_with("exits ");
    run.metrics.iter().filter(is_exit).map(|m| m.value).sum()
}

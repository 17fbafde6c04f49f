//! What each thing that is varied does, and which points are best.

use std::fmt;
use std::num::NonZeroUsize;

use serde::Serialize;
use stealtime_results::Cell;

use super::SweepError;
use super::journal::Journal;
use super::plan::Plan;
use super::table::{Column, Columns};
use super::time::{Time, state, times};
use crate::metric::{Better, Unit};
use crate::scenario::Setting;
use crate::spelling::suggestion;
use crate::stats::{Difference, Estimate, all_equal, difference, estimate};

/// Metrics that are looked at if none are named.
const USUAL: [&str; 2] = ["throughput", "latency mean"];
/// The most of them.
const MOST_USUAL: usize = 4;
/// How many of the best points are named.
const BEST: usize = 3;

/// A sweep in few words.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// All runs of the grid.
    pub runs: u64,
    /// Those that have ended.
    pub finished: u64,
    /// Those of them that gave nothing.
    pub failed: u64,
    /// Why the first one did.
    pub first_failure: Option<String>,
    /// All seeds of each point give the same values of these metrics: nothing in it is random. They count as
    /// one run, for an interval of equal runs says nothing.
    pub identical_seeds: bool,
    /// By metric, then by what is varied.
    pub effects: Vec<Effect>,
    /// By metric that has a right way.
    pub best: Vec<Best>,
    /// By VM, then by what is varied. The results have these metrics of each run.
    #[serde(skip)]
    pub times: Vec<Time>,
}

/// What one thing that is varied does to a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Effect {
    /// The metric's column.
    pub metric: String,
    /// What it counts.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// What is varied.
    pub knob: String,
    /// Its values.
    pub levels: Vec<Level>,
}

/// A value of what is varied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Level {
    /// The value.
    pub value: String,
    /// The metric's mean over the rest of the grid, and its interval over the seeds.
    pub estimate: Option<Estimate>,
    /// Against the first value: of each seed, the mean over all points that have runs with both.
    pub difference: Option<Difference>,
}

/// The points with the best means of a metric.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Best {
    /// The metric's column.
    pub metric: String,
    /// What it counts.
    pub unit: Unit,
    /// The best first.
    pub points: Vec<BestPoint>,
}

/// A point and its value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BestPoint {
    /// Its variant.
    pub variant: String,
    /// What it sets.
    pub settings: Vec<Setting>,
    /// Mean over the seeds.
    pub estimate: Estimate,
}

impl fmt::Display for BestPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "variant {}", self.variant)?;
        let mut settings = self.settings.iter();
        settings.try_for_each(|s| write!(f, " {}={}", s.knob, s.value))
    }
}

/// A metric's values by run; not a number where there is none.
pub(super) struct Values<'c> {
    pub(super) column: &'c Column,
    of: Vec<f64>,
}

impl Values<'_> {
    /// Of each point the first value: of the others nothing.
    fn keep_first(&mut self, seeds: usize) {
        for point in self.of.chunks_mut(seeds) {
            let measured = point.iter_mut().filter(|value| !value.is_nan());
            for value in measured.skip(1) {
                *value = f64::NAN;
            }
        }
    }
}

pub(super) fn summary(
    plan: &Plan,
    journal: &Journal,
    metrics: &[String],
    threads: NonZeroUsize,
) -> Result<Summary, SweepError> {
    let columns = Columns::of(plan, journal);
    let seeds = plan.seeds.len().max(1);
    let mut chosen = chosen(&columns.all, metrics)?;
    let requested = chosen.len();
    let states = columns.all.iter().enumerate();
    chosen.extend(
        states
            .filter(|(_, column)| state(column).is_some())
            .map(|(index, _)| index),
    );
    let unmeasured = || vec![f64::NAN; usize::try_from(plan.runs()).unwrap_or(0)];
    let mut values: Vec<Values<'_>> = chosen
        .iter()
        .filter_map(|index| columns.all.get(*index))
        .map(|column| Values {
            column,
            of: unmeasured(),
        })
        .collect();
    let place = |name| columns.all.iter().position(|column| column.name == name);
    let fault = place("fault").unwrap_or(0);
    let (mut failed, mut first_failure) = (0, None);
    for runs in journal.groups() {
        let rows = columns.rows(plan, journal, &runs, threads)?;
        for (run, row) in runs.into_iter().zip(rows) {
            if let Some(Cell::Text(reason)) = row.get(fault) {
                failed += 1;
                first_failure.get_or_insert_with(|| reason.clone());
            }
            for (values, index) in values.iter_mut().zip(&chosen) {
                let slot = usize::try_from(run).ok();
                let slot = slot.and_then(|run| values.of.get_mut(run));
                if let (Some(Cell::Number(value)), Some(slot)) = (row.get(*index), slot) {
                    *slot = *value;
                }
            }
        }
    }
    let points = values.iter().flat_map(|v| v.of.chunks(seeds));
    let measured = points.map(|point| point.iter().filter(|value| !value.is_nan()));
    let identical_seeds = all_equal(measured);
    if identical_seeds {
        for values in &mut values {
            values.keep_first(seeds);
        }
    }
    let (measured, states) = values.split_at(requested);
    Ok(Summary {
        runs: plan.runs(),
        finished: journal.done(),
        failed,
        first_failure,
        identical_seeds,
        effects: measured.iter().flat_map(|v| effects(plan, v)).collect(),
        best: measured.iter().filter_map(|v| best(plan, v)).collect(),
        times: times(plan, states),
    })
}

/// The columns of the metrics named, or of the usual ones.
fn chosen(columns: &[Column], names: &[String]) -> Result<Vec<usize>, SweepError> {
    if names.is_empty() {
        let usual = columns.iter().enumerate().filter(|(_, column)| {
            let name = column.metric.as_ref().map(|metric| metric.name.as_str());
            name.is_some_and(|name| USUAL.contains(&name))
        });
        return Ok(usual.map(|(index, _)| index).take(MOST_USUAL).collect());
    }
    let metrics = || columns.iter().filter(|column| column.metric.is_some());
    let place = |name: &String| {
        let index = columns
            .iter()
            .position(|column| column.metric.is_some() && column.name == *name);
        index.ok_or_else(|| SweepError::Metric {
            asked: name.clone(),
            help: match metrics().count() {
                0 => "no run has ended with metrics".to_owned(),
                _ => suggestion(
                    name,
                    &metrics().map(|c| c.name.as_str()).collect::<Vec<_>>(),
                ),
            },
        })
    };
    names.iter().map(place).collect()
}

/// Something varied: its name, its values' texts, how far runs of neighbouring values are apart.
pub(super) fn axes(plan: &Plan) -> Vec<(String, Vec<String>, usize)> {
    let mut axes = Vec::new();
    let mut stride = plan.seeds.len();
    let variants = plan.variants.iter().map(|v| v.name.clone()).collect();
    axes.push(("variant".to_owned(), variants, stride));
    stride *= plan.variants.len();
    for dimension in plan.dimensions.iter().rev() {
        axes.push((dimension.knob.clone(), dimension.values.clone(), stride));
        stride *= dimension.values.len();
    }
    axes.reverse();
    axes
}

fn effects(plan: &Plan, values: &Values<'_>) -> Vec<Effect> {
    let Some(metric) = &values.column.metric else {
        return Vec::new();
    };
    let axes = axes(plan)
        .into_iter()
        .filter(|(_, levels, _)| levels.len() > 1);
    let effect = |(knob, names, stride): (String, Vec<String>, usize)| {
        let count = names.len();
        let levels = names.into_iter().enumerate().map(|(index, value)| Level {
            value,
            estimate: estimate(&means(plan, values, stride, count, index)),
            difference: match index {
                0 => None,
                _ => {
                    let (firsts, seconds) = pairs(plan, values, stride, count, index);
                    difference(&firsts, &seconds, metric.better)
                }
            },
        });
        Effect {
            metric: values.column.name.clone(),
            unit: metric.unit,
            better: metric.better,
            levels: levels.collect(),
            knob,
        }
    };
    axes.map(effect).collect()
}

/// A sum and how many are in it.
#[derive(Clone, Copy, Default)]
struct Mean(f64, u64);

impl Mean {
    fn add(&mut self, value: f64) {
        self.0 += value;
        self.1 += 1;
    }

    fn value(self) -> Option<f64> {
        (self.1 > 0).then(|| self.0 / self.1 as f64)
    }
}

/// The runs with a value, in their order: `stride` neighbours in each group of `count` values.
fn runs_with(
    runs: usize,
    stride: usize,
    count: usize,
    index: usize,
) -> impl Iterator<Item = usize> {
    let groups = (index * stride..runs).step_by((count * stride).max(1));
    groups.flat_map(move |begin| begin..(begin + stride).min(runs))
}

/// By seed, the mean of all runs with the value number `index`.
pub(super) fn means(
    plan: &Plan,
    values: &Values<'_>,
    stride: usize,
    count: usize,
    index: usize,
) -> Vec<f64> {
    let seeds = plan.seeds.len();
    let mut sums = vec![Mean::default(); seeds];
    for run in runs_with(values.of.len(), stride, count, index) {
        if let (Some(value), Some(sum)) = (values.of.get(run), sums.get_mut(run % seeds))
            && !value.is_nan()
        {
            sum.add(*value);
        }
    }
    sums.into_iter().filter_map(Mean::value).collect()
}

/// By seed, the means of the runs with the first value and of those with the value number `index`,
/// over the points that have both.
fn pairs(
    plan: &Plan,
    values: &Values<'_>,
    stride: usize,
    count: usize,
    index: usize,
) -> (Vec<f64>, Vec<f64>) {
    let seeds = plan.seeds.len();
    let mut sums = vec![(Mean::default(), Mean::default()); seeds];
    for run in runs_with(values.of.len(), stride, count, 0) {
        let (first, second) = (values.of.get(run), values.of.get(run + index * stride));
        if let (Some(first), Some(second)) = (first, second)
            && !first.is_nan()
            && !second.is_nan()
            && let Some((firsts, seconds)) = sums.get_mut(run % seeds)
        {
            firsts.add(*first);
            seconds.add(*second);
        }
    }
    let means = sums.into_iter();
    means
        .filter_map(|(first, second)| Some((first.value()?, second.value()?)))
        .unzip()
}

fn best(plan: &Plan, values: &Values<'_>) -> Option<Best> {
    let metric = values.column.metric.as_ref()?;
    let mut found: Vec<(usize, Estimate)> = Vec::new();
    for (point, runs) in values.of.chunks(plan.seeds.len().max(1)).enumerate() {
        let present: Vec<f64> = runs
            .iter()
            .copied()
            .filter(|value| !value.is_nan())
            .collect();
        let Some(new) = estimate(&present) else {
            continue;
        };
        let is_better = |old: &Estimate| match metric.better {
            Better::Higher => new.mean > old.mean,
            _ => new.mean < old.mean,
        };
        let index = found.iter().position(|(_, old)| is_better(old));
        found.insert(index.unwrap_or(found.len()), (point, new));
        found.truncate(BEST);
    }
    if metric.better == Better::Neither || plan.points() < 2 {
        return None;
    }
    let points = found.into_iter().map(|(point, estimate)| {
        let run = point as u64 * plan.seeds.len() as u64;
        let place = plan.place(run);
        let variant = plan.variants.get(place.variant);
        let chosen = plan.dimensions.iter().zip(&place.values);
        let settings = chosen.filter_map(|(dimension, index)| {
            Some(Setting {
                knob: dimension.knob.clone(),
                value: dimension.values.get(*index)?.clone(),
            })
        });
        BestPoint {
            variant: variant.map_or_else(String::new, |variant| variant.name.clone()),
            settings: settings.collect(),
            estimate,
        }
    });
    Some(Best {
        metric: values.column.name.clone(),
        unit: metric.unit,
        points: points.collect(),
    })
}

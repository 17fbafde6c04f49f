//! What variants differ in.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::metric::{Better, Metric, Subject, Unit};
use crate::run::{RunError, Runs, VariantRuns};
use crate::scenario::{Scenario, Setting};
use crate::stats::{Difference, Estimate, all_equal, difference, estimate};

/// A variant of a comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// What it changes against the scenario.
    pub settings: Vec<Setting>,
    /// Runs that were finished.
    pub finished: usize,
    /// Fewer than there should be.
    pub partial: bool,
    /// Runs that failed.
    pub failures: Vec<Failure>,
}

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its seed.
    pub seed: u64,
    /// Why.
    pub why: String,
}

/// A variant's value of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Cell {
    /// Mean over the seeds.
    pub estimate: Estimate,
    /// Against the first variant, over the seeds that both have; `None` in the first.
    pub difference: Option<Difference>,
}

/// A metric of all variants.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// The VM, task or host that it is of.
    pub of: Subject,
    /// What it counts.
    pub unit: Unit,
    /// Which way is better.
    pub better: Better,
    /// By variant; `None` where no run has measured it.
    pub cells: Vec<Option<Cell>>,
}

/// Variants side by side.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The scenario's file.
    pub scenario: String,
    /// What it shows.
    pub about: String,
    /// How long each run was measured, in ns.
    pub duration_ns: u64,
    /// How long each run warmed up, in ns.
    pub warmup_ns: u64,
    /// What `--set` sets in all variants that do not set it themselves.
    pub set: Vec<Setting>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// All seeds of each variant give the same: nothing in it is random. Each then counts as one run, for an
    /// interval of equal runs says nothing.
    pub identical_seeds: bool,
    /// The user has stopped before the end.
    pub partial: bool,
    /// Variants; the first one is what the others are compared with.
    pub variants: Vec<Column>,
    /// Metrics in the order in which the runs gave them.
    pub rows: Vec<Row>,
}

/// A metric without its value.
type Key = (Subject, String);

/// Compares the runs of a scenario.
#[must_use]
pub fn compare(scenario: &Scenario, runs: &Runs) -> Comparison {
    let kinds = kinds(runs);
    let identical_seeds = all_equal(runs.variants.iter().map(|v| v.runs.iter().flatten()));
    let values: Vec<BTreeMap<Key, Vec<Option<f64>>>> = runs
        .variants
        .iter()
        .map(|variant| values(variant, &kinds, identical_seeds))
        .collect();
    let rows = kinds.iter().map(|kind| {
        let key = (kind.of.clone(), kind.name.clone());
        let lists: Vec<&[Option<f64>]> = values
            .iter()
            .map(|by_seed| by_seed.get(&key).map_or(&[][..], Vec::as_slice))
            .collect();
        Row {
            name: kind.name.clone(),
            of: kind.of.clone(),
            unit: kind.unit,
            better: kind.better,
            cells: cells(&lists, kind.better),
        }
    });
    Comparison {
        scenario: scenario.file.clone(),
        about: scenario.about.clone(),
        duration_ns: scenario.duration_ns(),
        warmup_ns: scenario.warmup_ns(),
        set: scenario.sets().to_vec(),
        seeds: runs.seeds.clone(),
        identical_seeds,
        partial: runs.stopped,
        variants: runs
            .variants
            .iter()
            .map(|v| column(v, &runs.seeds))
            .collect(),
        rows: rows.collect(),
    }
}

fn column(variant: &VariantRuns, seeds: &[u64]) -> Column {
    let failures = variant
        .runs
        .iter()
        .zip(seeds)
        .filter_map(|(run, seed)| match run {
            Ok(_) | Err(RunError::Stopped) => None,
            Err(error) => Some(Failure {
                seed: *seed,
                why: error.to_string(),
            }),
        });
    let finished = variant.runs.iter().filter(|run| run.is_ok()).count();
    Column {
        name: variant.name.clone(),
        settings: variant.settings.clone(),
        finished,
        partial: finished < seeds.len(),
        failures: failures.collect(),
    }
}

/// Every metric that a run has, once: in the order of the first run that has it, behind the one
/// that stands before it there.
fn kinds(runs: &Runs) -> Vec<Metric> {
    let mut kinds: Vec<Metric> = Vec::new();
    let measured = runs
        .variants
        .iter()
        .flat_map(|variant| variant.runs.iter().flatten());
    for run in measured {
        let mut after = 0;
        for metric in &run.metrics {
            let is_metric = |kind: &Metric| kind.name == metric.name && kind.of == metric.of;
            match kinds.iter().position(is_metric) {
                Some(at) => after = at + 1,
                None => {
                    kinds.insert(after, metric.clone());
                    after += 1;
                }
            }
        }
    }
    kinds
}

/// The values of each metric by seed; of the first finished run alone if all are identical.
fn values(
    variant: &VariantRuns,
    kinds: &[Metric],
    identical_seeds: bool,
) -> BTreeMap<Key, Vec<Option<f64>>> {
    let mut values: BTreeMap<Key, Vec<Option<f64>>> = BTreeMap::new();
    let finished = variant.runs.iter().position(Result::is_ok);
    let counted = match finished.filter(|_| identical_seeds) {
        Some(first) => &variant.runs[first..=first],
        None => &variant.runs[..],
    };
    for run in counted {
        let known: BTreeMap<(&Subject, &str), f64> = run
            .iter()
            .flat_map(|run| &run.metrics)
            .map(|metric| ((&metric.of, metric.name.as_str()), metric.value))
            .collect();
        for kind in kinds {
            let found = known.get(&(&kind.of, kind.name.as_str())).copied();
            // Nothing counted is 0; a time without a measurement is none.
            let zero = (run.is_ok() && kind.unit.is_counted()).then_some(0.0);
            let value = found.or(zero).filter(|value| value.is_finite());
            let key = (kind.of.clone(), kind.name.clone());
            values.entry(key).or_default().push(value);
        }
    }
    values
}

fn cells(lists: &[&[Option<f64>]], better: Better) -> Vec<Option<Cell>> {
    let first = lists.first().copied().unwrap_or_default();
    let cell = |(index, list): (usize, &&[Option<f64>])| {
        let values: Vec<f64> = list.iter().flatten().copied().collect();
        let pairs = first.iter().zip(*list);
        let (firsts, seconds): (Vec<f64>, Vec<f64>) =
            pairs.filter_map(|(a, b)| Some(((*a)?, (*b)?))).unzip();
        Some(Cell {
            estimate: estimate(&values)?,
            difference: if index == 0 {
                None
            } else {
                difference(&firsts, &seconds, better)
            },
        })
    };
    lists.iter().enumerate().map(cell).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::RunOutput;
    use crate::stats::Verdict;

    fn scenario() -> Scenario {
        let text = "[host]\nprofile = \"skylake-sp\"\ncpus = 4\n[[vm]]\nworkload = \"busy\"\n";
        Scenario::from_text("a.toml", text).expect("a scenario")
    }

    fn run(metrics: &[(&str, Unit, f64)]) -> Result<RunOutput, RunError> {
        let metrics = metrics
            .iter()
            .map(|(name, unit, value)| Metric::host(*name, *unit, Better::Higher, *value));
        Ok(RunOutput {
            metrics: metrics.collect(),
            ..RunOutput::default()
        })
    }

    fn runs(variants: Vec<Vec<Result<RunOutput, RunError>>>) -> Runs {
        let named = variants
            .into_iter()
            .enumerate()
            .map(|(n, runs)| VariantRuns {
                name: format!("v{n}"),
                settings: Vec::new(),
                runs,
            });
        Runs {
            seeds: vec![1, 2, 3],
            variants: named.collect(),
            stopped: false,
        }
    }

    #[test]
    fn variants_are_compared_by_the_seeds_that_both_have() {
        use Unit::Count;
        let runs = runs(vec![
            vec![
                run(&[("x", Count, 1.0)]),
                run(&[("x", Count, 2.0)]),
                Err(RunError::Stopped),
            ],
            vec![
                run(&[("x", Count, 3.0)]),
                run(&[("x", Count, 4.0)]),
                run(&[("x", Count, 99.0)]),
            ],
        ]);
        let comparison = compare(&scenario(), &runs);
        let [Some(first), Some(second)] = comparison.rows[0].cells[..] else {
            panic!("two cells");
        };
        assert_eq!((first.estimate.mean, first.difference), (1.5, None));
        let d = second.difference.expect("a difference");
        assert_eq!(
            (d.estimate.mean, d.estimate.n, d.verdict),
            (2.0, 2, Verdict::Better)
        );
        assert!(comparison.variants[0].partial && !comparison.variants[1].partial);
    }

    #[test]
    fn equal_runs_are_one_run() {
        let x = |value| run(&[("x", Unit::Count, value)]);
        let stopped = || Err(RunError::Stopped);
        let equal = runs(vec![
            vec![stopped(), x(0.1), x(0.1)],
            vec![x(0.2), x(0.2), x(0.2)],
        ]);
        let comparison = compare(&scenario(), &equal);
        assert!(comparison.identical_seeds);
        let [Some(first), Some(second)] = comparison.rows[0].cells[..] else {
            panic!("two cells");
        };
        assert_eq!(
            (first.estimate.mean, first.estimate.half_width),
            (0.1, None)
        );
        let difference = second.difference.expect("a pair");
        assert_eq!(
            (difference.estimate.mean, difference.verdict),
            (0.1, Verdict::Unknown)
        );
        let unequal = runs(vec![
            vec![x(0.1), x(0.1), x(0.1)],
            vec![x(0.2), x(0.3), x(0.2)],
        ]);
        assert!(!compare(&scenario(), &unequal).identical_seeds);
        let single = runs(vec![vec![x(0.1), stopped(), stopped()]]);
        assert!(!compare(&scenario(), &single).identical_seeds);
    }

    #[test]
    fn nothing_counted_is_zero_and_nothing_measured_is_nothing() {
        let some = [("exits", Unit::PerSecond, 4.0), ("latency", Unit::Ns, 5.0)];
        let runs = runs(vec![
            vec![
                run(&some),
                run(&[]),
                run(&[("latency", Unit::Ns, f64::NAN)]),
            ],
            vec![run(&[]), run(&[]), run(&[])],
        ]);
        let comparison = compare(&scenario(), &runs);
        let mean = |row: usize, at: usize| comparison.rows[row].cells[at].map(|c| c.estimate.mean);
        assert_eq!((mean(0, 0), mean(0, 1)), (Some(4.0 / 3.0), Some(0.0)));
        assert_eq!((mean(1, 0), mean(1, 1)), (Some(5.0), None));
    }

    #[test]
    fn metrics_keep_their_order_and_failures_their_reason() {
        let some = |names: &[&str]| {
            let list: Vec<_> = names.iter().map(|name| (*name, Unit::Count, 1.0)).collect();
            run(&list)
        };
        let failed = Err(RunError::Failed("deadlock".into()));
        let runs = runs(vec![vec![
            some(&["a", "c"]),
            some(&["a", "b", "c", "d"]),
            failed,
        ]]);
        let comparison = compare(&scenario(), &runs);
        let names: Vec<&str> = comparison
            .rows
            .iter()
            .map(|row| row.name.as_str())
            .collect();
        assert_eq!(names, ["a", "b", "c", "d"]);
        let failure = &comparison.variants[0].failures[0];
        assert_eq!((failure.seed, failure.why.as_str()), (3, "deadlock"));
        let text = serde_json::to_string(&comparison).expect("JSON");
        assert_eq!(
            text,
            serde_json::to_string(&compare(&scenario(), &runs)).expect("JSON")
        );
    }
}

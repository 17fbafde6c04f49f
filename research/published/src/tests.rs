use super::*;
use stealtime_lab::metric::{Better, Metric, Subject, Unit};
use stealtime_lab::run::{RunOutput, VariantRuns};
use stealtime_lab::stats::difference;
use stealtime_simulator::config::Config;

#[test]
fn nothing_is_fitted_to_what_must_be_predicted() {
    for result in published().expect("data") {
        for fitted in result.fitted().expect("scenarios") {
            let figure = result.figure.iter().find(|f| f.name == fitted.to);
            let figure = figure.unwrap_or_else(|| panic!("no figure {:?}", fitted.to));
            assert_eq!(figure.side, Side::Without, "{}", fitted.to);
            assert_eq!(figure.scenario, fitted.scenario, "{}", fitted.to);
        }
    }
}

#[test]
fn every_figure_names_what_there_is() {
    for result in published().expect("data") {
        assert!(!result.figure.is_empty() || !result.claim.is_empty());
        let mut names: Vec<&str> = result.figure.iter().map(|f| f.name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), result.figure.len(), "{}: names", result.name);
        let of_figures = result
            .figure
            .iter()
            .map(|f| (&f.scenario, &f.variant, &f.base));
        for (scenario, variant, base) in of_figures {
            let part = result.scenario.iter().find(|p| p.name == *scenario);
            let part = part.unwrap_or_else(|| panic!("no scenario {scenario:?}"));
            let variants = part.load(true).expect("a scenario").variants;
            for name in std::iter::once(variant).chain(base) {
                assert!(
                    variants.iter().any(|v| v.name == *name),
                    "{scenario}: {name}"
                );
            }
        }
        for figure in &result.figure {
            let is_effect = figure.effect != Effect::None;
            assert_eq!(figure.base.is_some(), is_effect, "{}", figure.name);
            assert!(
                !(is_effect && figure.side == Side::Without),
                "{}",
                figure.name
            );
        }
    }
}

/// A pipe with operations of 8 us without, 7 us with either version.
struct Fake;

impl Runner for Fake {
    fn run(&self, config: &Config, _stop: &AtomicBool) -> Result<RunOutput, RunError> {
        let off = format!("{:?}", config.knobs.kvm.suppress_notification) == "Off";
        let us = if off { 8.0 } else { 7.0 } + config.run.seed as f64 / 1_000.0;
        let mut metrics = vec![Metric::host(
            "spurious notifications",
            Unit::PerSecond,
            Better::Neither,
            5.0,
        )];
        for vm in ["pipe", "loop"] {
            let of = Subject::Vm(vm.to_owned());
            let throughput = Metric::host("throughput", Unit::PerSecond, Better::Higher, 1e6 / us);
            metrics.push(throughput.of(of));
        }
        Ok(RunOutput {
            metrics,
            ..RunOutput::default()
        })
    }
}

fn faked(tolerance: f64) -> Reproduced {
    let results = chosen(&["notification-suppression".to_owned()]).expect("a result");
    let request = Request {
        quick: true,
        tolerance,
        threads: NonZeroUsize::MIN,
    };
    let stop = AtomicBool::new(false);
    reproduce(&Fake, &results[0], request, &stop, &|| {}).expect("it runs")
}

#[test]
fn errors_are_of_what_was_published() {
    let result = faked(25.0);
    let row = |name: &str| {
        let found = result.figures.iter().find(|row| row.name == name);
        found.unwrap_or_else(|| panic!("{name}")).clone()
    };
    let without = row("pipe, without");
    assert!((without.simulated - 8.002).abs() < 1e-9, "{without:?}");
    assert!(
        (without.error_percent + 1.453_2).abs() < 1e-3,
        "{without:?}"
    );
    assert!(without.within && without.fitted && without.miss.is_none());
    // 12.5 % faster, 8.1 % published: the right sign, half as much again.
    let gain = row("gain of pipe, version 3");
    assert!((gain.simulated - 12.497).abs() < 1e-2, "{gain:?}");
    assert_eq!((gain.sign, gain.within), (Some(Sign::Right), false));
    assert!(gain.miss.is_some() && !gain.fitted);
    // A loss was published.
    let loss = row("loss of the CPUID loop, version 3");
    assert_eq!(loss.sign, Some(Sign::Wrong));
    let limit = row("notifications taken, version 3");
    assert_eq!((limit.error_percent, limit.within), (0.0, true));
    let order = result.orders.iter().find(|order| order.group == "pipe");
    assert_eq!(order.expect("an order").verdict, OrderVerdict::Same);
}

fn order_of(rows: &[(f64, f64, f64)]) -> OrderVerdict {
    let results = chosen(&["wakeup-batching".to_owned()]).expect("a result");
    let mut result = results[0].clone();
    result.figure.retain(|figure| figure.group.is_some());
    let rows: Vec<FigureRow> = rows
        .iter()
        .map(|&(published, simulated, half)| FigureRow {
            name: published.to_string(),
            side: Side::With,
            unit: "us".to_owned(),
            published,
            bound: Bound::Value,
            simulated,
            half_width: Some(half),
            error_percent: 0.0,
            within: true,
            fitted: false,
            sign: None,
            miss: None,
        })
        .collect();
    result.figure.truncate(rows.len());
    orders(&result, &rows)[0].verdict
}

#[test]
fn an_order_is_contradicted_only_beyond_the_intervals() {
    let far = (1100.0, 900.0, 1.0);
    assert_eq!(
        order_of(&[far, (255.0, 80.0, 4.0), (250.0, 76.0, 1.0)]),
        OrderVerdict::Same
    );
    assert_eq!(
        order_of(&[far, (255.0, 76.0, 4.0), (250.0, 80.0, 1.0)]),
        OrderVerdict::WithinNoise
    );
    assert_eq!(
        order_of(&[far, (255.0, 76.0, 2.0), (250.0, 80.0, 1.0)]),
        OrderVerdict::Otherwise
    );
}

/// Throughput with a mechanism that gains 2 %, in noise that takes many seeds to average out.
struct Noisy;

impl Runner for Noisy {
    fn run(&self, config: &Config, _stop: &AtomicBool) -> Result<RunOutput, RunError> {
        let off = format!("{:?}", config.knobs.kvm.suppress_notification) == "Off";
        let seed = config.run.seed;
        let noise = ((seed * 7_919) % 17) as f64 * if off { 0.01 } else { 0.004 };
        let us = if off { 8.0 } else { 7.84 };
        let throughput = |name: &str, us: f64| {
            let of = Subject::Vm(name.to_owned());
            Metric::host("throughput", Unit::PerSecond, Better::Higher, 1e6 / us).of(of)
        };
        let taken = "spurious notifications";
        let per_second = Metric::host(taken, Unit::PerSecond, Better::Neither, 5.0);
        Ok(RunOutput {
            metrics: vec![
                throughput("pipe", us + noise),
                throughput("loop", us + 5.0 * noise),
                per_second,
            ],
            ..RunOutput::default()
        })
    }
}

#[test]
fn a_full_run_repeats_until_intervals_say_something() {
    let results = chosen(&["notification-suppression".to_owned()]).expect("a result");
    let request = Request {
        quick: false,
        tolerance: 25.0,
        threads: NonZeroUsize::MIN,
    };
    let stop = AtomicBool::new(false);
    let done = std::sync::atomic::AtomicUsize::new(0);
    let progress = || {
        done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    };
    let all = reproduce(&Noisy, &results[0], request, &stop, &progress).expect("it runs");
    let first: Vec<usize> = results[0]
        .scenario
        .iter()
        .map(|part| part.load(false).expect("a scenario").seeds.len())
        .collect();
    // The pipe's gain is known at once; the loop's, with five times the noise, is not.
    assert_eq!(all.seeds[0], first[0]);
    assert!(
        all.seeds[1] > first[1] && all.seeds[1] <= first[1] * MOST_REPEATS,
        "{:?}",
        all.seeds
    );
    assert!(done.into_inner() > runs_of(&results[0], false).expect("a number"));
    // Whatever does not settle ends all the same; an equal run is equal.
    let quiet = reproduce(&Fake, &results[0], request, &stop, &|| {}).expect("it runs");
    assert_eq!(quiet.seeds, first);
    let quick = Request {
        quick: true,
        ..request
    };
    let quick = reproduce(&Noisy, &results[0], quick, &stop, &|| {}).expect("it runs");
    let few: Vec<usize> = results[0]
        .scenario
        .iter()
        .map(|part| part.quick_seeds)
        .collect();
    assert_eq!(quick.seeds, few);
}

#[test]
fn a_wide_tolerance_leaves_no_misses() {
    assert_eq!(faked(2_000.0).misses(), 0);
    assert!(faked(1.0).misses() > 2);
}

#[test]
fn results_are_asked_for_by_name() {
    assert_eq!(chosen(&[]).expect("all").len(), 5);
    let error = chosen(&["posted".to_owned()]).expect_err("no such result");
    assert!(
        error.to_string().contains("posted-timer, wakeup-batching"),
        "{error}"
    );
}

#[test]
fn words_hold_by_interval_and_not_by_chance() {
    let same = [(100.0, 100.0), (101.0, 101.0)];
    let noise = [(100.0, 100.1), (100.0, 99.7)];
    let fell = [(100.0, 98.0), (101.0, 99.0), (102.0, 100.0)];
    let is = |expect, pairs: &[(f64, f64)]| {
        let (base, changed): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
        let difference = difference(&base, &changed, Better::Neither).expect("pairs");
        holds(expect, &difference, UNCHANGED_WITHIN_PERCENT)
    };
    assert!(is(Expect::Same, &same) && !is(Expect::Same, &noise));
    assert!(is(Expect::Unchanged, &same));
    assert!(is(Expect::Lower, &fell) && !is(Expect::Higher, &fell));
    assert!(!is(Expect::Lower, &noise));
    assert!(is(Expect::NotLower, &same) && !is(Expect::NotLower, &fell));
    let rose = fell.map(|(a, b)| (b, a));
    assert!(is(Expect::NotLower, &rose) && is(Expect::NotLower, &[noise[0]; 3]));
}

/// Small differences, however sure, are none; large and wide ones are not shown to be.
#[test]
fn nothing_changes_within_a_margin_and_only_with_all_of_the_interval() {
    let claim = |change: f64, noise: f64| {
        let pairs = [-noise, 0.0, noise].map(|off| (100.0, 100.0 + change + off));
        let runs = pairs_as_runs(&pairs);
        measure::claim(&unchanged(None), &runs).expect("a row")
    };
    let surely_small = claim(0.4, 0.01);
    assert!(surely_small.holds && !surely_small.is_open());
    assert_eq!(surely_small.within_percent, Some(UNCHANGED_WITHIN_PERCENT));
    let wide = claim(0.4, 1.0);
    assert!(!wide.holds && wide.is_open(), "{wide:?}");
    let large = claim(-2.0, 0.1);
    assert!(!large.holds && !large.is_open(), "{large:?}");
    let own = unchanged(Some(3.0));
    let runs = pairs_as_runs(&[(100.0, 98.0), (100.0, 98.1), (100.0, 97.9)]);
    assert!(measure::claim(&own, &runs).expect("a row").holds);
}

fn unchanged(within_percent: Option<f64>) -> Claim {
    Claim {
        says: "no effect".to_owned(),
        scenario: "a scenario".to_owned(),
        variant: "with".to_owned(),
        base: "without".to_owned(),
        metric: "throughput".to_owned(),
        vm: None,
        expect: Expect::Unchanged,
        within_percent,
        miss: String::new(),
    }
}

/// Runs of `without` and `with`, a pair for each seed.
fn pairs_as_runs(pairs: &[(f64, f64)]) -> Runs {
    let run = |value: f64| {
        Ok(RunOutput {
            metrics: vec![Metric::host(
                "throughput",
                Unit::PerSecond,
                Better::Higher,
                value,
            )],
            ..RunOutput::default()
        })
    };
    let variant = |name: &str, values: Vec<f64>| VariantRuns {
        name: name.to_owned(),
        settings: Vec::new(),
        runs: values.into_iter().map(run).collect(),
    };
    let (base, with) = pairs.iter().copied().unzip();
    Runs {
        seeds: (1..=pairs.len() as u64).collect(),
        variants: vec![variant("without", base), variant("with", with)],
        stopped: false,
    }
}

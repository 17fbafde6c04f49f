use super::*;
use crate::{chosen, published};
use stealtime_lab::metric::{Better, Metric, Subject, Unit};
use stealtime_lab::run::{RunError, RunOutput};
use stealtime_simulator::config::{Config, ParamValue};

const TODAY: Date = Date {
    year: 2026,
    month: 11,
    day: 21,
};

/// A pipe with operations of 4 us, twice the time of a copy, and ten ns for each us of warm-up.
struct Fake;

impl Runner for Fake {
    fn run(&self, config: &Config, _stop: &AtomicBool) -> Result<RunOutput, RunError> {
        let copy = match config.vms[0].workload.params.get("copy_ns") {
            Some(ParamValue::Int(copy)) => *copy as f64,
            _ => 0.0,
        };
        let kick = config.run.warmup_ns as f64 / 100.0;
        let ns = 4_000.0 + 2.0 * copy + kick + config.run.seed as f64;
        let throughput = Metric::host("throughput", Unit::PerSecond, Better::Higher, 1e9 / ns);
        Ok(RunOutput {
            metrics: vec![throughput.of(Subject::Vm("pipe".to_owned()))],
            ..RunOutput::default()
        })
    }
}

const SCENARIO: &str = r#"# What it is.
[host]
profile = "sapphire-rapids"
cpus = 4

[[vm]]
name = "pipe"
vcpus = 2
workload = { name = "sched-pipe", copy_ns = "1us" } # open

[variants.without]

[variants.v1]
kvm.suppress_notification = "as-posted-v1"

[run]
warmup = "10us"
seeds = 5

"#;

/// The scenario with a `[[calibrate]]` of these lines.
fn with(lines: &str) -> String {
    format!("{SCENARIO}[[calibrate]]\n{lines}\n")
}

const LINES: &str = "parameter = \"vm.pipe.workload.copy_ns\" # which\nrange = [\"0ns\", \"4us\"]\n\
    to = \"pipe, without\"\nseeds = 3\nstep = \"5ns\"";

fn fit_on(text: &str, today: Date) -> Result<Calibrated, CalibrateError> {
    let results = chosen(&["notification-suppression".to_owned()]).expect("a result");
    let result = &results[0];
    let request = CalibrateRequest {
        today,
        threads: NonZeroUsize::MIN,
    };
    let stop = AtomicBool::new(false);
    calibrate(
        &Fake,
        result,
        &result.scenario[0],
        text,
        request,
        &stop,
        &|| {},
    )
}

fn refused(text: &str) -> String {
    fit_on(text, TODAY)
        .expect_err("it cannot be fitted")
        .to_string()
}

#[test]
fn the_value_that_gives_the_figure_is_written_with_what_is_known_of_it() {
    let text = with(LINES);
    let new = fit_on(&text, TODAY).expect("it can be fitted");
    let [fit] = &new.fits[..] else {
        panic!("{:?}", new.fits)
    };
    // 4 us, 100 ns for the warm-up, and 2 ns for the mean seed leave 2009 ns for each of two copies.
    assert_eq!(
        (fit.before.as_str(), fit.value.as_str(), fit.changed),
        ("1us", "2010ns", true)
    );
    assert!((fit.reached - 8.122).abs() < 1e-6, "{fit:?}");
    assert!((fit.residual_percent - 0.025).abs() < 1e-9, "{fit:?}");
    // Half of the figure is copies.
    assert!((fit.slope - 4_020.0 / 8_122.0).abs() < 1e-3, "{fit:?}");
    let kept = text.replace("\"1us\"", "\"2010ns\"");
    let record = "fitted = { date = 2026-11-21, version = \"0.1.0\", residual_percent = 0.025, slope = \
        0.495 }\n";
    assert_eq!(new.text, format!("{kept}{record}"));
}

#[test]
fn fitted_again_nothing_changes_and_the_date_stays() {
    let first = fit_on(&with(LINES), TODAY).expect("it can be fitted").text;
    let tomorrow = Date { day: 22, ..TODAY };
    let second = fit_on(&first, tomorrow).expect("it can be fitted");
    assert!(!second.fits[0].changed);
    assert_eq!(second.text, first);
    // What is known of an equal value may change; its date does not.
    let stale = first.replace("residual_percent = 0.025", "residual_percent = 1.5");
    assert_eq!(
        fit_on(&stale, tomorrow).expect("it can be fitted").text,
        first
    );
    // Another value is of today.
    let other = first.replace("\"2010ns\"", "\"5ns\"");
    let renewed = fit_on(&other, tomorrow).expect("it can be fitted").text;
    assert_eq!(renewed, first.replace("2026-11-21", "2026-11-22"));
}

#[test]
fn only_values_without_the_mechanism_may_be_fitted() {
    let to = |name: &str| refused(&with(&LINES.replace("pipe, without", name)));
    assert!(to("pipe, version 1").contains("must be predicted"));
    assert!(to("gain of pipe, version 1").contains("must be predicted"));
    assert!(to("notifications taken, without, most").contains("it is a limit"));
    let unknown = to("pipe without");
    assert!(
        unknown.contains("which notification-suppression does not have"),
        "{unknown}"
    );
    assert!(unknown.contains("pipe, without"), "{unknown}");
}

#[test]
fn a_range_must_reach_to_both_sides_of_the_figure() {
    let error = refused(&with(&LINES.replace("4us", "1us")));
    let expected = "no vm.pipe.workload.copy_ns from 0ns to 1us gives \"pipe, without\": 8.12 us is not \
        between 4.102 us at 0ns and 6.102 us at 1us; widen the range";
    assert!(error.contains(expected), "{error}");
}

#[test]
fn what_the_scenario_has_not_is_shown_with_its_line() {
    let error = refused(&with(&LINES.replace("copy_ns\"", "copy\"")));
    assert!(
        error.contains("the scenario has no vm.pipe.workload.copy"),
        "{error}"
    );
    assert!(
        error.contains("notification-suppression.toml:21:13"),
        "{error}"
    );
    for (from, to, problem) in [
        ("copy_ns\"", "name\"", "cannot be fitted"),
        ("[\"0ns\", \"4us\"]", "[\"0ns\"]", "[LOWEST, HIGHEST]"),
        ("[\"0ns\", \"4us\"]", "[\"4us\", \"0ns\"]", "not a step"),
        ("[\"0ns\", \"4us\"]", "[true, 4]", "must stand here"),
        ("\"5ns\"", "\"0ns\"", "below 1ns"),
        ("\"5ns\"", "\"5us\"", "not a step of 5us"),
        ("seeds = 3", "seeds = 0", "not within"),
        ("seeds = 3", "seedz = 3", "seeds"),
        ("seeds = 3", "fitted = { date = 3 }", "a date"),
        ("to = \"pipe, without\"", "", "must be there"),
    ] {
        let error = refused(&with(&LINES.replace(from, to)));
        assert!(error.contains(problem), "{from} -> {to}: {error}");
    }
    let twice = format!("{}[[calibrate]]\n{LINES}\n", with(LINES));
    assert!(refused(&twice).contains("is fitted twice"));
}

#[test]
fn parameters_of_one_scenario_are_fitted_until_they_settle() {
    let warmup = "\n[[calibrate]]\nparameter = \"run.warmup\"\nrange = [\"0ns\", \"20us\"]\n\
        to = \"pipe, without\"\n";
    // The first one meets the figure; for the second one nothing is left to do.
    let new = fit_on(&format!("{}{warmup}", with(LINES)), TODAY).expect("it settles");
    let values: Vec<&str> = new.fits.iter().map(|fit| fit.value.as_str()).collect();
    assert_eq!(values, ["2010ns", "9700ns"]);
    let again = fit_on(&new.text, TODAY).expect("it settles");
    assert_eq!(again.text, new.text);
}

#[test]
fn every_scenario_says_what_it_is_fitted_to_and_when() {
    for result in published().expect("data") {
        for part in &result.scenario {
            let text = part.text().expect("a scenario");
            for parameter in &part.parameters(text).expect("parameters") {
                target(&result, part, parameter).expect("it may be fitted");
                assert!(parameter.fitted.is_some(), "{}: run calibrate", part.name);
            }
        }
    }
}

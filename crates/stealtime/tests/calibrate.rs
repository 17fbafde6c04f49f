//! `calibrate` as a user has it, and whether the scenarios hold what it gives.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common;

fn calibrate(arguments: &[&str]) -> (Option<i32>, String, String) {
    common::run(common::stealtime(&["calibrate"]).args(arguments))
}

fn scenarios() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios/published")
}

#[test]
fn the_scenarios_hold_what_it_gives() {
    let folder = scenarios();
    let folder = folder.to_str().expect("UTF-8");
    let (status, out, error) = calibrate(&["--check", "--scenarios", folder]);
    assert_eq!(status, Some(0), "run `stealtime calibrate`:\n{out}{error}");
    assert!(
        out.contains("as it stands") && !out.contains(", was "),
        "{out}"
    );
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
}

#[test]
fn a_value_that_is_not_fitted_is_found_and_fixed() {
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["notification-suppression", "notification-suppression-cpuid"] {
        let file = format!("{file}.toml");
        fs::copy(scenarios().join(&file), folder.path().join(&file)).expect("a copy");
    }
    let file = folder.path().join("notification-suppression.toml");
    let good = fs::read_to_string(&file).expect("a scenario");
    let value = good
        .split_once("copy_ns = \"")
        .and_then(|(_, rest)| rest.split_once('"'))
        .map(|(value, _)| value)
        .expect("a parameter");
    let bad = good.replace(&format!("copy_ns = \"{value}\""), "copy_ns = \"5ns\"");
    fs::write(&file, &bad).expect("it is written");
    let at = folder.path().to_str().expect("UTF-8");
    let only = ["notification-suppression", "--scenarios", at];
    let (status, out, error) = calibrate(&[&only[..], &["--check"]].concat());
    assert_eq!(status, Some(1), "{out}");
    assert!(out.contains(", was 5ns"), "{out}");
    assert!(
        error.contains("1 of 1 values are not what the fit gives"),
        "{error}"
    );
    let (status, json, _) = calibrate(&[&only[..], &["--dry-run", "--json"]].concat());
    assert_eq!(status, Some(0));
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["written"], &json["fits"][0]["changed"]),
        (&false.into(), &true.into())
    );
    assert_eq!(
        fs::read_to_string(&file).expect("a scenario"),
        bad,
        "nothing was written"
    );
    let (status, _, error) = calibrate(&only);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    // All but the date is as it was.
    let dateless = |text: &str| {
        let at = text.find("date = ").expect("a date");
        format!("{}{}", &text[..at], &text[at + "date = 2026-11-20".len()..])
    };
    let fixed = fs::read_to_string(&file).expect("a scenario");
    assert_eq!(dateless(&fixed), dateless(&good));
}

#[test]
fn what_is_wrong_is_said() {
    let (status, _, error) = calibrate(&["--scenarios", "/nowhere", "wakeup-batching"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("/nowhere/wakeup-batching.toml"), "{error}");
    let (status, _, error) = calibrate(&["wakeup"]);
    assert_eq!(status, Some(2));
    assert!(error.contains("there are posted-timer"), "{error}");
    let (status, ..) = calibrate(&["--check", "--dry-run"]);
    assert_eq!(status, Some(2));
}

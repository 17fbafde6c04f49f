//! `reproduce` as a user has it.

use crate::common;

fn reproduce(arguments: &[&str]) -> (Option<i32>, String, String) {
    common::run(common::stealtime(&["reproduce"]).args(arguments))
}

#[test]
fn published_and_simulated_stand_side_by_side() {
    let (status, out, error) = reproduce(&["--quick", "notification-suppression"]);
    assert_eq!(status, Some(1), "some figures are off: {error}");
    assert!(error.contains("do not come out"), "{error}");
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    insta::assert_snapshot!(out);
}

#[test]
fn a_wide_tolerance_is_met_by_any_number_of_threads() {
    let all = [
        "--quick",
        "notification-suppression",
        "--tolerance",
        "1000",
        "--json",
    ];
    let (status, one, error) = reproduce(&[&all[..], &["--jobs", "1"]].concat());
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let (_, two, _) = reproduce(&[&all[..], &["--jobs", "2"]].concat());
    assert_eq!(one, two);
    let value: serde_json::Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!(value["results"][0]["figures"][1]["within"], true);
}

#[test]
fn what_is_wrong_is_said() {
    let (status, out, error) = reproduce(&["posted"]);
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert!(
        error.contains("there are posted-timer, wakeup-batching"),
        "{error}"
    );
    for tolerance in ["-1", "x", "nan", "1001"] {
        let (status, ..) = reproduce(&[&format!("--tolerance={tolerance}")]);
        assert_eq!(status, Some(2), "{tolerance}");
    }
}

//! `stealtime watch` of recordings: when it would have recorded, and what it refuses.

use serde_json::Value;

use crate::common::{run, stealtime};

const RECORDING: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/live/quotas/trace.dat.zst"
);

#[test]
fn a_replay_says_when_it_would_have_recorded() {
    let watch = ["watch", "--replay", RECORDING, "--when", "stall>60ms"];
    let more = ["--when", "vm.web.throttled>20%", "--after", "0s"];
    let arguments = [&watch[..], &more].concat();
    let (status, out, error) = run(&mut stealtime(&arguments));
    assert_eq!(status, Some(1), "{error}");
    insta::assert_snapshot!("watch_replay", format!("{out}{error}"));

    let (status, json, _) = run(&mut stealtime(&[&arguments[..], &["--json"]].concat()));
    assert_eq!(status, Some(1));
    let lines: Result<Vec<Value>, _> = json.lines().map(serde_json::from_str).collect();
    let lines = lines.expect("JSON");
    assert_eq!(lines.len(), out.lines().count());
    for line in &lines {
        assert!(line["file"].is_null() && line["not_recorded"].is_null());
        let seen = &line["seen"][0];
        assert!(seen["value"].as_f64().is_some_and(|value| value > 20.0));
        assert!(seen["ready"]["throttled"].is_u64(), "{seen}");
    }
}

#[test]
fn a_rate_holds_recordings_back() {
    let watch = [
        "watch",
        "--replay",
        RECORDING,
        "--when",
        "vm.batch.ready>35%",
    ];
    let once = ["--interval", "100ms", "--after", "0s", "--at-most", "1/h"];
    let arguments = [&watch[..], &once].concat();
    let (status, out, _) = run(&mut stealtime(&arguments));
    assert_eq!(status, Some(1));
    let held = out
        .lines()
        .filter(|line| line.ends_with("not recorded: --at-most 1/h"));
    assert_eq!(held.count(), out.lines().count() - 1, "{out}");
}

#[test]
fn a_vm_that_is_not_there_is_named() {
    let when = "vm.dbb.stall>1ms";
    let (status, out, error) = run(&mut stealtime(&[
        "watch", "--replay", RECORDING, "--when", when,
    ]));
    assert_eq!((status, out.as_str()), (Some(0), ""));
    assert!(
        error.contains("no VM is named dbb; the recording has db"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_watched_is_refused() {
    for (arguments, message) in [
        (&["--when", "stall>20"][..], "--when stall>20: column 7"),
        (&["--when", "vm.db.speed>2%"], "is no figure"),
        (&["--when", "stall>20ms", "--at-most", "6"], "give 6/h"),
        (
            &["--when", "stall>20ms", "--keep", "0s"],
            "not a length of time",
        ),
        (
            &["--when", "stall>20ms", "--max-size", "x"],
            "a number of bytes",
        ),
        (
            &["--when", "stall>20ms", "-o", "/dev/null/x"],
            "/dev/null/x: Not a directory",
        ),
        (&[], "--when <CONDITION>"),
    ] {
        let (status, _, error) = run(&mut stealtime(&[&["watch"], arguments].concat()));
        assert_eq!(status, Some(2), "{arguments:?}");
        assert!(error.contains(message), "{arguments:?}: {error}");
    }
}

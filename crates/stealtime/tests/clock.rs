//! `stealtime clock` as a user runs it; without a device unless there is one.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]

use std::process::{Command, Output};

fn clock(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stealtime"));
    command.arg("clock").args(args).output().unwrap()
}

#[test]
fn a_drill_without_a_device_keeps_every_promise() {
    let args = [
        "drill", "--device", "fake", "--times", "200", "--load", "0", "--json",
    ];
    let output = clock(&args);
    assert_eq!(output.status.code(), Some(0));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (value, offset) = (&report["methods"][0], &report["methods"][1]);
    assert_eq!(
        (&value["method"], &offset["method"]),
        (&"value".into(), &"offset".into())
    );
    assert_eq!(offset["beyond_bound"], 0);
    assert!(offset["tsc"]["max_abs"].as_u64().unwrap() <= 2);
    assert!(value["tsc"]["max_abs"].as_u64().unwrap() > 100_000);
}

#[test]
fn bad_states_and_uses_end_with_status_2_and_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("state");
    let path = file.to_str().unwrap();
    for (contents, reason) in [
        (&b"STGC\x01\x00\x01\x01"[..], "truncated"),
        (b"{}", "missing field `version`"),
        (b"{\"version\": 9}", "version 9"),
        (b"hello", "not a saved clock state"),
    ] {
        std::fs::write(&file, contents).unwrap();
        let output = clock(&["restore", path]);
        assert_eq!(output.status.code(), Some(2));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            message.contains(reason) && message.contains(path),
            "{message}"
        );
    }
    for args in [
        &["restore", path, "--policy", "at-most"][..],
        &["restore", path, "--policy", "stopped", "--limit", "1"],
        &["drill", "--vcpus", "3-2"],
        &["restore", "/nowhere"],
    ] {
        assert_eq!(clock(args).status.code(), Some(2), "{args:?}");
    }
}

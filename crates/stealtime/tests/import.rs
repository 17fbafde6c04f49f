//! `stealtime import`: the event stream of the bare hypervisor, as a recording with VMX exits.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common;

/// `scripts/bare run sketch count=40`: six phases, each a VM.
const SKETCH: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/bare/sketch-40.events.zst"
);

/// The stream as the hypervisor wrote it.
fn stream() -> Vec<u8> {
    let packed = fs::read(SKETCH).expect("the recorded stream");
    zstd::decode_all(&packed[..]).expect("zstd")
}

fn import(folder: &Path, stream: &[u8]) -> (Option<i32>, String) {
    fs::write(folder.join("events.bin"), stream).expect("a file");
    let mut command = common::stealtime(&["import", "events.bin", "-o", "trace.dat"]);
    let (status, _, problem) = common::run(command.current_dir(folder));
    (status, problem)
}

fn analyzed(folder: &Path) -> Value {
    let mut command = common::stealtime(&["analyze", "trace.dat", "--json"]);
    let (status, printed, problem) = common::run(command.current_dir(folder));
    assert_eq!(status, Some(0), "{problem}");
    serde_json::from_str(&printed).expect("JSON")
}

/// Exits of a VM with a reason.
fn exits(answers: &Value, vm: &str, reason: &str) -> u64 {
    let rows = answers["exits"].as_array().expect("rows");
    let found = rows
        .iter()
        .find(|row| row["vm"] == vm && row["reason"] == reason);
    found.map_or(0, |row| row["samples"].as_u64().expect("a number"))
}

#[test]
fn a_stream_becomes_a_recording_with_vmx_exits() {
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(import(folder.path(), &stream()), (Some(0), String::new()));
    let answers = analyzed(folder.path());
    assert_eq!(answers["source"]["cpus"], 2);
    // Each kick costs an exit, each expiry of the preemption timer too; a posted interrupt costs none.
    assert_eq!(exits(&answers, "kick", "EXTERNAL_INTERRUPT"), 40);
    assert_eq!(exits(&answers, "posted", "EXTERNAL_INTERRUPT"), 0);
    let timer = "preemption timer, alone";
    assert_eq!(exits(&answers, timer, "PREEMPTION_TIMER"), 40);
    assert_eq!(exits(&answers, timer, "MSR_WRITE"), 41);
    // Two guests share a CPU in the last phase, and one of them halts.
    let shared = "put, ON not recomputed";
    assert!(exits(&answers, shared, "HLT") > 0 && exits(&answers, shared, "CPUID") > 0);
    let vms = answers["vms"].as_array().expect("VMs");
    assert_eq!(vms.len(), 6);
}

#[test]
fn a_cut_stream_gives_what_it_has_and_names_the_offset() {
    let folder = tempfile::tempdir().expect("a folder");
    let (status, problem) = import(folder.path(), &stream()[..60_000]);
    assert_eq!(status, Some(2));
    assert!(
        problem.contains("events.bin: offset 59") && problem.contains("the stream breaks off"),
        "{problem}"
    );
    assert_eq!(
        exits(&analyzed(folder.path()), "kick", "EXTERNAL_INTERRUPT"),
        40
    );
}

#[test]
fn a_damaged_frame_and_another_file_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut bytes = stream();
    bytes[50_000] ^= 0x10;
    let (status, problem) = import(folder.path(), &bytes);
    assert_eq!(status, Some(2));
    assert!(problem.contains("frame"), "{problem}");
    let other = tempfile::tempdir().expect("a folder");
    let (status, problem) = import(other.path(), b"no stream of ours");
    assert_eq!(status, Some(2));
    assert!(
        problem.contains("offset 0: not an event stream"),
        "{problem}"
    );
    assert!(!other.path().join("trace.dat").exists());
}

//! The example VMM: a guest of two vCPUs saved to disk by one process and restored by another.
#![allow(clippy::unwrap_used, reason = "a test ends where it fails")]
#![cfg(all(target_os = "linux", target_arch = "x86_64"))]

use std::path::PathBuf;
use std::process::Command;

/// Cargo's path to the example, which it builds unless it has.
fn example() -> PathBuf {
    let built = Command::new(env!("CARGO"))
        // As part of the workspace: with the features that a test of all of it has built already.
        .args(["build", "--quiet", "--workspace"])
        .args(["--example", "snapshot_vmm"])
        .args(["--message-format", "json-render-diagnostics"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{errors}");
    let messages = String::from_utf8_lossy(&built.stdout).into_owned();
    let mut paths = messages.rsplit('"');
    let found = paths.find(|text| text.ends_with("/examples/snapshot_vmm"));
    found.expect("cargo names the example").into()
}

#[test]
fn the_example_vmm_brings_a_guest_back_in_another_process() {
    if let Err(error) = guest_clock::kvm::host() {
        println!("skipped: {error}");
        return;
    }
    let program = example();
    let dir = tempfile::tempdir().unwrap();
    let mut processes = Vec::new();
    for what in ["save", "restore"] {
        let ran = Command::new(&program)
            .arg(what)
            .arg(dir.path())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&ran.stdout).into_owned();
        let errors = String::from_utf8_lossy(&ran.stderr);
        assert!(ran.status.success(), "{what}: {said}{errors}");
        println!("{said}");
        let id = said.split([' ', ':']).nth(1).unwrap().to_owned();
        assert!(!processes.contains(&id), "one process did both");
        processes.push(id);
    }
    // A state that is cut is refused, and no guest is run.
    let clocks = dir.path().join("clocks.json");
    let json = std::fs::read(&clocks).unwrap();
    std::fs::write(&clocks, &json[..json.len() / 2]).unwrap();
    let mut command = Command::new(&program);
    let refused = command.arg("restore").arg(dir.path()).output().unwrap();
    assert!(!refused.status.success());
}

//! `stealtime doctor`: what it prints of hosts, of snapshots and of recordings.

use std::path::Path;

use serde_json::Value;

use crate::common;

fn doctor(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let arguments = [&["doctor"], arguments].concat();
    common::run(common::stealtime(&arguments).current_dir(folder))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder")
}

#[test]
fn findings_of_hosts() {
    let folder = folder();
    for name in ["libvirt", "proxmox", "plain"] {
        let tree = common::host_tree(folder.path(), name);
        let (status, out, error) = doctor(folder.path(), &["--root", &tree]);
        assert_eq!((status, error.as_str()), (Some(0), ""), "{name}");
        assert!(out.chars().all(|c| c == '\n' || !c.is_control()), "{out:?}");
        insta::assert_snapshot!(format!("doctor_{name}"), out);
    }
}

#[test]
fn a_snapshot_is_judged_as_its_host() {
    let folder = folder();
    let tree = common::host_tree(folder.path(), "libvirt");
    let (_, host, _) = doctor(folder.path(), &["--root", &tree]);
    let arguments = ["snapshot", "--root", &tree, "-o", "host.json"];
    common::run(common::stealtime(&arguments).current_dir(folder.path()));
    let (status, file, _) = doctor(folder.path(), &["host.json"]);
    assert_eq!((status, file), (Some(0), host));
}

#[test]
fn this_host_is_judged() {
    let folder = folder();
    let (status, out, error) = doctor(folder.path(), &["--json"]);
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["mechanisms"].as_array().map(Vec::len), Some(5));
}

#[test]
fn files_without_a_snapshot_are_refused() {
    let folder = folder();
    let traces = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces");
    let recording = traces.join("svm-cfs/trace.dat");
    let recording = recording.to_str().expect("UTF-8");
    for (file, message) in [
        ("missing.json", "No such file"),
        (recording, "the recording has no snapshot"),
    ] {
        let (status, _, error) = doctor(folder.path(), &[file]);
        assert_ne!(status, Some(0), "{file}");
        assert!(error.contains(message), "{error}");
    }
}

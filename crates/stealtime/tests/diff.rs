//! `stealtime diff` on recordings of nested hosts.

use std::path::Path;

use serde_json::Value;

use crate::common;

fn recording(name: &str) -> String {
    format!("tests/data/live/{name}/trace.dat.zst")
}

/// Runs in the root of the tree, so that paths in the output are the same everywhere.
fn diff(arguments: &[&str]) -> (Option<i32>, String, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let arguments = [&["diff"], arguments].concat();
    common::run(common::stealtime(&arguments).current_dir(root))
}

#[test]
fn a_host_without_and_with_quotas() {
    let (status, out, error) = diff(&[&recording("plain"), &recording("quotas")]);
    assert_eq!(status, Some(0), "{error}");
    let widest = out.lines().map(|line| line.chars().count()).max();
    assert!(widest.is_some_and(|width| width <= 100), "{out}");
    insta::assert_snapshot!("diff_quotas", out);
}

#[test]
fn the_same_recording_has_no_difference() {
    let plain = recording("plain");
    let (status, out, error) = diff(&[&plain, &plain, "--json"]);
    assert_eq!(status, Some(0), "{error}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["findings"].as_array().map(Vec::len), Some(0));
    assert_eq!(value["settings"].as_array().map(Vec::len), Some(0));
    let changes = value["changes"].as_array().expect("changes");
    assert!(!changes.is_empty());
    for change in changes {
        assert_eq!(change["word"], "within_noise", "{change}");
    }
}

#[test]
fn a_recording_that_is_cut_short_is_named_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name).to_str().expect("UTF-8").to_owned();
    let (cut, report) = (place("cut.dat"), place("change.html"));
    let plain = Path::new("../..").join(recording("plain"));
    let whole = zstd::decode_all(std::fs::File::open(plain).expect("a recording"));
    let whole = whole.expect("zstd");
    std::fs::write(&cut, &whole[..whole.len() * 3 / 4]).expect("a part");
    let plain = recording("plain");
    let (_, out, _) = diff(&[&plain, &cut, "--json"]);
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["before"]["partial"], Value::Array(Vec::new()));
    assert_eq!(value["after"]["partial"], Value::from(vec![cut.clone()]));
    let (_, out, _) = diff(&[&plain, &cut, "--report", &report]);
    let said = "less was read than was recorded:";
    assert_eq!(out.matches(said).count(), 1, "{out}");
    let page = std::fs::read_to_string(report).expect("a report");
    let item = page.split("<li>").find_map(|item| item.split_once("</li>"));
    let (item, _) = item.expect("a warning");
    // The folder may have characters that HTML escapes.
    assert!(item.starts_with(&format!("after: {said} ")) && item.ends_with("cut.dat"));
}

#[test]
fn a_report_has_the_findings_and_every_change() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("change.html");
    let report = report.to_str().expect("UTF-8");
    let (plain, quotas) = (recording("plain"), recording("quotas"));
    let (status, tables, error) = diff(&[&plain, &quotas, "--report", report]);
    assert_eq!(status, Some(0), "{error}");
    assert_eq!(error, format!("report: {report}\n"));
    assert_eq!(diff(&[&plain, &quotas]).1, tables);
    let page = std::fs::read_to_string(report).expect("a report");
    let place = |what: &str| page.find(what).unwrap_or_else(|| panic!("no {what}"));
    assert!(place("batch waits for a CPU 346.1 ms less") < place("What changed</h2>"));
    for part in [
        "Waiting for a CPU (steal); lower is better",
        "Time of each VM&#39;s vCPUs",
        "<td class=\"short\">polling</td>",
        "cgroups./vms.quota_us",
    ] {
        assert!(page.contains(part), "{part}");
    }
    // Status 2 before anything is read: a recording stays what it is.
    let (status, _, error) = diff(&[&plain, &quotas, "--report", &quotas]);
    assert_eq!(status, Some(2));
    assert!(error.contains("would be overwritten"), "{error}");
}

#[test]
fn hosts_with_other_vms() {
    let (status, out, error) = diff(&[&recording("plain"), &recording("weights")]);
    assert_eq!(status, Some(0), "{error}");
    for line in [
        "only before: batch, db, web",
        "only after: bronze, gold, silver",
        "No VM is in both",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
}

#[test]
fn a_folder_without_recordings_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("UTF-8");
    let (status, out, error) = diff(&[path, path]);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains("has no recording"), "{error}");
}

/// A snapshot of the plain host, and a recording without one.
fn without_snapshot(folder: &Path) -> [String; 2] {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let path = |name: &str| folder.join(name).display().to_string();
    let (snapshot, bare) = (path("host.json"), path("bare.dat"));
    let plain = recording("plain");
    for arguments in [
        &["snapshot", plain.as_str(), "-o", &snapshot][..],
        &["export", &plain, "--to", "trace.dat", "-o", &bare],
    ] {
        let (status, _, error) = common::run(common::stealtime(arguments).current_dir(&root));
        assert_eq!(status, Some(0), "{error}");
    }
    [snapshot, bare]
}

#[test]
fn a_snapshot_names_the_vms_of_both_sides_or_of_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let [snapshot, bare] = without_snapshot(folder.path());
    let plain = recording("plain");
    for asked in [
        &[&bare, &bare, "--snapshot", &snapshot][..],
        &[
            &plain,
            &bare,
            "--snapshot",
            &snapshot,
            "--snapshot",
            &snapshot,
        ],
    ] {
        let (status, out, error) = diff(&[asked, &["--json"]].concat());
        assert_eq!(status, Some(0), "{error}");
        let value: Value = serde_json::from_str(&out).expect("JSON");
        let changes = value["changes"].as_array().expect("changes");
        assert!(changes.iter().any(|change| change["vm"] == "web"), "{out}");
        assert_eq!(value["settings"].as_array().map(Vec::len), Some(0), "{out}");
    }
    let three = ["--snapshot", &snapshot].repeat(3);
    let (status, out, error) = diff(&[&[bare.as_str(), &bare][..], &three].concat());
    assert_eq!((status, out.as_str()), (Some(2), ""), "{error}");
    assert!(error.contains("a third time"), "{error}");
}

#[test]
fn options_that_no_recording_needs_change_nothing() {
    let perf = "tests/data/traces/svm-perf-kvm-stat-hackbench-tlb-burst/perf.data.zst";
    let formats = ["--formats-from", perf];
    let khz = ["--tsc-khz", "2400000", "--tsc-khz", "2600000"];
    let (status, out, error) = diff(&[&[perf, perf, "--json"][..], &formats, &khz].concat());
    assert_eq!(status, Some(0), "{error}");
    let value: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(value["findings"].as_array().map(Vec::len), Some(0));
}

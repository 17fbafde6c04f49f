//! Several recordings: a folder of them, and those made after a change.

use std::path::Path;

use serde_json::Value;

use super::{HACKBENCH, answer, common, complaint, traces};

#[test]
fn the_self_test_has_a_row_for_each_recording() {
    let out = answer(&["--self-test", "."]);
    let rows = out
        .lines()
        .filter(|line| line.contains("trace.dat") || line.contains("perf.data"));
    assert!(rows.count() >= 5, "{out}");
    assert!(out.contains("within bounds"));
    assert!(
        complaint(&["--self-test", "svm-hackbench-cyclictest-hog/reference"])
            .contains("no recordings")
    );
}

#[test]
fn the_self_test_knows_recordings_by_what_they_hold() {
    let folder = tempfile::tempdir().expect("a folder");
    let line = " CPU 0/KVM-11 [000] 1.000001: kvm_exit: vcpu 0 reason HLT rip 0x1 info 0 0\n";
    std::fs::write(folder.path().join("last-night"), line.repeat(3)).expect("written");
    std::fs::write(folder.path().join("notes.txt"), "slow since Monday\n").expect("written");
    std::fs::write(folder.path().join("empty"), "").expect("written");
    let out = answer(&["--self-test", folder.path().to_str().expect("UTF-8")]);
    assert!(out.contains("last-night"), "{out}");
    assert!(
        !out.contains("notes.txt") && !out.contains("empty"),
        "{out}"
    );
}

#[test]
fn recordings_that_are_cut_short_are_named_where_they_count() {
    const CFS: &str = "svm-cfs/trace.dat";
    let folder = tempfile::tempdir().expect("a folder");
    let cut = folder.path().join("cut.dat").display().to_string();
    let whole = std::fs::read(traces().join(CFS)).expect("a recording");
    std::fs::write(&cut, &whole[..whole.len() * 2 / 3]).expect("a part");
    let asked = [
        CFS,
        "--set",
        "host.hz=1000",
        "--seen",
        CFS,
        "--again",
        &cut,
        "--seeds",
        "2",
    ];
    let out = answer(&asked);
    let said = format!("Less was read than was recorded of {cut}.");
    let flow = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flow(&out).contains(&said), "{out}");
    let json: Value =
        serde_json::from_str(&answer(&[&asked[..], &["--json"]].concat())).expect("JSON");
    assert_eq!(json["recording_partial"], false);
    assert_eq!(json["seen"]["with"], Value::from(vec![CFS]));
    assert_eq!(json["seen"]["partial"], Value::from(vec![cut.clone()]));
    let foreign = format!("{cut}:vm0=other");
    let out = answer(&[CFS, "--with", &foreign, "--seeds", "2"]);
    let said = "less of that recording was read than was recorded";
    assert!(flow(&out).contains(said), "{out}");
}

#[test]
fn a_prediction_stands_next_to_what_was_seen() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let scenario = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scenarios/halt-polling.toml"
    );
    for (variant, file) in [("polling", "with.dat"), ("off", "without.dat")] {
        let mut command = common::stealtime(&["simulate", scenario, "--variant", variant]);
        let asked = ["--seeds", "1", "--duration", "100ms", "--trace"];
        let (status, _, error) = common::run(command.args(asked).arg(path(file)));
        assert_eq!(status, Some(0), "{error}");
    }
    let (with, without) = (path("with.dat"), path("without.dat"));
    let asked = [&with, "--set", "kvm.halt_poll_ns=0", "--seen", &without];
    let out = answer(&asked);
    for quantity in ["running", "halted"] {
        let seen = out.rfind("Seen, of kvm.halt_poll_ns=0").expect("a table");
        let row = out[seen..].lines().find(|line| line.contains(quantity));
        assert!(row.is_some_and(|row| row.ends_with("yes")), "{out}");
    }
    let json: Value =
        serde_json::from_str(&answer(&[&asked[..], &["--json"]].concat())).expect("JSON");
    // One recording of each: there is no spread.
    assert_eq!(json["seen"]["rows"][0]["spread"], Value::Null);
    assert_eq!(
        json["seen"]["beyond_spread"],
        json["seen"]["rows"].as_array().map_or(0, Vec::len)
    );
    let twice = [&asked[..], &["--again", &with, "--json"]].concat();
    let json: Value = serde_json::from_str(&answer(&twice)).expect("JSON");
    assert_eq!(json["seen"]["rows"][0]["spread"], 0.0);
    // With a spread each figure of the verdict is compared. Polling off frees CPU time, and it shows.
    let figures = figures(&json);
    let freed = figures
        .iter()
        .find(|figure| figure["quantity"] == "CPU time freed");
    let freed = freed.expect("a figure");
    assert_eq!(
        (&freed["word"], &freed["decides"]),
        (&"better".into(), &true.into())
    );
    assert_eq!(json["seen"]["refuted"], 0, "{figures:?}");
    // The recordings in each other's place: what is freed is spent.
    let crossed = [&without[..], "--set", "kvm.halt_poll_ns=0", "--seen", &with];
    let crossed = [&crossed[..], &["--again", &without, "--json"]].concat();
    let json: Value = serde_json::from_str(&answer(&crossed)).expect("JSON");
    assert!(
        self::figures(&json)
            .iter()
            .all(|figure| figure["is_refuted"] != true)
    );

    // All polls succeed, and cost three of four CPUs: that is worth a try.
    let out = answer(&[&with, "--auto", "--seeds", "2", "--json"]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let best = &json["auto"]["tried"][0];
    assert_eq!(best["name"], "kvm.halt_poll_ns=0");

    for (asked, part) in [
        (
            &[&with[..], "--seen", &without][..],
            "--set KNOB=VALUE or --pin",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_poll_ns=0", "--seen", &with],
            "has no VM vm0",
        ),
        (
            &[&with, "--set", "kvm.halt_poll_ns=0", "--again", &with],
            "--seen",
        ),
    ] {
        let error = complaint(asked);
        assert!(error.contains(part), "{part}: {error}");
    }
}

fn figures(report: &Value) -> &Vec<Value> {
    report["seen"]["figures"].as_array().expect("figures")
}

/// Recordings of a host before and after a change, each made twice. `scripts/pairs` has more of them.
#[test]
fn no_verdict_rests_on_a_figure_that_recordings_refute() {
    let Some(folder) = std::env::var_os("STEALTIME_TRACES") else {
        return;
    };
    let folder = Path::new(&folder);
    let pairs: [(&str, [&str; 4], &[&str]); 4] = [
        (
            "pair-halt-poll",
            ["A1", "A2", "B1", "B2"],
            &["--set", "kvm.halt_poll_ns=0"],
        ),
        (
            "pair-halt-poll",
            ["B2", "B1", "A2", "A1"],
            &["--set", "kvm.halt_poll_ns=4ms"],
        ),
        (
            "pair-pinning",
            ["A2", "A1", "B2", "B1"],
            &["--pin", "vm0=1:1 0,1,0", "--pin", "vm1=1:1 1,0,1"],
        ),
        (
            "pair-pinning-by-vm",
            ["B1", "B2", "A1", "A2"],
            &["--pin", "vm0=0-1", "--pin", "vm1=0-1"],
        ),
    ];
    let mut judged = 0;
    for (name, recordings, change) in pairs {
        let path = |recording: &str| {
            let file = folder.join(name).join(recording).join("trace.dat.zst");
            file.display().to_string()
        };
        let [before, again, after, later] = recordings.map(path);
        let seen = [
            "--again", &again, "--seen", &after, "--seen", &later, "--json",
        ];
        let out = answer(&[&[before.as_str()][..], change, &seen].concat());
        let json: Value = serde_json::from_str(&out).expect("JSON");
        let deciding = figures(&json)
            .iter()
            .filter(|figure| figure["decides"] == true);
        for figure in deciding {
            assert_eq!(figure["is_refuted"], false, "{name}: {figure}");
            judged += 1;
        }
        assert_eq!(json["seen"]["refuted"], 0, "{name}");
    }
    assert!(judged >= 10, "{judged} figures are no test");
}

/// This host had Linux 6.1.
#[test]
fn a_host_with_cfs_is_replayed_by_cfs() {
    let out = answer(&["svm-cfs/trace.dat", "--json"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let mut lines = assumed(&report);
    let class = "sched.fair=cfs (as Linux 6.1 schedules)";
    assert!(lines.any(|line| line.starts_with(class)), "{out}");
    is_within_bounds(&report);
}

/// What a replay takes for true.
fn assumed(report: &Value) -> impl Iterator<Item = &str> {
    let lines = report["assumed"].as_array().expect("a list").iter();
    lines.filter_map(Value::as_str)
}

fn is_within_bounds(report: &Value) {
    let error = &report["error"];
    for (key, most) in [
        ("median_percent", 3.0),
        ("p90_percent", 8.0),
        ("exits_worst_percent", 5.0),
    ] {
        assert!(
            error[key].as_f64().is_some_and(|percent| percent <= most),
            "{key}: {error}"
        );
    }
}

/// Of this host `cpu.weight` is known: 100, 100 and 300.
#[test]
fn weights_of_cgroups_are_found_in_a_real_recording() {
    let out = answer(&["svm-cgroup-weights/trace.dat", "--json"]);
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let mut lines = assumed(&report);
    let groups = lines.find(|line| line.contains("each VM in a cgroup"));
    let groups = groups.unwrap_or_else(|| panic!("{out}"));
    assert_eq!(groups.matches("cpu.weight").count(), 1, "{groups}");
    let found = groups
        .split("vm2 with cpu.weight ")
        .nth(1)
        .expect("a weight");
    let found = found.split(' ').next().and_then(|word| word.parse().ok());
    assert!(
        found.is_some_and(|weight: u32| weight.abs_diff(300) <= 60),
        "{groups}"
    );
    is_within_bounds(&report);
}

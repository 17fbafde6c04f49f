//! `whatif` as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

fn traces() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces")
}

/// Exit status, standard output and standard error of `whatif` beside the recordings.
fn whatif(arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .arg("whatif")
        .args(arguments)
        .current_dir(traces())
        .stdin(Stdio::null())
        .output()
        .expect("the command runs");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

fn answer(arguments: &[&str]) -> String {
    let (status, out, error) = whatif(arguments);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments:?}");
    out
}

fn complaint(arguments: &[&str]) -> String {
    let (status, out, error) = whatif(arguments);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
    error
}

const HACKBENCH: &str = "svm-hackbench-cyclictest-hog/trace.dat.zst";

#[test]
fn a_replay_and_a_variant_as_tables() {
    let out = answer(&[
        HACKBENCH,
        "--set",
        "sched.base_slice_ns=3ms",
        "--seeds",
        "3",
    ]);
    assert!(
        out.lines()
            .all(|line| line.chars().count() <= 110 || line.starts_with("Assumed"))
    );
    insta::with_settings!({prepend_module_to_snapshot => false, snapshot_path => "snapshots"}, {
        insta::assert_snapshot!("whatif-base-slice", out);
    });
}

#[test]
fn runs_are_pure_functions_of_what_is_given() {
    let asked = [
        HACKBENCH,
        "--vary",
        "kvm.halt_poll_ns=0,1000000",
        "--seeds",
        "2",
        "--json",
    ];
    let first = answer(&asked);
    assert_eq!(first, answer(&asked));
    let json: Value = serde_json::from_str(&first).expect("JSON");
    let names: Vec<&Value> = json["variants"]
        .as_array()
        .expect("variants")
        .iter()
        .map(|variant| &variant["name"])
        .collect();
    assert_eq!(names, ["kvm.halt_poll_ns=0", "kvm.halt_poll_ns=1000000"]);
    // A vCPU's time is accounted for once, whatever was replayed.
    for vcpu in json["vcpus"].as_array().expect("vCPUs") {
        for of in ["recorded", "replayed"] {
            let share = |key: &str| vcpu[of][key].as_f64().expect("a number");
            let sum = share("run_percent") + share("ready_percent") + share("halted_percent");
            assert!(sum < 100.01, "{vcpu}");
        }
    }
}

#[test]
fn pins_bind_and_polling_is_switched_off() {
    let out = answer(&[
        HACKBENCH,
        "--set",
        "kvm.halt_poll_ns=0",
        "--seeds",
        "2",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let changes = json["variants"][0]["changes"].as_array().expect("changes");
    let polling = changes.iter().filter(|c| c["quantity"] == "polling");
    assert!(polling.clone().count() > 0);
    assert!(polling.into_iter().all(|c| c["after"] == 0.0));
    // All vCPUs of the busiest VM on one CPU: they have one CPU's time together.
    let running = changes.iter().filter(|c| c["quantity"] == "running");
    let before = |c: &&Value| c["before"].as_f64().expect("a number") as u64;
    let vm = &running.max_by_key(before).expect("a VM")["vm"];
    let vm = vm.as_str().expect("a name");
    let out = answer(&[
        HACKBENCH,
        "--pin",
        &format!("{vm}=1"),
        "--seeds",
        "2",
        "--json",
    ]);
    let json: Value = serde_json::from_str(&out).expect("JSON");
    let changes = json["variants"][0]["changes"].as_array().expect("changes");
    let running = changes
        .iter()
        .find(|c| c["vm"] == vm && c["quantity"] == "running")
        .expect("a row");
    assert!(
        running["after"].as_f64().expect("a number") <= 1_000.1,
        "{running}"
    );
    assert!(
        running["before"].as_f64().expect("a number") > 1_000.1,
        "{running}"
    );
}

#[test]
fn what_cannot_be_answered_is_said_before_the_run() {
    let cases: [(&[&str], &str); 9] = [
        (
            &[HACKBENCH, "--set", "kvm.ple_gap=0"],
            "does nothing in a replay yet",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_pol_ns=0"],
            "kvm.halt_pol_ns",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_poll_ns=often"],
            "kvm.halt_poll_ns",
        ),
        (
            &[HACKBENCH, "--set", "kvm.halt_poll_ns"],
            "expected KNOB=VALUE",
        ),
        (&[HACKBENCH, "--pin", "vm9/0=1"], "no VM"),
        (&[HACKBENCH, "--pin", "vm0/0=7"], "the host has CPUs 0-3"),
        (&[HACKBENCH, "--pin", "vm0/77=1"], "no such vCPU"),
        (&["nowhere.dat"], "nowhere.dat"),
        (&["README.md"], "README.md"),
    ];
    for (arguments, part) in cases {
        let error = complaint(arguments);
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
}

#[test]
fn a_recording_without_switches_says_what_to_record() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("no-sched.txt");
    let line = " CPU 0/KVM-11 [000] 1.000001: kvm_exit: vcpu 0 reason HLT rip 0x1 info 0 0\n";
    std::fs::write(&path, line.repeat(3)).expect("written");
    let error = complaint(&[path.to_str().expect("UTF-8")]);
    assert!(error.contains("sched:sched_switch"), "{error}");
}

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
fn a_file_about_the_host_is_believed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("host.toml");
    let host = |text: &str| {
        std::fs::write(&file, text).expect("written");
        let path = file.to_str().expect("UTF-8").to_owned();
        whatif(&[HACKBENCH, "--host", &path])
    };
    let (status, out, _) =
        host("# mine\ngroups = true\nplacement = \"simulated\"\nhost.hz = 1000\n");
    assert_eq!(status, Some(0));
    for part in [
        "host.hz=1000",
        "each VM in a cgroup",
        "by the simulated scheduler",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    for (text, part) in [
        ("groups = maybe", ":1: groups"),
        ("\nplacement", ":2: expected"),
        ("kvm.nothing = 1", "no knob kvm.nothing"),
    ] {
        let (status, _, error) = host(text);
        assert!(status == Some(2) && error.contains(part), "{text}: {error}");
    }
}

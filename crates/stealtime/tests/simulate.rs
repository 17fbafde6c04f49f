//! `simulate` and `knobs` as a user has them.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::common::FAULTY_VM;

pub(crate) const SMALL: &str = "about = \"a small one\"\n[host]\nprofile = \"skylake-sp\"\ncpus = 2\n\
    [[vm]]\nname = \"web\"\nvcpus = 2\nworkload = { name = \"ticks\", period_ns = \"100us\" }\n\
    [variants.polling]\n[variants.off]\nkvm.halt_poll_ns = 0\n\
    [run]\nduration = \"20ms\"\nwarmup = \"5ms\"\nseeds = 3\n";

/// Runs the command with a scenario on its standard input: status, output, errors.
fn stealtime(arguments: &[&str], scenario: &str) -> (Option<i32>, String, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .args(arguments)
        // A folder where this user may write.
        .current_dir(std::env::temp_dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    // A command that refuses its arguments does not read.
    let _ = child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(scenario.as_bytes());
    let Output {
        status,
        stdout,
        stderr,
    } = child.wait_with_output().expect("it ends");
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    (status.code(), text(stdout), text(stderr))
}

fn simulate(arguments: &[&str]) -> String {
    let all: Vec<&str> = ["simulate", "-"].iter().chain(arguments).copied().collect();
    let (status, out, error) = stealtime(&all, SMALL);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments:?}");
    out
}

fn complaint(arguments: &[&str], scenario: &str) -> String {
    let all: Vec<&str> = ["simulate", "-"].iter().chain(arguments).copied().collect();
    let (status, out, error) = stealtime(&all, scenario);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
    error
}

#[test]
fn variants_stand_side_by_side() {
    let out = simulate(&[]);
    for part in [
        "a small one",
        "3 seeds, 20ms each",
        "VM web",
        "polling",
        "off",
        "halt polling",
        "±",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(out.lines().all(|line| line.chars().count() <= 100), "{out}");
    assert!(!out.contains('\u{1b}'));
}

/// What a scenario tells its reader to look at is among what it prints. (The long ones are left out.)
#[test]
fn what_a_scenario_says_to_look_at_is_printed() {
    for name in [
        "flat-cgroups",
        "halt-polling",
        "moved-clocks",
        "moved-counters-arm64",
        "posted-timers",
        "suppressed-notifications",
        "throttled",
    ] {
        let file = format!("{}/../../scenarios/{name}.toml", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(&file).expect("a scenario");
        let head = text.lines().take_while(|line| line.starts_with('#'));
        let head: String = head.map(|line| line.trim_start_matches('#')).collect();
        let (_, look) = head
            .split_once("What to look at:")
            .expect("what to look at");
        let metrics: Vec<&str> = look.split('`').skip(1).step_by(2).collect();
        assert!(!metrics.is_empty(), "{name}");
        let (status, out, error) = stealtime(&["simulate", &file, "--seeds", "2"], "");
        assert_eq!(status, Some(0), "{name}: {error}");
        for metric in metrics {
            assert!(out.contains(metric), "{name}: no {metric:?} in\n{out}");
        }
    }
}

#[test]
fn the_same_bytes_on_any_number_of_threads() {
    let one = simulate(&["--jobs", "1", "--json"]);
    assert_eq!(one, simulate(&["--jobs", "3", "--format", "json"]));
    let value: Value = serde_json::from_str(&one).expect("JSON");
    assert_eq!(
        value["variants"][1]["settings"][0]["knob"],
        "kvm.halt_poll_ns"
    );
    assert_eq!(value["partial"], false);
    assert_eq!(
        value["rows"][0]["cells"][1]["difference"]["estimate"]["n"],
        3
    );
    assert!(value.get("stats").is_none());
}

#[test]
fn the_command_line_changes_the_scenario() {
    let json = |arguments: &[&str]| -> Value {
        let all: Vec<&str> = arguments.iter().chain(&["--json"]).copied().collect();
        serde_json::from_str(&simulate(&all)).expect("JSON")
    };
    let few = json(&[
        "--seeds",
        "2",
        "--duration",
        "10ms",
        "--variant",
        "off",
        "--stats",
    ]);
    assert_eq!(few["seeds"].as_array().map(Vec::len), Some(2));
    assert_eq!(few["duration_ns"], 10_000_000);
    assert_eq!(few["variants"].as_array().map(Vec::len), Some(1));
    assert!(few["stats"]["events"].as_u64().expect("a number") > 0);
    assert_eq!(few["set"].as_array().map(Vec::len), Some(0));
    let slow = json(&["--set", "vm.web.workload.period_ns=10ms"]);
    assert_eq!(slow["set"][0]["knob"], "vm.web.workload.period_ns");
    let turns = |value: &Value| value["rows"][0]["cells"][0]["estimate"]["mean"].as_f64();
    assert!(turns(&slow) < turns(&json(&[])));
}

/// A knob of one VM and the same one of all: whatever the order, the VM has its own.
#[test]
fn what_is_set_is_shown() {
    let sets = ["--set", "vm.web.hz=100", "--set", "vm.*.hz=1000"];
    let out = simulate(&sets);
    for part in [
        "--set in each variant that does not: vm.*.hz=1000 vm.web.hz=100\n",
        "polling  the scenario with --set\n",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    let backwards = ["--set", "vm.*.hz=1000", "--set", "vm.web.hz=100"];
    assert_eq!(simulate(&backwards), out);
    assert!(!simulate(&[]).contains("--set"));
}

#[test]
fn complaints_show_the_line_or_the_option() {
    let wrong = SMALL.replace("vcpus", "vcpu");
    let error = complaint(&[], &wrong);
    assert!(
        error.contains("standard input:7:1") && error.contains("`vcpus`"),
        "{error}"
    );
    for (arguments, says) in [
        (
            &["--set", "kvm.halt_pol_ns=1"][..],
            "did you mean `kvm.halt_poll_ns`?",
        ),
        (&["--set", "kvm.ple_gap"], "expected KNOB=VALUE"),
        (&["--set", "kvm.ple_gap=x"], "no whole number"),
        (
            &["--set", "kvm.halt_poll_ns=1", "--variant", "off"],
            "changes nothing",
        ),
        (
            &["--set", "vm.web.vcpus=3", "--set", "vm.web.pinning=1:1 0"],
            "1 CPUs for 3 vCPUs",
        ),
        (&["--variant", "on"], "there are polling, off"),
        (
            &["--timeline", "1ms", "--of", "on"],
            "no such variant is run; there are polling, off",
        ),
        (&["--timeline", "1ms", "--cpu", "2"], "the host has 2 CPUs"),
        (
            &["--set", "kvm.ple_gap=1", "--set", "kvm.ple_gap=2"],
            "kvm.ple_gap is set twice",
        ),
        (
            &["--trace", "-"],
            "--trace - does not write to standard output",
        ),
        (
            &["--report", "-", "--stats"],
            "--stats says it below the tables",
        ),
        (
            &["--trace", "no-such-file", "--report", "no-such-file"],
            "--trace and --report would both write it",
        ),
        (&["--duration", "5"], "no unit"),
        (&["--duration", "1ns"], "within 1us"),
        (&["--seeds", "0"], "1..=10000"),
        (&["--jobs", "0"], "--jobs"),
    ] {
        let error = complaint(arguments, SMALL);
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    let (status, _, error) = stealtime(&["simulate", "nothing.toml"], "");
    assert!(
        status == Some(2) && error.contains("nothing.toml: No such file"),
        "{error}"
    );
}

#[test]
fn what_a_scenario_is_called_does_not_reach_the_terminal() {
    let wrong = SMALL.replace("a small one", "\\u001b[2J");
    let (status, out, _) = stealtime(&["simulate", "-", "--seeds", "1"], &wrong);
    assert_eq!(status, Some(0));
    assert!(!out.contains('\u{1b}'), "{out}");
}

#[test]
fn runs_that_fail_are_reported_and_the_others_shown() {
    let (status, out, error) = stealtime(&["simulate", "-"], &format!("{SMALL}{FAULTY_VM}"));
    assert_eq!(status, Some(2), "{out}");
    assert!(
        out.contains("seeds 1, 2, 3 failed") && error.contains("6 of 6 runs failed"),
        "{out}{error}"
    );
}

#[test]
fn ctrl_c_shows_what_was_finished() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .args([
            "simulate",
            "-",
            "--duration",
            "300s",
            "--jobs",
            "1",
            "--json",
        ])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    child
        .stdin
        .take()
        .expect("a pipe")
        .write_all(SMALL.as_bytes())
        .expect("it reads");
    std::thread::sleep(std::time::Duration::from_millis(500));
    let pid = child.id().to_string();
    let sent = Command::new("kill")
        .args(["-INT", &pid])
        .status()
        .expect("kill runs");
    assert!(sent.success());
    let Output { status, stdout, .. } = child.wait_with_output().expect("it ends");
    assert_eq!(status.code(), Some(130));
    let value: Value = serde_json::from_slice(&stdout).expect("JSON all the same");
    assert_eq!(value["partial"], true);
    assert_eq!(value["variants"][0]["partial"], true);
}

#[test]
fn knobs_are_listed_in_every_form() {
    let knobs = |arguments: &[&str]| {
        let all: Vec<&str> = ["knobs"].iter().chain(arguments).copied().collect();
        stealtime(&all, "")
    };
    let (status, table, _) = knobs(&[]);
    assert_eq!(status, Some(0));
    assert!(
        table.contains("kvm.halt_poll_ns = 200us") && table.contains("vm.NAME.cpu_weight = 100")
    );
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
    let json: Value = serde_json::from_str(&knobs(&["--json"]).1).expect("JSON");
    assert!(json.as_array().expect("an array").len() > 50);
    let few: Value = serde_json::from_str(&knobs(&["ple_window", "--json"]).1).expect("JSON");
    assert_eq!(few.as_array().map(Vec::len), Some(4));
    let (status, _, error) = knobs(&["zebra"]);
    assert!(
        status == Some(2) && error.contains("no knob has"),
        "{error}"
    );
    let path: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/knobs.md");
    let file = std::fs::read_to_string(path).expect("a file");
    assert_eq!(knobs(&["--format", "markdown"]).1, file);
}

#[test]
fn a_run_becomes_a_recording_that_analyze_reads() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("off.dat");
    let file = path.to_str().expect("UTF-8");
    simulate(&["--trace", file, "--of", "off", "--seeds", "1"]);
    let (status, out, error) = stealtime(&["analyze", file, "--json"], "");
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let answers: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answers["vcpus"].as_array().map(Vec::len), Some(2));
    // Warm-up and measured time; without polling no halt is polled.
    let span = answers["source"]["span_ns"].as_u64().expect("a number");
    assert!((20_000_000..=25_000_000).contains(&span), "{span}");
    assert_eq!(answers["vcpus"][0]["poll_ns"], 0);
    let error = complaint(&["--trace", file, "--of", "none"], SMALL);
    assert!(error.contains("--of none: no such variant"), "{error}");
    // What could not be written is refused before the runs.
    let error = complaint(&["--trace", "/nonexistent/x.dat"], SMALL);
    assert!(
        error.contains("/nonexistent/x.dat: No such file"),
        "{error}"
    );
    let error = complaint(&["--of", "off"], SMALL);
    assert!(error.contains("add one of them"), "{error}");
}

#[test]
fn the_first_milliseconds_can_be_drawn() {
    let out = simulate(&[
        "--timeline",
        "1ms",
        "--cpu",
        "1",
        "--of",
        "off",
        "--seeds",
        "1",
    ]);
    let (_, drawn) = out.split_once("Variant off\n").expect("a drawing");
    assert!(drawn.starts_with("From 5ms on, 1ms"), "{drawn}");
    assert_eq!(
        drawn
            .lines()
            .filter(|line| line.starts_with("CPU "))
            .count(),
        1
    );
    assert!(drawn.contains("guest web"), "{drawn}");
    let (status, _, error) =
        stealtime(&["simulate", "-", "--timeline", "1ms", "--cpu", "2"], SMALL);
    assert!(
        status == Some(2) && error.contains("the host has 2 CPUs"),
        "{error}"
    );
}

#[test]
fn workloads_are_listed_in_every_form() {
    let list = |more: &[&str]| {
        let all: Vec<&str> = ["knobs", "--workloads"]
            .iter()
            .chain(more)
            .copied()
            .collect();
        stealtime(&all, "")
    };
    let (status, table, _) = list(&[]);
    assert!(
        status == Some(0) && table.contains("hackbench: ") && table.contains("period_ns = 1ms")
    );
    assert!(
        table.lines().all(|line| line.chars().count() <= 100),
        "{table}"
    );
    let json: Value = serde_json::from_str(&list(&["ticks", "--json"]).1).expect("JSON");
    assert_eq!(json[0]["parameters"][1]["name"], "period_ns");
    assert_eq!(list(&["zebra"]).0, Some(2));
}

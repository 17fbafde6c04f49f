//! `--report` as a user has it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const TRACE: &str = "../../tests/data/traces/svm-hackbench-cyclictest-hog/trace.dat.zst";

const SMALL: &str = "about = \"a small one\"\n[host]\nprofile = \"skylake-sp\"\ncpus = 2\n\
    [[vm]]\nname = \"web\"\nvcpus = 2\nworkload = { name = \"ticks\", period_ns = \"100us\" }\n\
    [variants.polling]\n[variants.off]\nkvm.halt_poll_ns = 0\n\
    [run]\nduration = \"5ms\"\nwarmup = \"1ms\"\nseeds = 3\n";

fn stealtime(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_stealtime"))
        .args(arguments)
        .output()
        .expect("the command runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// A scenario's file in a folder of its own, and where a report may go.
fn scenario() -> (tempfile::TempDir, String, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("small.toml");
    std::fs::write(&path, SMALL).expect("a file");
    let report = folder.path().join("out.html");
    (folder, path.display().to_string(), report)
}

fn shown(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_report_changes_nothing_else_and_is_always_the_same() {
    let (folder, _, report) = scenario();
    // A name that is the same wherever temporary folders are.
    let scenario = "small.toml";
    let stealtime = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_stealtime"))
            .args(arguments)
            .current_dir(folder.path())
            .output()
            .expect("the command runs")
    };
    let plain = stealtime(&["simulate", scenario]);
    let mut pages = Vec::new();
    for jobs in ["1", "3"] {
        let arguments = [
            "simulate",
            scenario,
            "--report",
            shown(&report),
            "--jobs",
            jobs,
        ];
        let with = stealtime(&arguments);
        assert_eq!(with.status.code(), Some(0));
        assert_eq!(with.stdout, plain.stdout);
        assert_eq!(text(&with.stderr), format!("report: {}\n", shown(&report)));
        pages.push(std::fs::read(&report).expect("a report"));
    }
    assert_eq!(pages[0], pages[1]);
    let page = text(&pages[0]);
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    // The scenario and the command that runs it again, without what only says where it goes.
    assert!(page.contains("kvm.halt_poll_ns = 0"));
    assert!(
        page.contains(&format!("<code>stealtime simulate {scenario}</code>")),
        "{scenario}"
    );
}

#[test]
fn standard_output_is_the_reports_alone() {
    let (_folder, scenario, report) = scenario();
    let to_file = stealtime(&["simulate", &scenario, "--report", shown(&report)]);
    let to_stdout = stealtime(&["simulate", &scenario, "--report", "-"]);
    assert_eq!(
        (to_file.status.code(), to_stdout.status.code()),
        (Some(0), Some(0))
    );
    assert_eq!(to_stdout.stdout, std::fs::read(&report).expect("a report"));
    assert!(to_stdout.stderr.is_empty());
    for other in [&["--json"][..], &["--timeline", "1ms"]] {
        let arguments = [&["simulate", &scenario, "--report", "-"], other].concat();
        let refused = stealtime(&arguments);
        assert_eq!((refused.status.code(), refused.stdout.len()), (Some(2), 0));
        assert!(text(&refused.stderr).contains("give a file"), "{other:?}");
    }
}

#[test]
fn what_cannot_be_written_leaves_nothing_behind() {
    let (folder, scenario, _) = scenario();
    let nowhere = folder.path().join("no/such/out.html");
    let failed = stealtime(&["simulate", &scenario, "--report", shown(&nowhere)]);
    assert_eq!(failed.status.code(), Some(2));
    assert!(
        text(&failed.stderr).contains("No such file"),
        "{}",
        text(&failed.stderr)
    );
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .collect();
    assert_eq!(left.len(), 1, "{left:?}");
    // A full device is reported.
    let full = stealtime(&["simulate", &scenario, "--report", "/dev/full"]);
    assert_eq!(full.status.code(), Some(2));
    assert!(
        text(&full.stderr).contains("/dev/full"),
        "{}",
        text(&full.stderr)
    );
}

#[test]
fn a_recording_is_shown_with_everything_whatever_tables_are_asked_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("out.html");
    let all = stealtime(&["analyze", TRACE, "--report", shown(&report)]);
    assert_eq!(all.status.code(), Some(0));
    let whole = text(&std::fs::read(&report).expect("a report"));
    for part in [
        "Where vCPU time went",
        "What the CPU ran while a vCPU of the VM was ready",
        "Percentiles of latencies",
        "MSR accesses",
        "32,231 events, none lost",
    ] {
        assert!(whole.contains(part), "{part}");
    }
    let few = stealtime(&[
        "analyze",
        TRACE,
        "--key",
        "exits",
        "--report",
        shown(&report),
    ]);
    assert!(text(&few.stdout).contains("Exits") && !text(&few.stdout).contains("Latencies"));
    let page = text(&std::fs::read(&report).expect("a report"));
    // They differ in the command line that they name, which stands once.
    assert_eq!(page.replace(" --key exits</code>", "</code>"), whole);
}

#[test]
fn a_recording_that_was_cut_short_says_so_at_the_top() {
    let folder = tempfile::tempdir().expect("a folder");
    let (cut, report) = (
        folder.path().join("cut.dat.zst"),
        folder.path().join("out.html"),
    );
    let bytes = std::fs::read(TRACE).expect("a recording");
    std::fs::write(&cut, &bytes[..bytes.len() * 9 / 10]).expect("a file");
    let output = stealtime(&["analyze", shown(&cut), "--report", shown(&report)]);
    let page = text(&std::fs::read(&report).expect("a report"));
    let shown_first = text(&output.stdout);
    let mut lines = shown_first.lines().skip(1);
    let first = lines.next().expect("a line behind the path");
    assert!(
        first.trim_start().starts_with("Partial: less was read"),
        "{shown_first}"
    );
    // Of what was not read nothing is known.
    let flat: Vec<&str> = shown_first.split_whitespace().collect();
    let flat = flat.join(" ");
    assert!(!flat.contains(", none lost"), "{flat}");
    let none = "none known to be lost in what was read";
    assert!(flat.contains(none), "{flat}");
    let json = text(&stealtime(&["analyze", shown(&cut), "--json"]).stdout);
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["source"]["partial"], true);
    let partial = page.find("Partial: less was read").expect("a warning");
    assert!(partial < page.find("<main>").expect("the page"));
    assert!(partial < page.find(" events, ").expect("how many there are"));
}

#[test]
fn a_prediction_says_first_how_close_the_replay_is() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("out.html");
    let set = "sched.base_slice_ns=700us";
    let arguments = [
        "whatif",
        TRACE,
        "--set",
        set,
        "--seeds",
        "2",
        "--report",
        shown(&report),
    ];
    let output = stealtime(&arguments);
    assert_eq!(output.status.code(), Some(0));
    let page = text(&std::fs::read(&report).expect("a report"));
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("no {what}"));
    assert!(at("The replay is ") < at("<b>sched.base_slice_ns=700us:</b>"));
    assert!(at("How close the replay is</h2>") < at("Before and after"));
    // The verdict is the terminal's.
    let shown = text(&output.stdout);
    let (_, verdict) = shown.split_once("verdict: ").expect("a verdict");
    let verdict = verdict.split("\n\n").next().unwrap_or_default();
    let verdict: Vec<&str> = verdict.split_whitespace().collect();
    assert!(page.contains(&stealtime_escaped(&format!(
        "Verdict: {}.",
        verdict.join(" ")
    ))));
}

#[test]
fn a_published_figure_stands_next_to_the_simulated_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("out.html");
    let arguments = [
        "reproduce",
        "counter-offsets",
        "--quick",
        "--report",
        shown(&report),
    ];
    let output = stealtime(&arguments);
    assert!(
        matches!(output.status.code(), Some(0 | 1)),
        "{}",
        text(&output.stderr)
    );
    let page = text(&std::fs::read(&report).expect("a report"));
    assert!(page.contains("<b>counter-offsets:</b>") && page.contains("Claims</h3>"));
}

#[test]
fn what_was_tried_is_charted_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("out.html");
    let asked = [
        "whatif",
        TRACE,
        "--auto",
        "--seeds",
        "2",
        "--report",
        shown(&report),
    ];
    let output = stealtime(&asked);
    assert_eq!(output.status.code(), Some(0));
    let page = text(&std::fs::read(&report).expect("a report"));
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("no {what}"));
    assert!(at("What was tried, the best first</h2>") < at("How close the replay is</h2>"));
    assert!(at("Waiting given back to all VMs; higher is better") < at("Ranking</h3>"));
    // The first of the terminal's ranking is the first of the page's.
    let shown = text(&output.stdout);
    let first = shown
        .lines()
        .find_map(|line| line.trim().strip_prefix("1  "));
    let first = first.expect("a row").split("  ").next().expect("a name");
    assert!(page.contains(&format!("1. {first}")), "{first}");
}

#[test]
fn a_sweep_shows_where_time_went() {
    let (folder, scenario, report) = scenario();
    let out = folder.path().join("sweep");
    let asked = [
        "sweep",
        &scenario,
        "--vary",
        "host.hz=250,1000",
        "--out",
        shown(&out),
        "--report",
        shown(&report),
    ];
    let output = stealtime(&asked);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = text(&std::fs::read(&report).expect("a report"));
    let at = |what: &str| page.find(what).unwrap_or_else(|| panic!("no {what}"));
    assert!(at("What each value changes</h2>") < at("Where vCPU time went</h2>"));
    for part in [
        "VM web: time of its vCPUs by host.hz",
        "VM web: time of its vCPUs by variant",
    ] {
        assert!(page.contains(part), "{part}");
    }
}

#[test]
fn a_report_that_cannot_be_written_is_refused_before_the_runs() {
    let failed = stealtime(&["whatif", TRACE, "--auto", "--report", "no/such/out.html"]);
    assert_eq!((failed.status.code(), failed.stdout.len()), (Some(2), 0));
    assert!(text(&failed.stderr).contains("No such file"));
}

/// Text as a page has it.
fn stealtime_escaped(text: &str) -> String {
    text.replace('\'', "&#39;")
}

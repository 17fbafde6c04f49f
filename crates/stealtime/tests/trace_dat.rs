//! `export --to trace.dat`: what is re-written says what the recording said, to us and to trace-cmd.
//!
//! `STEALTIME_TRACES` names a directory with further recordings; the small ones under
//! `tests/data/traces` are always checked. What trace-cmd says is checked where it is installed.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::recordings::one_of_each_series;

const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/traces");

/// Facts of the container, which may differ.
const CONTAINER: [&str; 4] = ["path", "format", "compression", "notes"];

/// Recordings in which perf says what new threads are called before an event carries their names: in
/// a trace.dat these threads are vCPUs a little later.
const NAMED_BY_PERF: [&str; 1] = ["pvmhost-ticketlock-oneshot"];

fn all() -> Vec<PathBuf> {
    let mut found = one_of_each_series(SMALL.as_ref());
    if let Some(further) = std::env::var_os("STEALTIME_TRACES") {
        found.extend(one_of_each_series(further.as_ref()));
    }
    assert!(found.len() >= 6, "{found:?}");
    found
}

/// Options for the forms in which a recording is rewritten: both of those that come along, of further
/// ones plain and compressed in turn.
fn forms(number: usize, recording: &Path) -> &'static [&'static [&'static str]] {
    const BOTH: &[&[&str]] = &[&[], &["--compress"]];
    match recording.starts_with(SMALL) {
        true => BOTH,
        false => &BOTH[number % 2..][..1],
    }
}

fn stealtime(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_stealtime"));
    command.args(arguments).stdin(Stdio::null());
    command
}

fn analyze(file: &Path) -> Value {
    let mut command = stealtime(&["analyze", "--json"]);
    let output = command.arg(file).output().expect("the command runs");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{}: {e}", file.display()))
}

fn export(from: &Path, to: &Path, more: &[&str]) {
    let mut command = stealtime(&["export", "--to", "trace.dat"]);
    let output = command.args(more).arg("-o").arg(to).arg(from).output();
    let output = output.expect("the command runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && to.exists(), "{error}");
}

/// Where two values differ. Floating-point numbers are sums in any order, so they may differ slightly.
fn difference(a: &Value, b: &Value, at: &str) -> Option<String> {
    let differ = || Some(format!("{at}: {a} and {b}"));
    match (a, b) {
        (Value::Object(a), Value::Object(b)) if a.len() == b.len() => a
            .iter()
            .find_map(|(key, value)| difference(value, &b[key], &format!("{at}.{key}"))),
        (Value::Array(x), Value::Array(y)) if x.len() == y.len() => (0..)
            .zip(x.iter().zip(y))
            .find_map(|(i, (x, y))| difference(x, y, &format!("{at}[{i}]"))),
        (Value::Number(x), Value::Number(y)) if x.is_f64() && y.is_f64() => {
            let (x, y) = (x.as_f64()?, y.as_f64()?);
            let near = (x - y).abs() <= 1e-9 * x.abs().max(1.0);
            if near { None } else { differ() }
        }
        _ if a == b => None,
        _ => differ(),
    }
}

/// Removes commands, which name the file.
pub fn without_commands(answers: &mut Value) {
    let tables = answers.as_object_mut().expect("an object");
    tables.remove("decision");
    let stalls = tables.get_mut("stalls").and_then(Value::as_array_mut);
    for stall in stalls.into_iter().flatten() {
        stall.as_object_mut().expect("a wait").remove("export");
    }
}

/// Without what the container says of itself.
fn answers(file: &Path) -> Value {
    let mut answers = analyze(file);
    let source = answers["source"].as_object_mut().expect("a source");
    for key in CONTAINER {
        source.remove(key);
    }
    without_commands(&mut answers);
    answers
}

/// Counts of events, exits and losses, and each vCPU's time in the guest.
fn counts(answers: &Value) -> Value {
    let rows = |table: &str, keys: &[&str]| -> Vec<Value> {
        let rows = answers[table].as_array().expect("rows").iter();
        rows.map(|row| keys.iter().map(|key| row[key].clone()).collect())
            .collect()
    };
    let source = [
        "events",
        "lost",
        "lost_gaps",
        "first_ns",
        "last_ns",
        "clock",
    ];
    serde_json::json!({
        "source": source.map(|key| answers["source"][key].clone()),
        "events": rows("events", &["name", "count"]),
        "exit_totals": rows("exit_totals", &["reason", "samples"]),
        "vcpus": rows("vcpus", &["vm", "vcpu", "tid", "guest_ns"]),
    })
}

#[test]
fn a_rewritten_recording_gives_the_same_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    for (number, recording) in all().into_iter().enumerate() {
        let before = answers(&recording);
        let source = &before["source"];
        // A trace.dat is read by time, so its events are in order; that it was cut short it cannot say.
        let whole = source["out_of_order"] == 0 && source["partial"] == false;
        let path = recording.to_string_lossy();
        let exact = whole && !NAMED_BY_PERF.iter().any(|name| path.contains(name));
        for more in forms(number, &recording) {
            let file = folder.path().join("rewritten.dat");
            export(&recording, &file, more);
            let after = answers(&file);
            let difference = match exact {
                true => difference(&before, &after, ""),
                false => difference(&counts(&before), &counts(&after), ""),
            };
            assert_eq!(difference, None, "{path} {more:?}");
        }
    }
}

/// What `trace-cmd report` says of a file, in full: all digits of times, and the context.
fn report(file: &Path, text: &Path) {
    let to = File::create(text).expect("a file");
    let mut command = Command::new("trace-cmd");
    let command = command.args(["report", "-t", "-l", "-i"]).arg(file);
    let status = command.stdout(to).stderr(Stdio::null()).status();
    assert!(
        status.expect("trace-cmd runs").success(),
        "{}",
        file.display()
    );
}

#[test]
fn trace_cmd_says_the_same_of_both() {
    if Command::new("trace-cmd").arg("--version").output().is_err() {
        eprintln!("skipped: trace-cmd is not installed");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str| folder.path().join(name);
    let mut compared = 0;
    let is_trace_dat = |path: &PathBuf| path.to_string_lossy().contains("trace.dat");
    for recording in all().into_iter().filter(is_trace_dat) {
        let (original, text) = (place("original.dat"), place("original.txt"));
        let bytes = std::fs::read(&recording).expect("readable");
        let bytes = match recording.extension() {
            Some(end) if end == "zst" => zstd::decode_all(&bytes[..]).expect("good zstd"),
            _ => bytes,
        };
        std::fs::write(&original, bytes).expect("room");
        report(&original, &text);
        let before = answers(&text);
        assert!(before["source"]["events"].as_u64() > Some(0));
        for more in forms(compared, &recording) {
            let (file, text) = (place("rewritten.dat"), place("rewritten.txt"));
            export(&original, &file, more);
            report(&file, &text);
            let after = answers(&text);
            let difference = difference(&before, &after, "");
            assert_eq!(difference, None, "{} {more:?}", recording.display());
        }
        compared += 1;
    }
    assert!(compared >= 3, "{compared}");
}

#[test]
fn a_part_is_rewritten() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("part.dat");
    let from = Path::new(SMALL).join("svm-hackbench-cyclictest-hog/trace.dat.zst");
    let whole = analyze(&from);
    let part = ["--from", "100ms", "--until", "0.2s", "--cpu", "1,2"];
    export(&from, &file, &part);
    let mut command = stealtime(&["analyze", "--json"]);
    let direct = command.args(part).arg(&from).output().expect("runs");
    let direct: Value = serde_json::from_slice(&direct.stdout).expect("JSON");
    let rewritten = analyze(&file);
    assert_eq!(rewritten["events"], direct["events"]);
    assert!(rewritten["source"]["events"].as_u64() < whole["source"]["events"].as_u64());
    assert_eq!(rewritten["source"]["cpus"], whole["source"]["cpus"]);
}

#[test]
fn complaints_leave_no_file() {
    let from = Path::new(SMALL).join("svm-hackbench-cyclictest-hog/trace.dat.zst");
    let folder = tempfile::tempdir().expect("a folder");
    let refused = |arguments: &[&str]| {
        let mut command = stealtime(&["export", "-o"]);
        let command = command.arg(folder.path().join("out")).arg(&from);
        let output = command.args(arguments).output().expect("runs");
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert_eq!(folder.path().read_dir().expect("the folder").count(), 0);
        String::from_utf8(output.stderr).expect("UTF-8")
    };
    let to = ["--to", "trace.dat"];
    let with = |more: &[&'static str]| refused(&[&to[..], more].concat());
    assert!(with(&["--vm", "vm0"]).contains("--vm is for --to perfetto"));
    assert!(with(&["--cpu", "99"]).contains("there are 0 to 3"));
    assert!(with(&["--from", "1000s"]).contains("after the last event"));
    assert!(with(&["--from", "2ms", "--until", "1ms"]).contains("not after --from"));
    let perfetto = refused(&["--to", "perfetto", "--compress"]);
    assert!(perfetto.contains("--compress is for --to trace.dat"));
}

#[test]
fn a_pipe_takes_the_file() {
    let from = Path::new(SMALL).join("pvmhost-lost-events-ring/trace.dat");
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("out");
    export(&from, &file, &[]);
    let mut command = stealtime(&["export", "--to", "trace.dat"]);
    let piped = command.arg(&from).output().expect("runs").stdout;
    assert_eq!(piped, std::fs::read(&file).expect("the file"));
}

/// A trace.dat cannot say that flags are unknown: `export` does.
#[test]
fn unknown_contexts_are_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("new.dat");
    let said = |from: &str| {
        let mut command = stealtime(&["export", "--to", "trace.dat"]);
        let from = Path::new(SMALL)
            .join("svm-hackbench-cyclictest-hog")
            .join(from);
        let output = command.arg("-o").arg(&to).arg(from).output();
        let output = output.expect("the command runs");
        assert!(output.status.success());
        String::from_utf8_lossy(&output.stderr)
            .contains("not known whether they happened in an interrupt")
    };
    assert!(said("report.txt.zst"));
    assert!(!said("trace.dat.zst"));
}

//! The commands with which docs/recording.md records a host, and its table of events.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use crate::common;

/// Where the commands look for the tracepoints of the kernel.
const TRACEPOINTS: &str = "/sys/kernel/tracing/events";

const RECORDING: &str = include_str!("../../../docs/recording.md");

/// The code blocks of this part of a page, one after the other.
fn commands(page: &str, from: &str, to: &str) -> String {
    let part = page.split_once(from).expect("the heading").1;
    let part = part.split_once(to).expect("what follows").0;
    part.split("```\n").skip(1).step_by(2).collect()
}

fn shown() -> String {
    commands(
        RECORDING,
        "## With other tools",
        "## What each event is for",
    )
}

/// Runs lines of a shell that a user of these tools and this kernel would paste.
fn shell(lines: &str, tools: &Path, tracepoints: &Path, folder: &Path) -> Output {
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("sh")
        .args(["-e", "-c", &lines.replace(TRACEPOINTS, "\"$TRACEPOINTS\"")])
        .env("PATH", format!("{}:{path}", tools.display()))
        .env("TRACEPOINTS", tracepoints)
        .env("LC_ALL", "C")
        .current_dir(folder)
        .stdin(Stdio::null())
        .output()
        .expect("a shell")
}

/// The lines as a kernel with these tracepoints makes them: each tool prints what it is called with.
fn called(lines: &str, tracepoints: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let events = folder.path().join("it's a kernel");
    for name in tracepoints {
        let (system, event) = name.split_once(':').expect("a system");
        std::fs::create_dir_all(events.join(system).join(event)).expect("a tracepoint");
        // Folders of systems have files of their own.
        std::fs::write(events.join(system).join("enable"), "").expect("a file");
    }
    let tools = folder.path().join("tools");
    std::fs::create_dir(&tools).expect("a folder");
    for tool in ["perf", "trace-cmd", "stealtime"] {
        let file = tools.join(tool);
        std::fs::write(&file, "#!/bin/sh\necho ${0##*/} \"$@\"\n").expect("a tool");
        let runs = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&file, runs).expect("a tool");
    }
    let output = shell(lines, &tools, &events, folder.path());
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{error}");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    text.lines().map(str::to_owned).collect()
}

/// Events of the table in docs/recording.md that says what each is for.
fn explained() -> BTreeSet<&'static str> {
    let table = RECORDING
        .split_once("## What each event is for")
        .expect("it")
        .1;
    let table = table.split("\n## ").next().expect("its section");
    let rows = table.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.split('|').nth(1));
    cells
        .flat_map(|cell| cell.split('`').skip(1).step_by(2))
        .collect()
}

fn events(call: &str) -> BTreeSet<&str> {
    let words: Vec<&str> = call.split(' ').collect();
    let events = words.windows(2).filter(|two| two[0] == "-e");
    events.map(|two| two[1]).collect()
}

#[test]
fn both_tools_record_the_same_events() {
    let all: Vec<&str> = explained().into_iter().collect();
    let lines = called(&shown(), &all);
    let options = |tool: &str| format!("{tool} -e sched:sched_switch ");
    let [perf, first, trace_cmd, second] = &lines[..] else {
        panic!("{lines:#?}");
    };
    assert!(perf.starts_with(&options("perf record -a -m 8M -o perf.data")));
    assert!(trace_cmd.starts_with(&options("trace-cmd record -o trace.dat -b 30000")));
    assert!(perf.ends_with(" sleep 5") && trace_cmd.ends_with(" sleep 5"));
    assert_eq!(first, "stealtime whatif perf.data --auto");
    assert_eq!(second, "stealtime whatif trace.dat --auto");
    assert_eq!(events(perf), explained());
    assert_eq!(events(trace_cmd), explained());
}

#[test]
fn what_a_kernel_lacks_or_refuses_to_sample_is_not_named() {
    let mut older = explained();
    older.retain(|name| !name.starts_with("ipi:"));
    let refused = ["irq_vectors:irq_work_entry", "irq_vectors:irq_work_exit"];
    let noisy = [
        "sched:sched_stat_wait",
        "timer:timer_start",
        "irq_vectors:vector_alloc",
    ];
    let has: Vec<&str> = older.iter().copied().chain(refused).chain(noisy).collect();
    for call in called(&shown(), &has) {
        if !call.starts_with("stealtime") {
            assert_eq!(events(&call), older, "{call}");
        }
    }
}

#[test]
fn the_table_is_that_of_the_recorder() {
    let needs = stealtime_live::NEEDS.iter();
    let recorded: BTreeSet<String> = needs
        .flat_map(|need| {
            need.events
                .iter()
                .map(|name| format!("{}:{name}", need.system))
        })
        .collect();
    assert!(recorded.iter().map(String::as_str).eq(explained()));
}

/// A few moments of this host, where perf may record it.
#[test]
fn perf_takes_the_command() {
    let folder = tempfile::tempdir().expect("a folder");
    let try_it = "perf record -a -o tried -e sched:sched_switch true";
    let here = Path::new(TRACEPOINTS);
    let tried = shell(try_it, folder.path(), here, folder.path());
    if !tried.status.success() || !here.is_dir() {
        let why = String::from_utf8_lossy(&tried.stderr);
        println!("skipped: perf cannot record this host: {}", why.trim());
        return;
    }
    let page = shown()
        .replace("sleep 5", "sleep 0.2")
        .replace("-m 8M", "-m 1M");
    let lines = page.lines().filter(|line| {
        let tool = line.split(' ').next();
        tool != Some("stealtime") && tool != Some("trace-cmd")
    });
    let lines = lines.collect::<Vec<_>>().join("\n");
    let recorded = shell(&lines, folder.path(), here, folder.path());
    let error = String::from_utf8_lossy(&recorded.stderr);
    assert!(recorded.status.success(), "{error}");
    let mut analyze = common::stealtime(&["analyze", "perf.data", "--json"]);
    let (status, out, error) = common::run(analyze.current_dir(folder.path()));
    assert_eq!(status, Some(0), "{error}");
    let answers: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let rows = answers["events"].as_array().expect("rows");
    assert!(
        rows.iter()
            .any(|row| row.to_string().contains("sched_switch")),
        "{out}"
    );
}

/// A recorder that records this host; `None` where it may not.
fn recorder(folder: &Path, arguments: &[&str]) -> Option<std::process::Child> {
    let mut command = common::stealtime(&["record", "-o", "made.dat"]);
    let command = command.args(arguments).current_dir(folder);
    let started = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = started.expect("the command starts");
    while child.try_wait().expect("a child").is_none() {
        let is_on = |path: &PathBuf| {
            let state = std::fs::read_to_string(path.join("tracing_on"));
            state.is_ok_and(|state| state.trim() == "1")
        };
        if instances(child.id()).iter().any(is_on) {
            std::thread::sleep(Duration::from_millis(100));
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().expect("its output");
    println!(
        "skipped: {}",
        String::from_utf8_lossy(&output.stderr).trim()
    );
    None
}

fn signal(child: &std::process::Child, name: &str) {
    let id = child.id().to_string();
    let sent = Command::new("kill").args(["-s", name, &id]).status();
    assert!(sent.expect("kill runs").success());
}

/// Instances of a process.
fn instances(id: u32) -> Vec<PathBuf> {
    let folder = std::fs::read_dir("/sys/kernel/tracing/instances");
    let entries = folder.into_iter().flatten().flatten();
    let own = format!("stealtime-{id}-");
    let entries = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&own));
    entries.map(|entry| entry.path()).collect()
}

#[test]
fn a_signal_ends_a_recording_with_a_whole_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(child) = recorder(folder.path(), &["--json"]) else {
        return;
    };
    signal(&child, "TERM");
    let id = child.id();
    let output = child.wait_with_output().expect("its output");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let summary: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(summary["ended"], "stopped");
    assert!(instances(id).is_empty());
    let mut snapshot = common::stealtime(&["snapshot", "made.dat", "--json"]);
    let (status, out, error) = common::run(snapshot.current_dir(folder.path()));
    assert_eq!(status, Some(0), "{error}");
    let snapshot: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").expect("a release");
    assert_eq!(snapshot["identity"]["kernel_release"], release.trim());
    let mut analyze = common::stealtime(&["analyze", "made.dat", "--json"]);
    let (status, out, error) = common::run(analyze.current_dir(folder.path()));
    assert_eq!(status, Some(0), "{error}");
    let answers: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert!(
        answers["events"]
            .as_array()
            .is_some_and(|rows| !rows.is_empty())
    );
}

/// `timeout` sends its signal to the command and then to its process group, so the command gets two at once.
#[test]
fn two_signals_at_once_end_a_recording_with_a_whole_file() {
    for _ in 0..4 {
        let folder = tempfile::tempdir().expect("a folder");
        let Some(child) = recorder(folder.path(), &[]) else {
            return;
        };
        let id = child.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id, &id]).status();
        assert!(sent.expect("kill runs").success());
        let output = child.wait_with_output().expect("its output");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        assert!(folder.path().join("made.dat").is_file());
    }
}

#[test]
fn a_killed_recorder_leaves_what_the_next_one_removes() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(mut child) = recorder(folder.path(), &[]) else {
        return;
    };
    let id = child.id();
    assert_eq!(instances(id).len(), 1);
    child.kill().expect("it runs");
    child.wait().expect("a child");
    let count = std::fs::read_dir(folder.path()).expect("a folder").count();
    assert_eq!(count, 0, "files of a killed recorder");
    // Other tests' recorders may have removed it already.
    let mut next = common::stealtime(&["record", "-o", "next.dat", "--seconds", "0.1"]);
    let (status, _, error) = common::run(next.current_dir(folder.path()));
    assert_eq!(status, Some(0), "{error}");
    assert!(instances(id).is_empty());
}

//! The command as a user has it: forms, choices, and what it says when something is wrong.

#[path = "../../report/tests/common/mod.rs"]
mod perfetto;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{run, stealtime};
use serde_json::Value;

use crate::common;

fn traces() -> &'static Path {
    Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/traces"
    ))
}

fn trace(name: &str) -> PathBuf {
    traces().join(name)
}

/// From [`traces`].
const HACKBENCH: &str = "svm-hackbench-cyclictest-hog/trace.dat.zst";

pub(crate) fn hackbench() -> PathBuf {
    trace(HACKBENCH)
}

/// `analyze` of a recording by a short name: no test sees where the project is.
fn analyze_here(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = stealtime(&["analyze", HACKBENCH]);
    run(command.args(arguments).current_dir(traces()))
}

/// What `analyze` prints; it must succeed.
fn analyze(arguments: &[&str]) -> String {
    let (status, out, error) = analyze_here(arguments);
    assert_eq!((status, error.as_str()), (Some(0), ""), "{arguments:?}");
    out
}

/// What `analyze` complains of; it must fail with status 2 and print nothing.
fn complaint(arguments: &[&str]) -> String {
    let (status, out, error) = analyze_here(arguments);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
    error
}

#[test]
fn tables_come_without_colours_into_a_pipe() {
    let out = analyze(&[]);
    for part in [
        "Where vCPU time went",
        "Exits",
        "Latencies",
        "More tables: --key",
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    assert!(!out.contains('\u{1b}'));
    // A command stays in one line, so that it can be copied.
    let is_command =
        |line: &str| line.contains("stealtime export ") || line.starts_with("do this: ");
    let mut text = out.lines().filter(|line| !is_command(line));
    assert!(text.all(|line| line.chars().count() <= 100));
    assert!(!analyze(&["--key", "events"]).contains("Where vCPU time went"));
}

#[test]
fn the_same_answers_in_every_form() {
    let json: Value = serde_json::from_str(&analyze(&["--json"])).expect("JSON");
    assert_eq!(analyze(&["--json"]), analyze(&["--format", "json"]));
    let csv = analyze(&["--format", "csv", "--key", "exit-totals"]);
    let rows = json["exit_totals"].as_array().expect("rows");
    assert_eq!(csv.lines().count(), rows.len() + 1);
    let first = format!(
        "*,false,{},{},",
        rows[0]["reason"].as_str().expect("text"),
        rows[0]["samples"]
    );
    assert!(csv.lines().nth(1).expect("a row").starts_with(&first));
}

#[test]
fn a_part_of_the_recording() {
    let whole: Value = serde_json::from_str(&analyze(&["--json"])).expect("JSON");
    let part = analyze(&[
        "--json", "--from", "100ms", "--until", "0.2s", "--cpu", "1,2",
    ]);
    let part: Value = serde_json::from_str(&part).expect("JSON");
    let events = |answers: &Value| answers["source"]["events"].as_u64().expect("a number");
    assert!(0 < events(&part) && events(&part) < events(&whole) / 5);
    let note = part["source"]["notes"].to_string();
    assert!(
        note.contains("--cpu 1,2 --from 100000000ns --until 200000000ns"),
        "{note}"
    );
    let first = whole["source"]["first_ns"].as_u64().expect("a number") + 100_000_000;
    let from = format!("@{}.{:09}", first / 1_000_000_000, first % 1_000_000_000);
    let same = analyze(&["--json", "--from", &from, "--to", "0.2s", "--cpu", "1,2"]);
    let same: Value = serde_json::from_str(&same).expect("JSON");
    assert_eq!(events(&same), events(&part));
}

#[test]
fn threads_can_be_given_to_vms() {
    let answers: Value = serde_json::from_str(&analyze(&["--json"])).expect("JSON");
    let vcpus = answers["vcpus"].as_array().expect("vCPUs");
    let tid = vcpus[0]["tid"].as_i64().expect("a thread");
    let mine = analyze(&["--json", "--vm-of", &format!("mine={tid}"), "--vm", "mine"]);
    let mine: Value = serde_json::from_str(&mine).expect("JSON");
    assert_eq!(mine["vms"][0]["grouped_by"], "user");
    assert_eq!(mine["vcpus"].as_array().map(Vec::len), Some(1));
    assert_eq!(mine["vcpus"][0]["tid"], tid);
}

#[test]
fn complaints_say_what_there_is() {
    let vm = complaint(&["--vm", "absent"]);
    assert!(
        vm.contains("--vm absent: no such VM; there are ") && vm.contains("vm"),
        "{vm}"
    );
    assert!(complaint(&["--vcpu", "77"]).contains("there are: 0, 1, 2, 3"));
    assert!(complaint(&["--cpu", "99"]).contains("there are 0 to 3"));
    assert!(complaint(&["--from", "1h"]).contains("1.5s, 200ms"));
    assert!(complaint(&["--from", "1000s"]).contains("after the last event"));
    assert!(complaint(&["--from", "2ms", "--until", "1ms"]).contains("not after --from"));
    assert!(complaint(&["--format", "csv"]).contains("add --key NAME"));
    assert!(complaint(&["--format", "csv", "--key", "time,exits"]).contains("add --key NAME"));
    assert!(complaint(&["--key", "exit"]).contains("exit-totals"));
    assert!(complaint(&["--vm-of", "a=b"]).contains("not a thread id"));
    assert!(complaint(&["--json", "--format", "csv"]).contains("cannot be used with"));
}

#[test]
fn what_is_no_trace_is_refused() {
    let refused = |path: &str| {
        let (status, out, error) = run(&mut stealtime(&["analyze", path]));
        assert_eq!((status, out.as_str()), (Some(2), ""));
        assert!(error.starts_with("stealtime: "), "{error}");
        error
    };
    assert!(refused("no-such-file").contains("no-such-file"));
    assert!(refused("-").contains("empty"));
    assert!(refused(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml")).contains("not a trace"));
    let hostile = refused("no\u{1b}[2Jfile");
    assert!(!hostile.contains('\u{1b}'), "{hostile:?}");
}

/// With standard input from this file.
fn from_stdin(command: &mut Command, path: &Path) -> Output {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    let bytes = std::fs::read(path).expect("a recording");
    let mut stdin = child.stdin.take().expect("a pipe");
    let writer = std::thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().expect("the command ends");
    writer
        .join()
        .expect("the writer ends")
        .expect("all is read");
    output
}

#[test]
fn standard_input_is_as_good_as_a_file() {
    let output = from_stdin(
        &mut stealtime(&["analyze", "-", "--json", "--key", "time"]),
        &hackbench(),
    );
    let piped: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let read: Value = serde_json::from_str(&analyze(&["--json", "--key", "time"])).expect("JSON");
    assert_eq!(piped["vcpus"], read["vcpus"]);
    let exported = from_stdin(
        &mut stealtime(&["export", "-", "--to", "perfetto"]),
        &hackbench(),
    );
    assert_eq!(exported.stdout, export(&[]));
}

#[test]
fn a_closed_pipe_is_no_error() {
    let mut child = stealtime(&["analyze", "--key", "all", "--json"])
        .arg(hackbench())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command runs");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("the command ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(output.stderr.is_empty());
}

/// What `export` writes to standard output.
fn export(arguments: &[&str]) -> Vec<u8> {
    let mut command = stealtime(&["export", "--to", "perfetto"]);
    let output = command
        .arg(hackbench())
        .args(arguments)
        .output()
        .expect("the command runs");
    assert_eq!(output.status.code(), Some(0));
    output.stdout
}

#[test]
fn an_exported_file_is_there_whole_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("trace.pftrace");
    let mut command = stealtime(&["export", "--to", "perfetto", "-o"]);
    let (status, out, error) = run(command.arg(&file).arg(hackbench()));
    assert_eq!((status, out.as_str(), error.as_str()), (Some(0), "", ""));
    assert_eq!(std::fs::read(&file).expect("the file"), export(&[]));
    std::fs::remove_file(&file).expect("the file is there");
    let mut command = stealtime(&["export", "no-such-file", "--to", "perfetto", "-o"]);
    assert_eq!(run(command.arg(&file)).0, Some(2));
    assert_eq!(folder.path().read_dir().expect("the folder").count(), 0);
}

/// The slices on a vCPU's track add up to its time split: both observe the same tracker.
#[test]
fn exported_slices_add_up_to_the_answers() {
    let reading = perfetto::Reading::new(&export(&[]));
    let answers: Value = serde_json::from_str(&analyze(&["--json"])).expect("JSON");
    let mut sums: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    for slice in &reading.slices {
        *sums.entry((&slice.track, &slice.name)).or_default() += slice.end - slice.begin;
    }
    for vcpu in answers["vcpus"].as_array().expect("vCPUs") {
        let track = format!(
            "vCPU {} ({}, tid {})",
            vcpu["vcpu"],
            vcpu["task"].as_str().expect("text"),
            vcpu["tid"]
        );
        let number = |key: &str| vcpu[key].as_u64().expect("a number");
        let sum = |names: &[&str]| -> u64 {
            let parts = names
                .iter()
                .filter_map(|name| sums.get(&(track.as_str(), *name)));
            parts.sum()
        };
        for (shown, said) in [
            (sum(&["guest"]), number("guest_ns")),
            (sum(&["halted", "blocked", "asleep"]), number("halt_ns")),
            (sum(&["preempted"]), number("preempted_ns")),
            (sum(&["ready"]), number("wake_wait_ns")),
            (sum(&["polling"]), number("poll_ns")),
        ] {
            assert_eq!(shown, said, "{track}");
        }
    }
    assert!(
        reading.slices.iter().any(|slice| !slice.ends.is_empty()),
        "a flow ends"
    );
}

#[test]
fn a_part_is_exported() {
    let first = {
        let answers: Value = serde_json::from_str(&analyze(&["--json"])).expect("JSON");
        answers["source"]["first_ns"].as_u64().expect("a number")
    };
    let bytes = export(&["--from", "100ms", "--until", "110ms", "--cpu", "2"]);
    let reading = perfetto::Reading::new(&bytes);
    let (from, to) = (first + 100_000_000, first + 110_000_000);
    assert!(
        reading
            .slices
            .iter()
            .all(|slice| from <= slice.begin && slice.end <= to)
    );
    assert!(!reading.of("CPU 2").is_empty() && reading.of("CPU 1").is_empty());
    assert!(reading.bundles.iter().all(|bundle| bundle.cpu() == 2));
}

#[test]
fn lost_events_show_in_the_export() {
    let mut command = stealtime(&["export", "--to", "perfetto"]);
    let lost = trace("pvmhost-lost-events-ring/trace.dat");
    let output = command.arg(lost).output().expect("the command runs");
    let reading = perfetto::Reading::new(&output.stdout);
    assert!(
        reading
            .slices
            .iter()
            .any(|slice| slice.name == "events lost")
    );
}

#[test]
fn help_names_every_table_and_form() {
    let (status, help, _) = run(&mut stealtime(&["analyze", "--help"]));
    assert_eq!(status, Some(0));
    for word in [
        "exit-totals",
        "interrupts",
        "--vm-of",
        "Examples:",
        "@1580.515472",
    ] {
        assert!(help.contains(word), "{word}");
    }
    let (_, completions, _) = run(&mut stealtime(&["completions", "bash"]));
    assert!(completions.contains("--tsc-khz"));
    let folder = tempfile::tempdir().expect("a folder");
    let (status, ..) = run(stealtime(&["man", "."]).current_dir(folder.path()));
    assert_eq!(status, Some(0));
    let page = std::fs::read_to_string(folder.path().join("stealtime-watch.1"));
    assert!(page.expect("a page").contains("fB\\-\\-when"));
    assert!(!folder.path().join("stealtime-man.1").exists());
    let (status, _, _) = run(&mut stealtime(&["nonsense"]));
    assert_eq!(status, Some(2));
}

/// The examples of the help, with a recording in place of the names they use.
#[test]
fn examples_of_the_help_work() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["trace.dat.zst", "trace.dat"] {
        std::fs::copy(hackbench(), folder.path().join(name)).expect("a copy");
    }
    let perf = trace("svm-perf-kvm-stat-hackbench-tlb-burst/perf.data.zst");
    std::fs::copy(perf, folder.path().join("perf.data")).expect("a copy");
    let scenarios = folder.path().join("scenarios");
    std::fs::create_dir(&scenarios).expect("a folder");
    let halts = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../scenarios/halt-polling.toml"
    );
    std::fs::copy(halts, scenarios.join("halt-polling.toml")).expect("a copy");
    let mut tried = 0;
    for verb in [
        &["--help"][..],
        &["analyze", "--help"],
        &["export", "--help"],
    ] {
        let (_, help, _) = run(&mut stealtime(verb));
        let examples = help
            .lines()
            .filter_map(|line| line.strip_prefix("  stealtime "));
        for example in examples {
            let arguments = example.split([';', '|', '>']).next().expect("a part");
            // Long work is cut short, or left to tests of its own, as is a recording of this host, which
            // would take the place of trace.dat.
            if arguments.starts_with("reproduce") || arguments.starts_with("record") {
                continue;
            }
            let short = arguments
                .replace("--times 10000", "--times 3")
                .replace("--times 1000", "--times 3");
            let mut command = stealtime(&short.split_whitespace().collect::<Vec<_>>());
            if short.starts_with("simulate") {
                command.args(["--seeds", "1", "--duration", "5ms"]);
            }
            let output = command
                .current_dir(folder.path())
                .output()
                .expect("the command runs");
            let error = String::from_utf8_lossy(&output.stderr);
            tried += 1;
            if error.contains("no permission for /dev/kvm") {
                println!("skipped: {example}: {error}");
                continue;
            }
            assert_eq!(output.status.code(), Some(0), "{example}: {error}");
        }
    }
    assert!(tried >= 8, "{tried}");
}

#[test]
fn cpus_are_chosen_by_ranges() {
    let by_range = analyze(&["--cpu", "0-1,3", "--json"]);
    assert_eq!(by_range, analyze(&["--cpu", "0", "--cpu", "1,3", "--json"]));
    for (asked, part) in [
        ("3-1", "the range 3-1 goes backwards"),
        ("x", "no CPU and no range"),
        ("0-99", "no such CPU"),
    ] {
        let (status, out, error) = run(stealtime(&["analyze", "--cpu", asked]).arg(hackbench()));
        assert_eq!((status, out.as_str()), (Some(2), ""), "{asked}");
        assert!(error.contains(part), "{asked}: {error}");
    }
}

#[test]
fn what_is_no_recording_is_named_as_it_was_given() {
    for verb in [
        &["whatif"][..],
        &["export", "--to", "perfetto", "-o", "/dev/null"],
    ] {
        for (given, part) in [
            ("/dev/null", "/dev/null: empty"),
            ("/tmp", "/tmp: is a directory"),
        ] {
            let (status, _, error) = run(stealtime(verb).arg(given));
            assert_eq!(status, Some(2), "{verb:?} {given}");
            assert!(error.contains(part), "{verb:?} {given}: {error}");
        }
    }
}

#[test]
fn errors_may_go_to_a_closed_pipe() {
    let sh = "exec 2>&-; \"$0\" simulate /dev/null >/dev/null";
    let (status, ..) = run(Command::new("sh").args(["-c", sh, env!("CARGO_BIN_EXE_stealtime")]));
    assert_eq!(status, Some(2));
}

#[test]
fn a_window_without_events_has_what_lasts_through_it() {
    let text = trace("pvmhost-ticketlock-idle-text/trace.txt.zst");
    let window = ["--from", "15826781ns", "--until", "18034064ns"];
    let mut command = stealtime(&["analyze", "--json"]);
    let (status, out, error) = run(command.arg(&text).args(window));
    assert_eq!((status, error.as_str()), (Some(0), ""));
    let answers: Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(answers["source"]["events"], 0);
    for vcpu in answers["vcpus"].as_array().expect("vCPUs") {
        let known = vcpu["span_ns"].as_u64().zip(vcpu["unknown_ns"].as_u64());
        assert!(
            known.is_some_and(|(span, unknown)| span + unknown <= 18_034_064 - 15_826_781),
            "{vcpu}"
        );
    }
    let spans = answers["vcpus"].as_array().into_iter().flatten();
    assert!(
        spans
            .filter(|vcpu| vcpu["span_ns"] == 18_034_064 - 15_826_781)
            .count()
            > 1
    );
}

#[test]
fn a_file_is_written_although_standard_output_is_closed() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("report.html");
    let mut child = stealtime(&["analyze", "--key", "all", "--json", "--report"])
        .arg(&file)
        .arg(hackbench())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the command runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("the command ends").code(), Some(0));
    assert!(file.is_file());
}

#[test]
fn a_recording_is_not_overwritten_by_what_is_made_of_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("trace.dat.zst");
    std::fs::copy(hackbench(), &recording).expect("a copy");
    let before = std::fs::read(&recording).expect("the copy");
    let link = folder.path().join("link");
    std::os::unix::fs::symlink(&recording, &link).expect("a link");
    for verb in [
        &["analyze", "--report"][..],
        &["export", "--to", "perfetto", "-o"],
        &["export", "--to", "trace.dat", "-o"],
        &["whatif", "--report"],
        &["whatif", "--export"],
    ] {
        for out in [&recording, &link] {
            let (status, out, error) = run(stealtime(verb).arg(out).arg(&recording));
            assert_eq!((status, out.as_str()), (Some(2), ""), "{verb:?}");
            assert!(error.contains("would be overwritten"), "{error}");
        }
    }
    assert_eq!(std::fs::read(&recording).expect("the copy"), before);
    assert!(link.is_symlink());
}

#[test]
fn threads_that_cannot_be_of_a_vm_are_named() {
    let answers: Value = serde_json::from_str(&analyze(&["--json"])).expect("JSON");
    let vcpus = answers["vcpus"].as_array().expect("vCPUs");
    let first = |number: u64| {
        let of_number = vcpus.iter().filter(|vcpu| vcpu["vcpu"] == number);
        let mut tids = of_number.filter_map(|vcpu| vcpu["tid"].as_i64());
        tids.next().zip(tids.next()).expect("two")
    };
    let (one, other) = first(0);
    let group = format!("mine={one},{other},4000000");
    let shown = analyze(&["--key", "vms", "--vm-of", &group, "--json"]);
    assert!(
        shown.contains("thread 4000000, given as one of mine, is no vCPU of this recording")
            && shown.contains(&format!(
                "threads {one} and {other}, given as ones of mine, are both vCPU 0"
            )),
        "{shown}"
    );
}

#[test]
fn a_folder_that_takes_no_files_is_reported_before_the_work_and_by_its_own_name() {
    // Root may write into a folder without write permission; /proc takes files of no user.
    for (verb, out) in [
        (&["analyze", "--report"][..], "/proc/out.html"),
        (&["whatif", "--report"], "/proc/out.html"),
        (&["whatif", "--export"], "/proc/"),
        (&["export", "--to", "perfetto", "-o"], "/proc/out.pftrace"),
    ] {
        let (status, printed, error) = run(stealtime(verb).arg(out).arg(hackbench()));
        assert_eq!((status, printed.as_str()), (Some(2), ""), "{verb:?}");
        let begin = format!("stealtime: {out}: ");
        assert!(
            error.starts_with(&begin) && !error.contains(".stealtime-"),
            "{error}"
        );
    }
}

#[test]
fn a_temporary_folder_that_is_not_there_is_named() {
    let mut command = stealtime(&["export", "--to", "perfetto", "-"]);
    command
        .env("TMPDIR", "/no/such/folder")
        .stdin(Stdio::null());
    let (status, _, error) = run(&mut command);
    assert_eq!(status, Some(2));
    assert!(
        error.contains("is kept in /no/such/folder: No such file"),
        "{error}"
    );
}

#[test]
fn options_without_use_for_a_recording_are_reported_in_every_form() {
    let unused = ["--tsc-khz", "5", "--formats-from", "nowhere"];
    let is_reported = |text: &str| {
        let text: Vec<&str> = text.split_whitespace().collect();
        let text = text.join(" ");
        text.contains("--tsc-khz is not used")
            && text.contains("--formats-from nowhere is not used")
    };
    assert!(is_reported(&analyze(&unused)));
    assert!(is_reported(&analyze(&[&unused[..], &["--json"]].concat())));
    for verb in [
        &["analyze", "--format", "csv", "--key", "time"][..],
        &["export", "--to", "perfetto", "-o", "/dev/null"],
        &["export", "--to", "trace.dat", "-o", "/dev/null"],
    ] {
        let (status, _, error) = run(stealtime(verb).arg(hackbench()).args(unused));
        assert!(
            status == Some(0) && is_reported(&error),
            "{verb:?}: {error}"
        );
    }
}

#[test]
fn a_recording_that_is_not_whole_is_reported_in_every_form() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("cut.dat");
    let whole = trace("svm-pause-exits-hackbench-tlb/trace.dat");
    let whole = std::fs::read(whole).expect("a recording");
    std::fs::write(&path, &whole[..whole.len() / 2]).expect("written");
    for verb in [
        &["analyze", "--format", "csv", "--key", "time"][..],
        &["export", "--to", "perfetto", "-o", "/dev/null"],
        &["export", "--to", "trace.dat", "-o", "/dev/null"],
    ] {
        let (_, _, error) = run(stealtime(verb).arg(&path));
        assert!(!error.is_empty(), "{verb:?}");
    }
}

#[test]
fn options_that_would_do_nothing_or_contradict_are_refused() {
    for (arguments, part) in [
        (
            &["analyze", "--vm-of", "a=200,201", "--vm-of", "b=201"][..],
            "thread 201 is assigned to a and to b",
        ),
        (
            &["analyze", "--report", "-", "--key", "time"],
            "--key chooses tables",
        ),
        (
            &[
                "export",
                "--to",
                "trace.dat",
                "-o",
                "/dev/null",
                "--vm-of",
                "a=200",
            ],
            "--vm-of is for",
        ),
    ] {
        let (status, out, error) = run(stealtime(arguments).arg(hackbench()));
        assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(error.contains(part), "{arguments:?}: {error}");
    }
    for arguments in [
        &["check", "--list", "--memory", "9"][..],
        &["check", "--list", "--keep-in", "."],
        &["check", "--replay", "x", "--memory", "9"],
        &["clock", "drill", "--load", "1025"],
        &["clock", "save", "-", "--json"],
    ] {
        let (status, out, error) = run(&mut stealtime(arguments));
        assert_eq!((status, out.as_str()), (Some(2), ""), "{arguments:?}");
        assert!(!error.is_empty());
    }
    let arguments = ["check", "ipi-tracking", "--keep-in", "/no/such/folder"];
    let (status, out, error) = run(&mut stealtime(&arguments));
    assert_eq!((status, out.as_str()), (Some(2), ""));
    assert!(error.contains("/no/such/folder: No such file"), "{error}");
}

#[test]
fn files_that_help_reading_are_not_overwritten_nor_is_standard_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let recording = folder.path().join("trace.dat.zst");
    std::fs::copy(hackbench(), &recording).expect("a copy");
    let before = std::fs::read(&recording).expect("the copy");
    for verb in [
        &["analyze", "--report"][..],
        &["export", "--to", "perfetto", "-o"],
        &["export", "--to", "trace.dat", "-o"],
    ] {
        let mut helped = stealtime(verb);
        helped.arg(&recording).arg(hackbench());
        let mut piped = stealtime(verb);
        piped.arg(&recording).arg("-");
        piped.stdin(std::fs::File::open(&recording).expect("the copy"));
        for command in [helped.arg("--formats-from").arg(&recording), &mut piped] {
            let (status, out, error) = run(command);
            assert_eq!((status, out.as_str()), (Some(2), ""), "{verb:?}");
            assert!(error.contains("would be overwritten"), "{error}");
        }
    }
    assert_eq!(std::fs::read(&recording).expect("the copy"), before);
}

#[test]
fn what_is_written_is_named_alike_by_all_commands() {
    for verb in [
        &["record"][..],
        &["watch", "--when", "stall>50ms"],
        &["snapshot"],
        &["analyze", "a.dat"],
        &["export", "a.dat", "--to", "perfetto"],
        &["import", "a.dat"],
        &["sweep", "a.toml"],
        &["sweep", "merge", "a.sweep"],
    ] {
        for option in ["-o", "--output", "--out"] {
            let mut command = stealtime(verb);
            // `--help` ends it where all options are known.
            let (status, _, error) = run(command.args([option, "b", "--help"]));
            assert_eq!((status, &*error), (Some(0), ""), "{verb:?} {option}");
        }
    }
}

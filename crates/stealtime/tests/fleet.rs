//! `analyze TRACE… -o FOLDER` as a user has it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tempfile::TempDir;

use crate::common::{run, stealtime};

const CFS: &str = "../../tests/data/traces/svm-cfs/trace.dat";
const LOST: &str = "../../tests/data/traces/pvmhost-lost-events-ring/trace.dat";

/// Links to recordings, a broken one, and no file at all.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, file) in [("cfs.dat", CFS), ("lost.dat", LOST)] {
        fs::copy(file, folder.path().join(name)).expect("a recording");
    }
    fs::write(folder.path().join("broken.dat"), "no recording").expect("a file");
    folder
}

fn analyze(folder: &Path, arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = stealtime(&["analyze"]);
    run(command.args(arguments).current_dir(folder))
}

/// The rows of a table by recording, a map by column each.
fn rows(folder: &Path, table: &str) -> BTreeMap<String, Vec<BTreeMap<String, String>>> {
    let path = folder.join("out").join(format!("{table}.csv"));
    let mut reader = csv::Reader::from_path(path).expect("a table");
    let mut rows = BTreeMap::<_, Vec<_>>::new();
    for row in reader.deserialize::<BTreeMap<String, String>>() {
        let row = row.expect("a row");
        let recording = row.get("recording").expect("a column").clone();
        rows.entry(recording).or_default().push(row);
    }
    rows
}

#[test]
fn tables_have_the_rows_of_each_recording() {
    let folder = folder();
    let recordings = ["cfs.dat", "broken.dat", "lost.dat", "none.dat"];
    let to = ["-o", "out", "--results", "csv", "--jobs", "2"];
    let arguments: Vec<&str> = recordings.into_iter().chain(to).collect();
    let (status, output, errors) = analyze(folder.path(), &arguments);
    assert_eq!(status, Some(1), "{output}{errors}");
    assert!(
        errors.contains("2 of 4 recordings could not be read"),
        "{errors}"
    );
    assert!(output.contains("4 recordings in out"), "{output}");

    for name in ["cfs.dat", "lost.dat"] {
        let (_, json, _) = analyze(folder.path(), &[name, "--json"]);
        let alone: Value = serde_json::from_str(&json).expect("JSON");
        for (table, key) in [
            ("time", "vcpus"),
            ("exits", "exits"),
            ("latency", "latencies"),
            ("ready", "ready"),
        ] {
            let many = rows(folder.path(), table);
            let many = many.get(name).map_or(&[][..], Vec::as_slice);
            let alone = alone[key].as_array().expect("rows");
            assert_eq!(many.len(), alone.len(), "{name}: {table}");
            for (many, alone) in many.iter().zip(alone) {
                for (column, value) in many
                    .iter()
                    .filter(|(column, _)| !["host", "recording"].contains(&column.as_str()))
                {
                    let same = match &alone[column] {
                        Value::Null => value.is_empty(),
                        Value::String(text) => value == text,
                        Value::Number(number) => value.parse::<f64>().ok() == number.as_f64(),
                        Value::Bool(on) => value.parse() == Ok(*on),
                        _ => false,
                    };
                    assert!(
                        same,
                        "{name}: {table}.{column}: {value} for {}",
                        alone[column]
                    );
                }
            }
        }
    }

    let states = rows(folder.path(), "recordings");
    let state = |name: &str| states[name][0]["status"].clone();
    assert_eq!(recordings.map(state), ["done", "failed", "done", "failed"]);
    assert_eq!(rows(folder.path(), "errors").len(), 2);

    // A percentile of the merged histogram is the one of the table, within its bound.
    let waits = &rows(folder.path(), "waits")["cfs.dat"][0];
    let histograms = &rows(folder.path(), "histograms")["cfs.dat"];
    let of_waits = histograms
        .iter()
        .filter(|row| row["table"] == "waits" && row["vm"] == waits["vm"]);
    let number = |row: &BTreeMap<String, String>, column: &str| {
        row[column].parse::<u64>().expect("a number")
    };
    let count = number(waits, "count");
    let mut sum = 0;
    let p90 = of_waits.into_iter().find_map(|row| {
        sum += number(row, "count");
        (sum * 10 >= count * 9).then(|| number(row, "up_to_ns"))
    });
    let (p90, exact) = (p90.expect("a bucket"), number(waits, "p90_ns"));
    assert!(
        p90 >= exact / 1024 * 1023 && p90 <= exact + exact / 100,
        "{p90} for {exact}"
    );
}

#[test]
fn what_the_folder_has_is_not_read_again() {
    let folder = folder();
    let (status, _, errors) = analyze(folder.path(), &["cfs.dat", "-o", "out"]);
    assert_eq!(status, Some(0), "{errors}");
    let first = fs::read(folder.path().join("out/time.parquet")).expect("a table");
    fs::write(folder.path().join("list"), "cfs.dat\nlost.dat\n").expect("a list");
    let (status, output, errors) = analyze(
        folder.path(),
        &["@list", "-o", "out", "--key", "time", "--json"],
    );
    assert_eq!(status, Some(0), "{errors}");
    assert!(errors.contains("1 of 2 recordings are there"), "{errors}");
    let summary: Value = serde_json::from_str(&output).expect("JSON");
    let tables = summary["tables"].as_array().expect("tables");
    let tables: Vec<&str> = tables
        .iter()
        .filter_map(|table| table["table"].as_str())
        .collect();
    assert_eq!(tables, ["recordings", "errors", "time", "histograms"]);
    // In another order of work, the same bytes.
    let other = ["lost.dat", "cfs.dat", "-o", "other", "--jobs", "1"];
    assert_eq!(analyze(folder.path(), &other).0, Some(0));
    assert_eq!(
        analyze(folder.path(), &["cfs.dat", "-o", "other"]).0,
        Some(0)
    );
    let second = fs::read(folder.path().join("other/time.parquet")).expect("a table");
    assert_eq!(first, second);
}

#[test]
fn tables_that_lack_what_was_read_are_named() {
    let folder = folder();
    let ask = |more: &[&str]| {
        let asked = [&["cfs.dat"], more, &["-o", "out"]].concat();
        let (status, _, errors) = analyze(folder.path(), &asked);
        assert_eq!(status, Some(0), "{errors}");
        errors
    };
    assert_eq!(ask(&["--key", "time,ready"]), "");
    // Nothing is read: every table has the recording.
    assert!(!ask(&["--key", "time"]).contains("earlier call"));
    let said = ask(&["lost.dat", "--key", "time"]);
    assert!(
        said.contains("out: an earlier call wrote ready.parquet, without the recordings"),
        "{said}"
    );
}

#[test]
fn what_many_recordings_cannot_have_is_refused() {
    let folder = folder();
    for (arguments, expected) in [
        (&["cfs.dat", "lost.dat"][..], "--out"),
        (
            &["cfs.dat", "lost.dat", "-o", "out", "--vm-of", "a=1"],
            "several",
        ),
        (&["cfs.dat", "-o", "out", "--report", "a.html"], "--report"),
        (&["-", "-o", "out"], "standard input"),
        (&["@broken.list", "-o", "out"], "broken.list"),
        (&["cfs.dat", "-o", "."], "choose another -o"),
        (&["cfs.dat", "-o", "cfs.dat"], "cfs.dat"),
    ] {
        let (status, output, errors) = analyze(folder.path(), arguments);
        assert_eq!(status, Some(2), "{arguments:?}: {output}{errors}");
        assert!(errors.contains(expected), "{arguments:?}: {errors}");
    }
    assert_eq!(
        analyze(folder.path(), &["cfs.dat", "-o", "out", "--vm", "none"]).0,
        Some(0)
    );
    let (_, _, errors) = analyze(folder.path(), &["cfs.dat", "-o", "out"]);
    assert!(errors.contains("--restart"), "{errors}");
    assert_eq!(
        analyze(folder.path(), &["cfs.dat", "-o", "out", "--restart"]).0,
        Some(0)
    );
}

/// A recording that takes no time to read.
const SHORT: &str = "# tracer: nop
#
    qemu-101   [000] d..1.     1.000000: kvm_entry: vcpu 0, rip 0x10
    qemu-101   [000] d..1.     1.000100: kvm_exit: vcpu 0 reason hlt rip 0x10 info1 0x0 info2 0x0
    qemu-101   [000] d..1.     1.000200: kvm_entry: vcpu 0, rip 0x10
    qemu-101   [000] d..1.     1.000300: kvm_exit: vcpu 0 reason msr rip 0x10 info1 0x0 info2 0x0
";

/// A folder with so many short recordings, one of them broken, and the list of them.
fn many(count: usize) -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let names = (0..count).map(|number| format!("{number}.txt"));
    let names: Vec<String> = names.collect();
    for (number, name) in names.iter().enumerate() {
        let text = if number == count / 2 {
            "no recording"
        } else {
            SHORT
        };
        fs::write(folder.path().join(name), text).expect("a file");
    }
    fs::write(folder.path().join("list"), names.join("\n")).expect("a list");
    folder
}

#[test]
fn a_broken_recording_among_a_thousand_costs_no_other() {
    let folder = many(1_000);
    let asked = ["@list", "-o", "out", "--results", "csv", "--key", "exits"];
    let (status, output, errors) = analyze(folder.path(), &asked);
    assert_eq!(status, Some(1), "{output}{errors}");
    assert!(
        errors.contains("1 of 1000 recordings could not be read"),
        "{errors}"
    );
    let failed = rows(folder.path(), "errors");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["500.txt"]);
    assert_eq!(rows(folder.path(), "exits").len(), 999);
}

#[test]
fn a_recording_that_is_cut_short_is_partial() {
    let folder = folder();
    let whole = fs::read(CFS).expect("a recording");
    let path = folder.path().join("cut.dat");
    fs::write(path, &whole[..whole.len() / 2]).expect("a part");
    let asked = ["cfs.dat", "cut.dat", "-o", "out", "--results", "csv"];
    let (status, _, errors) = analyze(folder.path(), &asked);
    assert_eq!(status, Some(1), "{errors}");
    let said = "0 of 2 recordings could not be read, 1 not to their end: out/errors.csv";
    assert!(errors.contains(said), "{errors}");
    let states = rows(folder.path(), "recordings");
    assert_eq!(states["cfs.dat"][0]["status"], "done");
    assert_eq!(states["cut.dat"][0]["status"], "partial");
    assert_eq!(states["cut.dat"][0]["partial"], "true");
    let errors = rows(folder.path(), "errors");
    assert_eq!(errors.keys().collect::<Vec<_>>(), ["cut.dat"]);
    let error = &errors["cut.dat"][0]["error"];
    assert!(error.contains("was it cut short?"), "{error}");
    assert!(!rows(folder.path(), "time")["cut.dat"].is_empty());
}

#[test]
fn a_kill_keeps_what_is_finished() {
    let folder = many(300);
    let whole = ["@list", "-o", "whole", "--key", "time,exits"];
    assert_eq!(analyze(folder.path(), &whole).0, Some(1));
    let asked = ["analyze", "@list", "-o", "out", "--key", "time,exits"];
    let parts = folder.path().join("out/parts");
    let finished = || fs::read_dir(&parts).map_or(0, Iterator::count);
    let mut killed = 0;
    for _ in 0..3 {
        let before = finished();
        let mut child = stealtime(&asked)
            .current_dir(folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("the command runs");
        while finished() < before + 20 && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // SIGKILL; what has ended cannot be killed any more.
        let _ = child.kill();
        killed += usize::from(child.wait().expect("it ends").code().is_none());
    }
    assert!(killed > 0);
    let (status, _, errors) = analyze(folder.path(), &asked[1..]);
    assert_eq!(status, Some(1), "{errors}");
    let known = errors
        .split_once("out: ")
        .and_then(|(_, rest)| rest.split_once(" of 300"));
    let known: usize = known.expect(&errors).0.parse().expect("a number");
    assert!(known >= 20, "{errors}");
    for table in ["time", "exits", "errors", "recordings", "histograms"] {
        let file = |out: &str| fs::read(folder.path().join(out).join(format!("{table}.parquet")));
        let (killed, whole) = (
            file("out").expect("a table"),
            file("whole").expect("a table"),
        );
        assert!(killed == whole, "{table}");
    }
}

#[test]
fn a_full_disk_is_an_error_and_keeps_what_is_finished() {
    let folder = folder();
    // A limit on the size of files stands for the disk: 16 blocks of 512 or 1024 bytes.
    let limited = "trap '' XFSZ; ulimit -f 16; exec \"$0\" analyze \"$@\"";
    fs::write(folder.path().join("short.txt"), SHORT).expect("a file");
    let asked = ["short.txt", "cfs.dat", "-o", "out", "--jobs", "1"];
    let mut command = Command::new("sh");
    command.args(["-c", limited, env!("CARGO_BIN_EXE_stealtime")]);
    let (status, output, errors) = run(command.args(asked).current_dir(folder.path()));
    assert_eq!((status, output.as_str()), (Some(2), ""), "{errors}");
    let kept = "out: 1 of 2 recordings are kept; the same command goes on from there";
    assert!(
        errors.contains(kept) && errors.contains("out/parts/"),
        "{errors}"
    );
    assert!(errors.contains(": File too large"), "{errors}");
    assert!(!folder.path().join("out/time.parquet").exists());
    let (status, _, errors) = analyze(folder.path(), &asked);
    assert_eq!(status, Some(0), "{errors}");
    assert!(
        errors.contains("out: 1 of 2 recordings are there"),
        "{errors}"
    );
}

/// A change falls in the reading only by chance: a busy machine may need several tries.
#[test]
fn a_recording_that_changes_while_it_is_read_is_an_error() {
    let folder = folder();
    let path = folder.path().join("cfs.dat");
    let is_over = AtomicBool::new(false);
    let asked = ["cfs.dat", "short.txt", "-o", "out", "--results", "csv"];
    fs::write(folder.path().join("short.txt"), SHORT).expect("a file");
    let has_failed = std::thread::scope(|scope| {
        scope.spawn(|| {
            let file = fs::File::options()
                .append(true)
                .open(&path)
                .expect("a file");
            for second in (0..60_000).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
                file.set_modified(time).expect("a time");
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let has_failed = (0..100).any(|_| {
            let out = folder.path().join("out");
            assert!(!out.exists() || fs::remove_dir_all(out).is_ok());
            analyze(folder.path(), &asked).0 == Some(1)
        });
        is_over.store(true, Ordering::Relaxed);
        has_failed
    });
    assert!(has_failed);
    let failed = rows(folder.path(), "errors");
    assert_eq!(failed.keys().collect::<Vec<_>>(), ["cfs.dat"]);
    assert_eq!(
        failed["cfs.dat"][0]["error"],
        "the file changed while it was read"
    );
    assert!(!rows(folder.path(), "time").contains_key("cfs.dat"));
    // At rest, it has rows.
    assert_eq!(analyze(folder.path(), &asked).0, Some(0));
    assert!(rows(folder.path(), "time").contains_key("cfs.dat"));
}

/// What a pipe had is gone when the command goes on, and another pipe may have its name.
#[test]
fn a_pipe_is_refused() {
    let folder = folder();
    let made = Command::new("mkfifo")
        .arg(folder.path().join("pipe"))
        .status();
    assert!(made.expect("mkfifo runs").success());
    let (status, output, errors) = analyze(folder.path(), &["cfs.dat", "pipe", "-o", "out"]);
    assert_eq!((status, output.as_str()), (Some(2), ""), "{errors}");
    let message = "a pipe or a device is no file that --out can find again: give a file";
    assert_eq!(errors, format!("stealtime: \"pipe\": {message}\n"));
    assert!(!folder.path().join("out").exists());
}

/// A thread reserves 64 MiB of address space for its heap, and twice as much while it aligns it. The process
/// aborted where none was left.
#[test]
fn a_limit_of_address_space_costs_threads_and_no_answers() {
    let folder = tempfile::tempdir().expect("a folder");
    for number in 0..8 {
        let name = format!("recording-{number}.dat");
        fs::copy(CFS, folder.path().join(name)).expect("a recording");
    }
    let program = env!("CARGO_BIN_EXE_stealtime");
    let limited = r#"ulimit -v "$0" && exec "$1" analyze ./*.dat -o out --results csv --jobs 16"#;
    for mib in [384, 512, 1024] {
        let mut shell = Command::new("sh");
        let kib = (mib << 10).to_string();
        shell.args(["-c", limited, &kib, program]);
        let (status, _, errors) = run(shell.current_dir(folder.path()));
        assert_eq!(status, Some(0), "{mib} MiB: {errors}");
        assert_eq!(rows(folder.path(), "time").len(), 8);
        fs::remove_dir_all(folder.path().join("out")).expect("the tables");
    }
}

//! `analyze TRACE… -o FOLDER` as a user has it.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

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

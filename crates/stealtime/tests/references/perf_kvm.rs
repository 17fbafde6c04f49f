//! Exit tables equal those of `perf kvm stat report`, to the printed digit.

use serde_json::Value;

use super::{integer, recordings};

/// A row as perf prints it.
#[derive(Debug, PartialEq)]
struct Row {
    key: String,
    samples: u64,
    samples_percent: String,
    time_percent: String,
    min_us: String,
    max_us: String,
    avg_us: String,
    deviation_percent: String,
}

fn perf_rows(text: &str) -> Vec<Row> {
    text.lines().filter_map(perf_row).collect()
}

fn perf_row(line: &str) -> Option<Row> {
    let (columns, deviation) = line.trim().strip_suffix(')')?.split_once("( +-")?;
    let mut from_right = columns.split_whitespace().rev();
    let mut next = |unit: &str| from_right.next()?.strip_suffix(unit).map(str::to_owned);
    let (avg_us, max_us, min_us) = (next("us")?, next("us")?, next("us")?);
    let (time_percent, samples_percent) = (next("%")?, next("%")?);
    let samples = next("")?.parse().ok()?;
    let mut key: Vec<&str> = from_right.collect();
    key.reverse();
    let deviation_percent = deviation.trim().trim_end_matches('%').to_owned();
    Some(Row {
        key: key.join(" "),
        samples,
        samples_percent,
        time_percent,
        min_us,
        max_us,
        avg_us,
        deviation_percent,
    })
}

fn our_row(row: &Value) -> Row {
    let float = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
    #[expect(clippy::cast_precision_loss, reason = "printed with two digits")]
    let us = |key: &str| format!("{:.2}", integer(&row[key]) as f64 / 1000.0);
    Row {
        key: row["reason"].as_str().unwrap_or("").into(),
        samples: integer(&row["samples"]),
        samples_percent: format!("{:.2}", float("samples_percent")),
        time_percent: format!("{:.2}", float("time_percent")),
        min_us: us("min_ns"),
        max_us: us("max_ns"),
        avg_us: format!("{:.2}", float("avg_ns") / 1000.0),
        deviation_percent: format!("{:.2}", float("stddev_percent")),
    }
}

#[test]
fn exit_tables_equal_those_of_perf() {
    let tables = [
        ("perf-kvm-stat-vmexit.txt", "exit_totals"),
        ("perf-kvm-stat-msr.txt", "msr"),
        ("perf-kvm-stat-ioport.txt", "ioport"),
        ("perf-kvm-stat-mmio.txt", "mmio"),
    ];
    let mut compared = 0;
    for recording in recordings() {
        if !recording.file.to_string_lossy().contains("perf.data") {
            continue;
        }
        let mut answers = None;
        for (file, key) in tables {
            let Some(text) = recording.reference(file) else {
                continue;
            };
            let answers = answers.get_or_insert_with(|| recording.analyze(&[]));
            let ours: Vec<Row> = answers[key]
                .as_array()
                .expect("a list")
                .iter()
                .map(our_row)
                .collect();
            assert_eq!(
                ours,
                perf_rows(&text),
                "{}: {file}",
                recording.file.display()
            );
            compared += 1;
        }
    }
    assert!(
        compared > 0,
        "no recording has tables of perf kvm stat as reference"
    );
}

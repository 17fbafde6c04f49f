//! `perf kvm stat report` of perf 7.2.13, to the printed digit.

use std::path::Path;

use stealtime_analysis::answers::KeyRow;
use stealtime_analysis::{Answers, Options};

use super::common::{answers, check, traces};

/// A row as perf prints it.
fn printed(row: &KeyRow) -> String {
    let us = |ns: f64| ns / 1000.0;
    format!(
        "{} {} {:.2}% {:.2}% {:.2}us {:.2}us {:.2}us {:.2}%",
        row.reason,
        row.samples,
        row.samples_percent,
        row.time_percent,
        us(row.min_ns as f64),
        us(row.max_ns as f64),
        us(row.avg_ns),
        row.stddev_percent
    )
}

fn total(rows: &[KeyRow]) -> String {
    let samples: u64 = rows.iter().map(|row| row.samples).sum();
    let time: u64 = rows.iter().map(|row| row.time_ns).sum();
    format!(
        "Total Samples:{samples}, Total events handled time:{:.2}us.",
        time as f64 / 1000.0
    )
}

/// The rows of a report and its line of totals.
fn report(folder: &Path, key: &str) -> (Vec<String>, String) {
    let file = folder.join(format!("reference/perf-kvm-stat-{key}.txt"));
    let text = std::fs::read_to_string(file).unwrap();
    let rows = text
        .lines()
        .filter(|line| line.contains("( +-"))
        .map(|line| {
            let line = line.replace("( +-", " ").replace(')', " ");
            line.split_whitespace().collect::<Vec<_>>().join(" ")
        });
    let total = text.lines().find(|line| line.starts_with("Total")).unwrap();
    (rows.collect(), total.to_owned())
}

fn read(name: &str) -> Option<(std::path::PathBuf, Answers)> {
    let folder = traces()?.join(name);
    let answers = answers(&folder.join("perf.data.zst"), Options::default());
    check(&answers);
    Some((folder, answers))
}

fn compare(rows: &[KeyRow], folder: &Path, key: &str) {
    let (wanted, wanted_total) = report(folder, key);
    assert_eq!(
        rows.iter().map(printed).collect::<Vec<_>>(),
        wanted,
        "{key}"
    );
    assert_eq!(total(rows), wanted_total, "{key}");
}

#[test]
fn exits_ports_and_mmio_are_perfs() {
    if let Some((folder, answers)) = read("svm-perf-kvm-stat-hackbench-tlb-burst") {
        compare(&answers.exit_totals, &folder, "vmexit");
        // kvm_msr was recorded twice: each access begins anew at the second copy.
        compare(&answers.msr, &folder, "msr");
        compare(&answers.ioport, &folder, "ioport");
        compare(&answers.mmio, &folder, "mmio");
    }
}

#[test]
fn with_lost_and_disordered_events_exits_are_perfs() {
    if let Some((folder, answers)) = read("svm-lost-events-hackbench-hog-timer") {
        compare(&answers.exit_totals, &folder, "vmexit");
        // perf warns of 17 events out of order.
        assert_eq!(answers.source.out_of_order, 17);
        assert!(
            answers
                .findings
                .iter()
                .any(|finding| finding.id == "lost_events")
        );
    }
}

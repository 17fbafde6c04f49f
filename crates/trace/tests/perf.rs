//! perf.data files against what `perf report --stats` counts in them, which is every sample.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stealtime_events::{Event, Kind, Names};
use stealtime_trace::{EventSource, Format, Options, SourceInfo, open, open_with};

use crate::common;

/// A recording and perf's statistics of it.
struct Recording {
    path: PathBuf,
    stats: String,
}

fn recordings() -> Vec<Recording> {
    let root =
        std::env::var_os("STEALTIME_TRACES").map_or_else(|| common::SMALL.into(), PathBuf::from);
    let mut found = Vec::new();
    for entry in fs::read_dir(&root)
        .expect("the folder of recordings")
        .flatten()
    {
        let dir = entry.path();
        let path = common::file(&dir, "perf.data");
        let stats = fs::read_to_string(dir.join("reference/perf-stats.txt"));
        if let (Some(path), Ok(stats)) = (path, stats)
            && stats.contains("SAMPLE events")
        {
            found.push(Recording { path, stats });
        }
    }
    assert!(found.len() >= 2, "{}: no recordings", root.display());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Samples by tracepoint. One that was recorded by two events stands twice in the statistics, and
/// counts twice.
fn expected(stats: &str) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut event = None;
    for line in stats.lines() {
        if let Some(name) = line.strip_suffix(" stats:") {
            event = name.split_once(':').map(|(_, name)| name.to_owned());
        } else if let Some((_, count)) = line.split_once("SAMPLE events:")
            && let Some(event) = event.take()
        {
            *counts.entry(event).or_default() += count.trim().parse::<u64>().expect("a number");
        }
    }
    counts
}

/// All events, and what is known once they are read.
fn read(source: &mut dyn EventSource) -> (Vec<Event>, SourceInfo) {
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("a readable file") {
        events.push(event);
    }
    (events, source.info().clone())
}

fn counts(events: &[Event], source: &dyn EventSource) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for event in events.iter().filter(|event| event.kind.is_host_event()) {
        let name = match event.kind {
            Kind::Other { name } => source.names().name(name),
            kind => kind.tracepoint().expect("a tracepoint"),
        };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

#[test]
fn every_sample_counts() {
    for Recording { path, stats } in recordings() {
        let mut source = open(&path).expect("a perf.data file");
        let (events, info) = read(source.as_mut());
        assert_eq!(
            counts(&events, source.as_ref()),
            expected(&stats),
            "{}",
            path.display()
        );
        assert_eq!(info.format, Format::PerfData);
        assert!(!info.is_partial(), "{:?}", info.notes);
        assert!(info.out_of_order <= 1, "{}", info.out_of_order);
        let (read, total) = source.progress();
        assert!(
            Some(read) <= total && read * 10 > total.unwrap_or(0),
            "{read} of {total:?}"
        );
    }
}

#[test]
fn losses_are_where_they_happened() {
    let path = small("svm-lost-events-hackbench-hog-timer");
    let (events, info) = read(open(&path).expect("a perf.data file").as_mut());
    let lost: Vec<(u64, u64)> = events
        .iter()
        .filter_map(|event| match event.kind {
            Kind::Lost { count } => Some((event.time_ns / 1000, count)),
            _ => None,
        })
        .collect();
    // As `perf script --show-lost-events` prints them of the whole file.
    let expected = [
        (145_661_060, 40),
        (145_697_710, 75),
        (145_697_859, 33),
        (145_698_554, 7),
    ];
    assert_eq!(lost.get(..4), Some(&expected[..]));
    assert_eq!((lost.len(), info.lost.counted), (7, 261));
}

#[test]
fn a_guests_cpumode_is_said_and_counted() {
    let path = small("svm-perf-kvm-stat-hackbench-tlb-burst");
    let mut source = open(&path).expect("a perf.data file");
    let (events, info) = read(source.as_mut());
    let notes: Vec<&str> = info.notes.iter().map(|note| note.text.as_str()).collect();
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("1054 of 9000 samples bear")),
        "{notes:?}"
    );
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("kvm_msr: recorded by two")),
        "{notes:?}"
    );
    assert_eq!(
        info.uname.as_deref(),
        Some("Linux (none) 7.2.13+deb14-amd64 x86_64")
    );
    assert_eq!((info.cpus, info.clock.name.as_str()), (Some(2), "perf"));
    assert!(
        info.recorded.iter().any(|name| name == "kvm_mmio"),
        "it is on, though it never fired"
    );
    let tasks = events.iter().filter_map(|event| match event.kind {
        Kind::Task { tid, process, name } => Some((tid, process, source.names().name(name))),
        _ => None,
    });
    let vcpus: Vec<_> = tasks.filter(|(.., name)| name.ends_with("/KVM")).collect();
    assert_eq!(vcpus.len(), 7, "{vcpus:?}");
    assert!(
        vcpus
            .iter()
            .all(|(tid, process, _)| process.0 > 0 && process != tid)
    );
}

#[test]
fn a_record_walk_of_another_program_agrees() {
    let path = small("svm-lost-events-hackbench-hog-timer");
    let bytes = common::bytes(&path);
    let parsed = linux_perf_data::PerfFileReader::parse_file(std::io::Cursor::new(&bytes[..]));
    let linux_perf_data::PerfFileReader {
        mut perf_file,
        mut record_iter,
    } = parsed.expect("it reads the file too");
    let mut times = Vec::new();
    while let Some(record) = record_iter
        .next_record(&mut perf_file)
        .expect("it reads the records")
    {
        if let linux_perf_data::PerfFileRecord::EventRecord { record, .. } = record
            && record.record_type == linux_perf_data::linux_perf_event_reader::RecordType::SAMPLE
        {
            times.extend(record.timestamp());
        }
    }
    let (events, _) = read(open(&path).expect("a perf.data file").as_mut());
    let ours: Vec<u64> = events
        .iter()
        .filter(|event| event.kind.is_host_event())
        .map(|event| event.time_ns)
        .collect();
    assert_eq!(ours, times);
}

#[test]
fn what_a_truncated_file_has_is_read() {
    let bytes = common::bytes(&small("svm-perf-kvm-stat-hackbench-tlb-burst"));
    let dir = tempfile::tempdir().expect("a folder");
    let cut = dir.path().join("cut.data");
    fs::write(&cut, &bytes[..bytes.len() / 2]).expect("a file");
    let mut source = open(&cut).expect("the part before the cut is read");
    let (events, info) = read(source.as_mut());
    let of_host = events
        .iter()
        .filter(|event| event.kind.is_host_event())
        .count();
    assert!(of_host > 3500, "{of_host}");
    assert!(
        events
            .iter()
            .all(|event| !matches!(event.kind, Kind::KvmExit { .. }))
    );
    assert!(info.is_partial());
    let texts: Vec<&str> = info.notes.iter().map(|note| note.text.as_str()).collect();
    assert!(
        texts
            .iter()
            .any(|text| text.starts_with("the file is cut short")),
        "{texts:?}"
    );
    assert!(
        texts.iter().any(|text| text.contains("--formats-from")),
        "{texts:?}"
    );

    // Formats of the same kernel make it whole but for its end; those of another are refused.
    let from = |name: &str| {
        let dat = common::file(&Path::new(common::SMALL).join(name), "perf.data");
        let dat = dat.or(common::file(
            &Path::new(common::SMALL).join(name),
            "trace.dat",
        ));
        let options = Options {
            formats_from: dat,
            ..Options::default()
        };
        open_with(&cut, &options)
    };
    for name in [
        "svm-perf-kvm-stat-hackbench-tlb-burst",
        "svm-pause-exits-hackbench-tlb",
    ] {
        let mut source = from(name).expect("formats that fit");
        let (events, info) = read(source.as_mut());
        let exits = |event: &&Event| matches!(event.kind, Kind::KvmExit { .. });
        assert!(events.iter().filter(exits).count() > 300);
        assert!(info.is_partial());
        let again = events
            .iter()
            .filter(|event| event.kind.is_host_event())
            .count();
        assert_eq!(again, of_host);
    }
    let refused = from("pvmhost-lost-events-ring")
        .err()
        .expect("formats of another kernel");
    assert!(
        refused.to_string().contains("another kernel or boot"),
        "{refused}"
    );
}

#[test]
fn the_crashed_hosts_file_is_saved() {
    let Some(root) = std::env::var_os("STEALTIME_TRACES").map(PathBuf::from) else {
        return; // too large to be shipped; the test above cuts a small one
    };
    let path = common::file(&root.join("svm-truncated-perf"), "perf.data").expect("the file");
    let (events, info) = read(
        open(&path)
            .expect("the part before the cut is read")
            .as_mut(),
    );
    assert_eq!(
        events
            .iter()
            .filter(|event| event.kind.is_host_event())
            .count(),
        168_140
    );
    assert!(info.is_partial());
    let of = root.join("svm-pause-exits-hackbench-tlb");
    let options = Options {
        formats_from: common::file(&of, "trace.dat"),
        ..Options::default()
    };
    let mut source = open_with(&path, &options).expect("formats that fit");
    let (events, _) = read(source.as_mut());
    assert_eq!(
        counts(&events, source.as_ref()).get("kvm_exit"),
        Some(&16_076)
    );
}

fn small(name: &str) -> PathBuf {
    let dir = Path::new(common::SMALL).join(name);
    common::file(&dir, "perf.data").expect("a recording of the repository")
}

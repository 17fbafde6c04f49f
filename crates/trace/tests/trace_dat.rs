//! trace.dat files against what `trace-cmd report` counts in them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stealtime_events::{Event, ExitReason, Kind, Names};
use stealtime_trace::{ClockUnit, EventSource, Format, SourceInfo, TraceDat};

use crate::common;

/// A recording and what trace-cmd counts in it.
struct Recording {
    path: PathBuf,
    counts: String,
}

/// Every recording with counts below the folder of `STEALTIME_TRACES`, and those with snapshots.
fn recordings() -> Vec<Recording> {
    let root =
        std::env::var_os("STEALTIME_TRACES").map_or_else(|| common::SMALL.into(), PathBuf::from);
    let mut found = Vec::new();
    search(&root, &mut found);
    search(common::LIVE.as_ref(), &mut found);
    assert!(!found.is_empty(), "{}: no recordings", root.display());
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

fn search(dir: &Path, found: &mut Vec<Recording>) {
    if let Ok(counts) = fs::read_to_string(dir.join("reference/trace-cmd-counts.txt")) {
        let path = ["trace.dat", "trace.dat.zst"].map(|name| dir.join(name));
        let path = path.into_iter().find(|path| path.exists());
        let path = path.unwrap_or_else(|| panic!("{}: no trace.dat", dir.display()));
        found.push(Recording { path, counts });
        return;
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        if entry.path().is_dir() {
            search(&entry.path(), found);
        }
    }
}

/// What is compared.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    total: u64,
    first_ns: u64,
    last_ns: u64,
    back_in_time: u64,
    gaps: u64,
    lost: u64,
    by_cpu: BTreeMap<u16, u64>,
    by_name: BTreeMap<String, u64>,
    exits: BTreeMap<ExitReason, u64>,
}

impl Counts {
    /// From the text in the folder of a recording.
    fn parse(text: &str) -> Self {
        let mut counts = Self::default();
        let mut section = String::new();
        for line in text.lines() {
            if !line.starts_with(' ') {
                section = line.to_owned();
                let Some((key, value)) = line.split_once(": ") else {
                    continue;
                };
                let number = || value.parse().expect("a number");
                match key {
                    "total events" => counts.total = number(),
                    "first timestamp" => counts.first_ns = ns(value),
                    "last timestamp" => counts.last_ns = ns(value),
                    "lines whose timestamp is before the previous line" => {
                        counts.back_in_time = number();
                    }
                    "lost/dropped-event lines" => counts.gaps = number(),
                    "sum of counts in those lines" => counts.lost = number(),
                    _ => {}
                }
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            match (&*section, &words[..]) {
                ("events per CPU:", ["cpu", cpu, count]) => {
                    let cpu = cpu.parse().expect("a CPU");
                    counts.by_cpu.insert(cpu, count.parse().expect("a count"));
                }
                ("events per type:", [count, name]) => {
                    let count = count.parse().expect("a count");
                    counts.by_name.insert((*name).to_owned(), count);
                }
                ("kvm_exit by reason:", [count, name]) => {
                    let reason = ExitReason::from_name(name).expect("a known reason");
                    counts.exits.insert(reason, count.parse().expect("a count"));
                }
                _ => {}
            }
        }
        assert!(counts.total > 0, "{text}");
        counts
    }

    fn add(&mut self, event: &Event, source: &TraceDat) {
        self.gaps += u64::from(matches!(event.kind, Kind::Lost { .. }));
        if !event.kind.is_host_event() {
            return;
        }
        if self.total == 0 {
            self.first_ns = event.time_ns;
        }
        self.total += 1;
        self.back_in_time += u64::from(event.time_ns < self.last_ns);
        self.last_ns = event.time_ns;
        *self.by_cpu.entry(event.cpu.0).or_default() += 1;
        let name = match event.kind {
            Kind::Other { name } => source.names().name(name),
            kind => kind.tracepoint().expect("a name"),
        };
        match self.by_name.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(self.by_name.insert(name.to_owned(), 1)),
        }
        if let Kind::KvmExit { reason, .. } = event.kind {
            *self.exits.entry(reason).or_default() += 1;
        }
    }
}

/// `seconds.nanoseconds` to ns.
fn ns(text: &str) -> u64 {
    let (seconds, fraction) = text.split_once('.').expect("seconds and their fraction");
    assert_eq!(fraction.len(), 9, "{text}");
    let number = |text: &str| text.parse::<u64>().expect("a number");
    number(seconds) * 1_000_000_000 + number(fraction)
}

fn count(mut source: TraceDat) -> (Counts, SourceInfo) {
    let mut counts = Counts::default();
    while let Some(event) = source.next_event().expect("a good file") {
        counts.add(&event, &source);
    }
    let (read, len) = source.progress();
    assert!(Some(read) <= len && read > 0);
    counts.lost = source.info().lost.counted;
    (counts, source.info().clone())
}

#[test]
fn counts_are_those_of_trace_cmd() {
    for recording in recordings() {
        let name = recording.path.display();
        let source = common::open(common::bytes(&recording.path)).expect("a good file");
        let (counts, info) = count(source);
        let mut expected = Counts::parse(&recording.counts);
        if !recording.counts.contains("kvm_exit by reason:") {
            expected.exits.clone_from(&counts.exits);
        }
        assert_eq!(counts, expected, "{name}");
        assert_eq!(info.out_of_order, counts.back_in_time, "{name}");
        assert!(!info.is_partial(), "{name}: {:?}", info.notes);
        assert_eq!(info.clock.unit, ClockUnit::Ns, "{name}");
    }
}

fn small(name: &str) -> TraceDat {
    let path = format!("{}/{name}", common::SMALL);
    common::open(common::bytes(path.as_ref())).expect("a good file")
}

/// All events, by turns up to `limit` at once and one by itself.
fn in_batches(mut source: TraceDat, limit: usize) -> Vec<Event> {
    let mut events = Vec::new();
    loop {
        let mut batch = Vec::new();
        let more = source.next_events(limit, &mut batch).expect("a sound file");
        assert_eq!(more, batch.len() == limit);
        events.append(&mut batch);
        if !more {
            return events;
        }
        events.extend(source.next_event().expect("a sound file"));
    }
}

#[test]
fn batches_have_the_events_that_come_one_by_one() {
    let mut source = small("svm-cfs/trace.dat");
    let mut single = Vec::new();
    while let Some(event) = source.next_event().expect("a sound file") {
        single.push(event);
    }
    // Names of tasks come at once and do not fit into small batches.
    for limit in [1, 2, 3, 7, 1000] {
        assert_eq!(
            in_batches(small("svm-cfs/trace.dat"), limit),
            single,
            "{limit}"
        );
    }
}

#[test]
fn what_the_file_says_of_the_recording() {
    let (_, info) = count(small("svm-hackbench-cyclictest-hog/trace.dat.zst"));
    assert_eq!(info.format, Format::TraceDat(6));
    assert_eq!((&*info.clock.name, info.cpus), ("local", Some(4)));
    assert_eq!(
        info.uname.as_deref(),
        Some("Linux (none) 7.2.13+deb14-amd64 x86_64")
    );
    assert!(info.recorded.iter().any(|name| name == "kvm_entry"));
    assert!(
        !info.recorded.iter().any(|name| name == "print"),
        "an event of ftrace itself"
    );
    let (_, info) = count(small("pvmhost-lost-events-ring/trace.dat"));
    assert_eq!(info.format, Format::TraceDat(7));
    assert_eq!((info.lost.counted, info.lost.uncounted_gaps), (4881, 0));
}

#[test]
fn tasks_and_functions_have_names() {
    let mut source = small("svm-hackbench-cyclictest-hog/trace.dat.zst");
    let mut tasks = BTreeMap::new();
    let mut functions = BTreeMap::new();
    let mut unnamed = 0;
    while let Some(event) = source.next_event().expect("a good file") {
        match event.kind {
            Kind::Task { tid, name, .. } => {
                let name = source.names().name(name).to_owned();
                let before = tasks.insert(tid, name.clone());
                assert_ne!(before.as_ref(), Some(&name), "{tid:?} named twice");
            }
            Kind::SchedSwitch { prev, next, .. } => {
                unnamed += usize::from(!prev.is_idle() && !tasks.contains_key(&prev));
                unnamed += usize::from(!next.is_idle() && !tasks.contains_key(&next));
            }
            Kind::HrtimerExpireEntry { function, .. } => {
                *functions
                    .entry(source.names().name(function).to_owned())
                    .or_insert(0) += 1;
            }
            _ => {}
        }
    }
    assert_eq!(unnamed, 0, "a switch came before the names of its tasks");
    let vcpus = tasks.values().filter(|name| name.ends_with("/KVM")).count();
    assert_eq!(vcpus, 8, "{tasks:?}");
    assert!(functions.contains_key("apic_timer_fn"), "{functions:?}");
    assert!(
        functions.keys().all(|name| !name.starts_with("0x")),
        "{functions:?}"
    );
}

#[test]
fn entries_and_exits_alternate_on_each_vcpu() {
    let mut source = small("svm-hackbench-cyclictest-hog/trace.dat.zst");
    let mut inside = BTreeMap::new();
    let mut exits = 0;
    while let Some(event) = source.next_event().expect("a good file") {
        match event.kind {
            Kind::KvmEntry { vcpu } => {
                assert_ne!(
                    inside.insert(event.tid, Some(vcpu)),
                    Some(Some(vcpu)),
                    "{event:?}"
                );
            }
            Kind::KvmExit { vcpu, .. } => {
                exits += 1;
                if let Some(before) = inside.insert(event.tid, None) {
                    assert_eq!(before, Some(vcpu), "{event:?}");
                }
            }
            _ => {}
        }
    }
    assert_eq!(inside.len(), 8, "a thread for each vCPU");
    assert!(exits > 1000);
}

//! Text against what lines of it count, and against the same recordings as trace.dat.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use stealtime_events::{Event, Kind, NameId, Names, VcpuId};
use stealtime_trace::{ClockUnit, EventSource, Format, NameTable, Options, open, open_with};

use crate::common;

fn read(source: &mut dyn EventSource) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("a readable text") {
        events.push(event);
    }
    events
}

fn of_host(source: &mut dyn EventSource) -> Vec<Event> {
    let events = read(source);
    events
        .into_iter()
        .filter(|event| event.kind.is_host_event())
        .collect()
}

fn name(kind: Kind, names: &NameTable) -> String {
    match kind {
        Kind::Other { name } => names.name(name).to_owned(),
        kind => kind.tracepoint().expect("a tracepoint").to_owned(),
    }
}

/// The kernel's text, small or (with `STEALTIME_TRACES`) whole.
fn kernels() -> PathBuf {
    let root = std::env::var_os("STEALTIME_TRACES");
    let root = root.map_or_else(|| common::SMALL.into(), PathBuf::from);
    root.join("pvmhost-ticketlock-idle-text")
}

#[test]
fn every_line_counts() {
    let dir = kernels();
    let path = common::file(&dir, "trace.txt").expect("the text");
    let mut source = open(&path).expect("a text");
    let events = of_host(source.as_mut());
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    let mut cpus: BTreeMap<String, u64> = BTreeMap::new();
    for event in &events {
        *counts.entry(name(event.kind, source.names())).or_default() += 1;
        *cpus.entry(format!("{:03}", event.cpu.0)).or_default() += 1;
    }
    let text = fs::read_to_string(dir.join("reference/counts.txt")).expect("counts");
    let (mut expected, mut expected_cpus) = (BTreeMap::new(), BTreeMap::new());
    for line in text.lines().filter(|line| line.starts_with("  ")) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["cpu", cpu, count] => {
                expected_cpus.insert(cpu.to_owned(), count.parse().expect("a number"));
            }
            [count, name] => {
                expected.insert(name.to_owned(), count.parse().expect("a number"));
            }
            _ => panic!("{line}"),
        }
    }
    assert_eq!((counts, cpus), (expected, expected_cpus));
    let info = source.info();
    assert_eq!(
        (info.format, info.compression),
        (Format::Text, Some("zstd"))
    );
    assert_eq!((info.out_of_order, info.cpus), (0, Some(2)));
    assert!(!info.is_partial(), "{:?}", info.notes);
}

#[test]
fn ticks_are_converted_as_the_expiries_tell() {
    let path = common::file(&kernels(), "trace.txt").expect("the text");
    let mut source = open(&path).expect("a text");
    let events = of_host(source.as_mut());
    // The host's TSC runs at 2.3 GHz (side/host.txt of the recordings of that host: 2299.998 MHz).
    let clock = source.info().clock.clone();
    assert_eq!(
        (clock.unit, clock.name.as_str()),
        (ClockUnit::Ns, "x86-tsc")
    );
    let khz = clock.tsc_khz.expect("an estimate");
    assert!(khz.abs_diff(2_299_998) <= 30, "{khz}");
    // `now` is CLOCK_MONOTONIC at the start of the interrupt: all expiries lie shortly behind it,
    // at a distance that does not change over the trace.
    let late: Vec<i64> = events
        .iter()
        .filter_map(|event| match event.kind {
            Kind::HrtimerExpireEntry { now_ns, .. } => {
                Some(event.time_ns.cast_signed() - now_ns.cast_signed())
            }
            _ => None,
        })
        .collect();
    let median = |part: &[i64]| {
        let mut part = part.to_vec();
        part.sort_unstable();
        part[part.len() / 2]
    };
    let (first, last) = late.split_at(late.len() / 2);
    assert!(
        (median(first) - median(last)).abs() < 3_000,
        "{} {}",
        median(first),
        median(last)
    );

    let options = Options {
        tsc_khz: Some(2_300_000),
        ..Options::default()
    };
    let mut exact = open_with(&path, &options).expect("a text");
    assert_eq!(
        of_host(exact.as_mut()).first().map(|event| event.time_ns),
        Some(1_537_472_982_986)
    );
    assert_eq!(exact.info().clock.tsc_khz, Some(2_300_000));
}

/// A trace.dat and a text.
type Sources = [Box<dyn EventSource>; 2];

/// The events of the trace.dat and of the text made of it, as far as the text goes.
fn pairs(recording: &str, text: &str) -> (Vec<(Event, Event)>, Sources) {
    let dir = Path::new(common::SMALL).join(recording);
    let open = |name| open(&common::file(&dir, name).expect("a file")).expect("a trace");
    let (mut dat, mut txt) = (open("trace.dat"), open(text));
    let texts = of_host(txt.as_mut());
    assert_eq!(texts.len(), 4000);
    let mut notes = txt.info().notes.iter();
    let is_of_flags = |text: &str| text.starts_with("the text has no context flags");
    assert!(
        notes.all(|note| is_of_flags(&note.text)),
        "all of it is understood"
    );
    let pairs = of_host(dat.as_mut()).into_iter().zip(texts).collect();
    (pairs, [dat, txt])
}

/// The kind with names replaced by their text, and what the text does not print left out.
fn comparable(kind: Kind, names: &NameTable, raw: bool) -> String {
    let function = |id: NameId| names.name(id).to_owned();
    let callback = match kind {
        Kind::IpiSendCpu { callback, .. } | Kind::IpiSendCpumask { callback } => function(callback),
        Kind::CsdQueueCpu { func, .. }
        | Kind::CsdFunctionEntry { func }
        | Kind::CsdFunctionExit { func } => function(func),
        // Raw text has an hrtimer's function as a number.
        Kind::HrtimerStart { function: it, .. } | Kind::HrtimerExpireEntry { function: it, .. }
            if !raw =>
        {
            function(it)
        }
        Kind::Other { name } => function(name),
        _ => String::new(),
    };
    let none = NameId::NONE;
    let kind = match kind {
        Kind::Other { .. } => Kind::Other { name: none },
        Kind::IpiSendCpu { cpu, .. } => Kind::IpiSendCpu {
            cpu,
            callback: none,
        },
        Kind::IpiSendCpumask { .. } => Kind::IpiSendCpumask { callback: none },
        Kind::CsdQueueCpu { cpu, .. } => Kind::CsdQueueCpu { cpu, func: none },
        Kind::CsdFunctionEntry { .. } => Kind::CsdFunctionEntry { func: none },
        Kind::CsdFunctionExit { .. } => Kind::CsdFunctionExit { func: none },
        Kind::HrtimerStart {
            hrtimer,
            expires_ns,
            ..
        } => Kind::HrtimerStart {
            hrtimer,
            expires_ns,
            function: none,
        },
        Kind::HrtimerExpireEntry {
            hrtimer, now_ns, ..
        } => Kind::HrtimerExpireEntry {
            hrtimer,
            now_ns,
            function: none,
        },
        // trace-cmd's plugins print neither the vCPU of an exit nor that a task was preempted.
        Kind::KvmExit {
            reason,
            intr_vector,
            info1,
            ..
        } if !raw => Kind::KvmExit {
            reason,
            vcpu: VcpuId::UNKNOWN,
            intr_vector,
            info1,
        },
        Kind::SchedSwitch {
            prev,
            next,
            prev_prio,
            next_prio,
            prev_state,
        } if !raw => Kind::SchedSwitch {
            prev,
            next,
            prev_prio,
            next_prio,
            prev_state: prev_state & 0xff,
        },
        kind => kind,
    };
    format!("{kind:?} {callback}")
}

fn same_events(recording: &str, text: &str, raw: bool) {
    let (pairs, [dat, txt]) = pairs(recording, text);
    assert_eq!(pairs.len(), 4000);
    for (binary, textual) in pairs {
        assert_eq!(
            comparable(textual.kind, txt.names(), raw),
            comparable(binary.kind, dat.names(), raw),
            "{binary:?}"
        );
        let place = |event: Event| (event.time_ns, event.tid, event.cpu);
        assert_eq!(place(textual), place(binary));
        // Without -l trace-cmd 3.1.6 prints no flags: what is inferred is so, and the rest unknown.
        let (is, was) = (textual.context, binary.context);
        assert!(!is.tells_resched());
        assert!(!is.in_task() || was.in_task(), "{binary:?}");
        assert!(!is.in_interrupt() || was.in_interrupt(), "{binary:?}");
    }
}

#[test]
fn a_report_has_the_events_of_its_trace_dat() {
    same_events("svm-pause-exits-hackbench-tlb", "report.txt", false);
    same_events("svm-hackbench-cyclictest-hog", "report.txt", false);
}

#[test]
fn a_raw_report_has_the_events_of_its_trace_dat() {
    same_events("svm-pause-exits-hackbench-tlb", "report-raw.txt", true);
    same_events("svm-hackbench-cyclictest-hog", "report-raw.txt", true);
}

#[test]
fn the_references_of_the_recordings_are_read_whole() {
    let Some(root) = std::env::var_os("STEALTIME_TRACES").map(PathBuf::from) else {
        return; // the small recordings have no such files
    };
    let mut read_some = 0;
    for dir in fs::read_dir(root).expect("the recordings").flatten() {
        for part in ["head", "raw-head", "tail"] {
            let path = dir
                .path()
                .join(format!("reference/trace-cmd-report-{part}.txt"));
            if path.exists() {
                let mut source = open(&path).expect("a text");
                assert!(of_host(source.as_mut()).len() >= 50);
                assert_eq!(source.info().notes, [], "{}", path.display());
                read_some += 1;
            }
        }
    }
    assert!(read_some >= 18, "{read_some}");
}

/// What `trace-cmd report` without `-l` leaves of a text: the flags are not there. Unknown is not "in no
/// interrupt", and other events tell of most.
#[test]
fn without_flags_a_context_is_inferred_or_unknown() {
    let path = common::file(&kernels(), "trace.txt").expect("the text");
    let folder = tempfile::tempdir().expect("a folder");
    let plain = folder.path().join("plain.txt");
    let packed = fs::File::open(&path).expect("the text");
    let text = match path.extension().is_some_and(|end| end == "zst") {
        true => zstd::decode_all(packed).expect("zstd"),
        false => fs::read(&path).expect("the text"),
    };
    let text = String::from_utf8_lossy(&text);
    let without = |line: &str| match line.split_once("] ") {
        Some((head, rest)) if !line.starts_with('#') => {
            let (_, rest) = rest.split_once(' ').expect("flags");
            format!("{head}] {rest}\n")
        }
        _ => format!("{line}\n"),
    };
    fs::write(&plain, text.lines().map(without).collect::<String>()).expect("written");
    let mut source = open(&plain).expect("a text");
    let inferred = of_host(source.as_mut());
    let noted = source
        .info()
        .notes
        .iter()
        .any(|note| note.text.contains("no context flags"));
    assert!(noted, "{:?}", source.info().notes);
    let flagged = of_host(open(&path).expect("a text").as_mut());
    assert_eq!(inferred.len(), flagged.len());
    let (mut interrupts, mut found) = (0, 0);
    for (is, was) in inferred.iter().zip(&flagged) {
        assert!(!is.context.in_task() || was.context.in_task(), "{was:?}");
        assert!(
            !is.context.in_interrupt() || was.context.in_interrupt(),
            "{was:?}"
        );
        interrupts += u32::from(was.context.in_interrupt());
        found += u32::from(is.context.in_interrupt());
    }
    assert!(found * 10 >= interrupts * 9, "{found} of {interrupts}");
}

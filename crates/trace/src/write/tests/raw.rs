//! Pages as they are, with a description around them.

use super::*;
use crate::write::raw::{Recording, System, TscToNs};

/// A recording of one tracepoint, and the pages of its two CPUs.
fn described(mut recording: Recording) -> (Recording, Vec<Vec<u8>>) {
    let point = tracepoint::all().find(|point| point.name == "sched_waking");
    let point = point.expect("a row");
    let layout = Layout::new(&point);
    let text = |text: &str| text.as_bytes().to_vec();
    recording.header_page = text(
        "\tfield: u64 timestamp;\toffset:0;\tsize:8;\tsigned:0;\n\
         \tfield: local_t commit;\toffset:8;\tsize:8;\tsigned:1;\n\
         \tfield: int overwrite;\toffset:8;\tsize:1;\tsigned:1;\n\
         \tfield: char data;\toffset:16;\tsize:4080;\tsigned:1;\n",
    );
    recording.systems = vec![System {
        name: "sched".into(),
        formats: vec![text(&layout::description(&point, 321))],
    }];
    (recording.page_size, recording.buffer_page_size) = (4096, 4096);
    let mut files = Vec::new();
    for cpu in [1, 3] {
        let mut pages = Pages::default();
        for time in 0..300 {
            let mut record = vec![0; usize::from(layout.len)];
            record[..2].copy_from_slice(&321_u16.to_le_bytes());
            record[4..8].copy_from_slice(&77_i32.to_le_bytes());
            pages.push(1_000 * time + cpu, &record);
        }
        pages.finish();
        recording
            .data
            .push((cpu as u16, pages.whole().len() as u64));
        files.push(pages.whole().to_vec());
    }
    (recording, files)
}

/// The same as a file: pages behind a head.
fn recorded(recording: Recording) -> Vec<u8> {
    let (recording, files) = described(recording);
    let head = recording.head().expect("zstd");
    let mut file = head.bytes;
    for (start, pages) in head.starts.iter().zip(files) {
        assert_eq!(start % 4096, 0);
        file.resize(*start as usize, 0);
        file.extend(pages);
    }
    assert_eq!(file.len() as u64, head.len);
    file
}

#[test]
fn pages_are_read_with_what_is_around_them() {
    let file = recorded(Recording {
        clock: "mono".into(),
        uname: "Linux host 7.2".into(),
        cpus: 4,
        cmdlines: b"77 CPU 0/KVM\n".to_vec(),
        tgids: b"77 70\n".to_vec(),
        stats: vec![(3, "entries: 0\noverrun: 9\ndropped events: 0\n".into())],
        snapshot: Some("{\"kernel\":\"7.2\"}".into()),
        ..Recording::default()
    });
    let (events, source) = read(file);
    let waking = |event: &&Event| matches!(event.kind, Kind::SchedWaking { .. });
    assert_eq!(events.iter().filter(waking).count(), 600);
    assert!(events.iter().any(|event| matches!(
        event.kind,
        Kind::Task { tid: Tid(77), process: Tid(70), name } if source.names().name(name) == "CPU 0/KVM"
    )));
    let info = source.info();
    assert_eq!((&*info.clock.name, info.cpus), ("mono", Some(4)));
    assert_eq!(info.uname.as_deref(), Some("Linux host 7.2"));
    assert_eq!(info.snapshot.as_deref(), Some("{\"kernel\":\"7.2\"}"));
    assert_eq!(info.recorded, ["sched_waking"]);
    // The name of the instance that recorded is no property of the host.
    let notes: Vec<&str> = info.notes.iter().map(|note| &*note.text).collect();
    assert!(
        matches!(&notes[..], [one] if one.contains("CPU 3")),
        "{notes:?}"
    );
}

#[test]
fn pages_give_the_same_events_as_they_come() {
    let (recording, files) = described(Recording::default());
    let mut live = crate::trace_dat::Pages::new(&recording).expect("a layout");
    live.name_tasks(b"77 CPU 0/KVM\n", b"77 70\n");
    let mut events = Vec::new();
    let pages = files.iter().map(|pages| pages.chunks(4096).count()).max();
    for number in 0..pages.expect("CPUs") {
        // Of the round before, all that is earlier than its latest page.
        let limit = live.newest();
        for ((cpu, _), pages) in recording.data.iter().zip(&files) {
            if let Some(page) = pages.chunks(4096).nth(number) {
                let mut buffer = live.buffer();
                buffer.copy_from_slice(page);
                live.push(*cpu, buffer);
            }
        }
        live.take(limit, &mut |event, _| events.push(*event));
        assert!(events.iter().all(|event| event.time_ns < limit.max(1)));
    }
    live.take(u64::MAX, &mut |event, _| events.push(*event));
    let file = recorded(Recording {
        cmdlines: b"77 CPU 0/KVM\n".to_vec(),
        tgids: b"77 70\n".to_vec(),
        ..Recording::default()
    });
    let (expected, _) = read(file);
    let kinds = |events: &[Event]| -> Vec<String> {
        let timed = events.iter().filter(|event| event.kind.is_host_event());
        timed.map(|event| format!("{event:?}")).collect()
    };
    assert_eq!(kinds(&events), kinds(&expected));
    assert_eq!(events.len(), expected.len());
    assert_eq!(
        live.info().lost.counted + live.info().lost.uncounted_gaps,
        0
    );
}

#[test]
fn a_clock_that_is_set_back_begins_anew() {
    let (recording, files) = described(Recording::default());
    let mut live = crate::trace_dat::Pages::new(&recording).expect("a layout");
    let page = |file: usize, number: usize| files[file].chunks(4096).nth(number).expect("a page");
    live.push(1, page(0, 2).to_vec());
    live.push(3, page(1, 1).to_vec());
    let later = live.newest();
    live.push(1, page(0, 0).to_vec());
    assert!(live.newest() < later, "{later}");
    live.push(3, page(1, 2).to_vec());
    let mut events = Vec::new();
    live.take(u64::MAX, &mut |event, _| events.push(*event));
    // Both CPUs show a loss, and then their events in order.
    let lost = |event: &&Event| matches!(event.kind, Kind::Lost { count: 0 });
    let losses: Vec<u16> = events
        .iter()
        .filter(lost)
        .map(|event| event.cpu.0)
        .collect();
    assert_eq!((losses, live.info().lost.uncounted_gaps), (vec![1, 3], 2));
    assert!(events.is_sorted_by_key(|event| event.time_ns));
    assert_eq!(events.first().map(|event| event.cpu.0), Some(1));
    assert!(
        events
            .iter()
            .any(|event| event.cpu.0 == 3 && event.time_ns >= later)
    );
}

#[test]
fn ticks_of_the_tsc_come_with_their_conversion() {
    let tsc = TscToNs {
        mult: 3,
        shift: 1,
        offset_ns: 5_000_000,
    };
    let file = recorded(Recording {
        clock: "x86-tsc".into(),
        tsc: Some(tsc),
        cpus: 4,
        ..Recording::default()
    });
    let reported = last_reported_ns(&file);
    let (events, source) = read(file);
    assert_eq!(source.info().clock.unit, ClockUnit::Ns);
    let last = events.last().expect("events");
    assert_eq!(last.time_ns, (299 * 1_000 + 3) * 3 / 2);
    // The offset is for trace-cmd no part of the time either.
    assert!(reported.is_none_or(|ns| ns == last.time_ns), "{reported:?}");
}

/// The time of the last event that `trace-cmd report` prints; `None` where it is not installed.
fn last_reported_ns(file: &[u8]) -> Option<u64> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.dat");
    std::fs::write(&path, file).expect("written");
    let mut command = std::process::Command::new("trace-cmd");
    let output = command.args(["report", "-t", "-i"]).arg(&path).output();
    let output = output.ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().expect("an event");
    let time = line.split_whitespace().find_map(|word| {
        let (seconds, ns) = word.strip_suffix(':')?.split_once('.')?;
        Some(seconds.parse::<u64>().ok()? * 1_000_000_000 + ns.parse::<u64>().ok()?)
    });
    Some(time.unwrap_or_else(|| panic!("no time: {line}")))
}

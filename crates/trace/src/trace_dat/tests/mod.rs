//! The reader on small files made by hand.

mod build;
mod unpacker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use build::{PAGE, Recipe};
use stealtime_events::{Names, VcpuId};

use super::*;
use crate::tracefs::Endian;
use crate::{ClockUnit, Lost};

fn open(bytes: Vec<u8>) -> TraceDat {
    let len = bytes.len() as u64;
    TraceDat::new(Box::new(bytes), "made", len).expect("a good file")
}

/// All events, and the source after them.
fn read(mut source: TraceDat) -> (Vec<Event>, TraceDat) {
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("no error") {
        events.push(event);
    }
    (events, source)
}

/// Time, CPU and `apicid` of each counted event.
fn summary(events: &[Event]) -> Vec<(u64, u16, u32)> {
    let counted = events.iter().filter(|event| event.kind.is_host_event());
    counted
        .map(|event| match event.kind {
            Kind::KvmEoi {
                apicid,
                vector: 236,
            } => (event.time_ns, event.cpu.0, apicid),
            other => panic!("{other:?}"),
        })
        .collect()
}

/// Two CPUs, the second with an event at the time of one of the first.
fn two_cpus(endian: Endian, long: u8) -> Recipe {
    let recipe = Recipe::new(endian, long);
    let first = vec![
        recipe.page(100, &[(0, 1), (10, 2)], 0),
        recipe.page(200, &[(5, 3)], 0),
    ];
    let second = vec![recipe.page(105, &[(5, 4), (50, 5)], 0)];
    recipe.buffer("", &[first, second])
}

const MERGED: [(u64, u16, u32); 5] = [
    (100, 0, 1),
    (110, 0, 2),
    (110, 1, 4),
    (160, 1, 5),
    (205, 0, 3),
];

#[test]
fn cpus_are_merged_by_time_in_every_form_of_file() {
    for (endian, long) in [(Endian::Little, 8), (Endian::Big, 4), (Endian::Little, 4)] {
        let recipe = two_cpus(endian, long);
        let v7 = ["none", "zlib", "zstd"].map(|compression| recipe.v7(compression));
        for file in v7.into_iter().chain([recipe.v6()]) {
            let (events, source) = read(open(file));
            assert_eq!(summary(&events), MERGED);
            assert_eq!(source.info.notes, []);
            assert_eq!(source.info.recorded, ["kvm_eoi"]);
            // The saved command line comes first.
            let Kind::Task {
                tid: Tid(70), name, ..
            } = events[0].kind
            else {
                panic!("{:?}", events[0])
            };
            assert_eq!(
                (source.names.name(name), events[0].time_ns),
                ("CPU 0/KVM", 100)
            );
        }
    }
}

#[test]
fn named_instances_are_merged_in_and_named() {
    let recipe = two_cpus(Endian::Little, 8);
    let more = vec![recipe.page(90, &[(1, 9)], 0)];
    let mut recipe = recipe
        .buffer("empty", &[vec![], vec![]])
        .buffer("more", &[more, vec![]]);
    for file in [recipe.v6(), recipe.v7("zstd")] {
        let (events, source) = read(open(file));
        let expected: Vec<_> = [(91, 0, 9)].into_iter().chain(MERGED).collect();
        assert_eq!(summary(&events), expected);
        let [note] = &source.info.notes[..] else {
            panic!("{:?}", source.info.notes)
        };
        assert!(
            note.text.contains("\"more\"") && !note.text.contains("empty"),
            "{note:?}"
        );
        assert!(!note.partial);
    }
    recipe.buffers[2].1 = "mono";
    let (_, source) = read(open(recipe.v7("none")));
    let text = &source.info.notes[1].text;
    assert!(
        text.contains("\"more\" has clock mono, others have local"),
        "{text}"
    );
}

#[test]
fn guests_and_times() {
    let mut guest = b"vm1\0\x01\x02\x03\x04\x05\x06\x07\x08".to_vec();
    for number in [1_u32, 3, 555] {
        guest.extend(number.to_le_bytes());
    }
    let recipe = two_cpus(Endian::Little, 8)
        .option(13, &guest)
        .option(7, b"-100\0");
    let (events, source) = read(open(recipe.v6()));
    let Kind::VcpuThread { tid, vm, vcpu } = events[0].kind else {
        panic!("{:?}", events[0])
    };
    assert_eq!(
        (tid, source.names.name(vm), vcpu),
        (Tid(555), "vm1", VcpuId(3))
    );
    assert_eq!(summary(&events)[0].0, 0);

    let tsc: Vec<u8> = [3_u32, 1, 0, 0]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let ticks = two_cpus(Endian::Little, 8).option(4, b"local [x86-tsc]\0");
    let converted = ticks.clone().option(14, &tsc);
    let (events, source) = read(open(converted.v6()));
    assert_eq!(summary(&events)[1].0, 110 * 3 / 2);
    assert_eq!(
        (source.info.clock.unit, source.info.clock.tsc_khz),
        (ClockUnit::Ns, Some(666_666))
    );
    let (events, source) = read(open(ticks.v6()));
    assert_eq!(summary(&events)[1].0, 110);
    assert_eq!(source.info.clock.unit, ClockUnit::Ticks);
    let mut source = open(ticks.v6());
    assert!(source.set_tsc_khz(2_000_000));
    let (events, source) = read(source);
    assert_eq!(summary(&events)[1].0, 55);
    let clock = &source.info.clock;
    assert_eq!(
        (clock.unit, clock.tsc_khz),
        (ClockUnit::Ns, Some(2_000_000))
    );
    assert!(!open(recipe.v6()).set_tsc_khz(2_000_000), "a clock of ns");
}

#[test]
fn a_guests_times_are_by_the_hosts_clock() {
    // CPU 0 is 1000 ahead; CPU 1 was not measured.
    let option = shift::option(0, &[&[(50, 1000, 1, 0), (150, 2000, 1, 0)]], true);
    let recipe = two_cpus(Endian::Little, 8).option(12, &option);
    for file in [recipe.v6(), recipe.v7("zstd")] {
        let (events, source) = read(open(file));
        let times: Vec<_> = summary(&events).iter().map(|it| (it.0, it.1)).collect();
        assert_eq!(times, [(110, 1), (160, 1), (1100, 0), (1110, 0), (1205, 0)]);
        let note = &source.info.notes[0];
        assert!(note.text.contains("shifted to the host's clock") && !note.partial);
    }
    let (events, source) = read(open(two_cpus(Endian::Little, 8).option(12, &[1; 20]).v6()));
    assert_eq!(summary(&events), MERGED);
    assert!(source.info.notes[0].text.contains("not shifted"));
}

#[test]
fn losses_come_before_the_event_after_them() {
    const MISSED: u32 = 1 << 31;
    const STORED: u32 = 1 << 30;
    let recipe = Recipe::new(Endian::Little, 8);
    let mut counted = recipe.page(200, &[(0, 2)], MISSED | STORED);
    counted[16 + 20..16 + 28].copy_from_slice(&44_u64.to_le_bytes());
    let pages = vec![
        recipe.page(100, &[(0, 1)], 0),
        counted,
        recipe.page(300, &[], MISSED),
        recipe.page(400, &[(0, 3)], 0),
    ];
    let (events, source) = read(open(recipe.buffer("", &[pages]).v6()));
    let kinds: Vec<_> = events
        .iter()
        .filter_map(|event| match event.kind {
            Kind::Lost { count } => Some((event.time_ns, Err(count))),
            Kind::KvmEoi { apicid, .. } => Some((event.time_ns, Ok(apicid))),
            _ => None,
        })
        .collect();
    assert_eq!(
        kinds,
        [
            (100, Ok(1)),
            (200, Err(44)),
            (200, Ok(2)),
            (400, Err(0)),
            (400, Ok(3))
        ]
    );
    assert_eq!(
        source.info.lost,
        Lost {
            counted: 44,
            uncounted_gaps: 1
        }
    );
    assert!(!source.info.is_partial());
}

#[test]
fn a_broken_page_or_chunk_is_left_out_and_noted() {
    let recipe = Recipe::new(Endian::Little, 8);
    let mut broken = recipe.page(200, &[(0, 2), (0, 3)], 0);
    // The second event's length: beyond the page.
    broken[16 + 20] = 28;
    let pages = vec![
        recipe.page(100, &[(0, 1)], 0),
        broken,
        recipe.page(300, &[(0, 4)], 0),
    ];
    let recipe = recipe.buffer("", &[pages]);
    let (events, source) = read(open(recipe.v6()));
    assert_eq!(summary(&events), [(100, 0, 1), (200, 0, 2), (300, 0, 4)]);
    assert_eq!(source.info.lost.uncounted_gaps, 1);
    assert!(
        source.info.notes[0].text.contains("1 broken pages"),
        "{:?}",
        source.info.notes
    );
    assert!(source.info.is_partial());

    // Spoil the content of the second chunk.
    let mut file = recipe.v7("zlib");
    let cpu = file.windows(4).rposition(|word| word == [3, 0, 0, 0]);
    let chunks = (cpu.expect("its count of chunks") / PAGE..)
        .next()
        .expect("a page")
        * PAGE;
    let first = u32::from_le_bytes(file[chunks + 4..chunks + 8].try_into().expect("4")) as usize;
    for byte in &mut file[chunks + 4 + 8 + first + 8 + 8..][..8] {
        *byte ^= 0x55;
    }
    let (events, source) = read(open(file));
    assert_eq!(summary(&events), [(100, 0, 1), (300, 0, 4)]);
    assert!(
        events
            .iter()
            .any(|event| event.kind == Kind::Lost { count: 0 })
    );
    assert!(source.info.is_partial());
}

#[test]
fn times_that_go_back_are_given_and_counted() {
    let recipe = Recipe::new(Endian::Little, 8);
    let pages = vec![
        recipe.page(100, &[(0, 1)], 0),
        recipe.page(50, &[(0, 2)], 0),
    ];
    let (events, source) = read(open(recipe.buffer("", &[pages]).v6()));
    assert_eq!(summary(&events), [(100, 0, 1), (50, 0, 2)]);
    assert_eq!(source.info.out_of_order, 1);
}

#[test]
fn hostile_tables_are_bounded() {
    // Options that lead back to themselves.
    let mut file = two_cpus(Endian::Little, 8).v7("none");
    let len = file.len();
    let options = file[27..35].to_vec();
    file[len - 8..].copy_from_slice(&options);
    let (events, source) = read(open(file));
    assert_eq!(summary(&events), MERGED);
    let [note, ..] = &source.info.notes[..] else {
        panic!("nothing noted")
    };
    assert!(note.partial && note.text.contains("lead back"), "{note:?}");

    // Data of many CPUs in one place.
    let recipe = two_cpus(Endian::Little, 8);
    let mut file = recipe.v6();
    let table = file
        .windows(10)
        .position(|word| word == b"flyrecord\0")
        .expect("there")
        + 10;
    let size = (file.len() - PAGE) as u64;
    for (cpu, offset) in [(0, 0_u64), (1, PAGE as u64)] {
        let at = table + cpu * 16;
        file[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        file[at + 8..at + 16].copy_from_slice(&size.to_le_bytes());
    }
    let (_, source) = read(open(file));
    let notes = &source.info.notes;
    assert!(
        notes
            .iter()
            .any(|note| note.text.contains("lies over that of others")),
        "{notes:?}"
    );
}

/// Gives an error behind a position.
struct Failing(Vec<u8>, u64);

impl ReadAt for Failing {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset >= self.1 {
            return Err(io::Error::other("bad sector"));
        }
        self.0.read_at(buffer, offset)
    }
}

#[test]
fn an_error_comes_once_and_after_the_events_before_it() {
    let recipe = Recipe::new(Endian::Little, 8);
    let page = |time| recipe.page(time, &[(0, time as u32)], 0);
    // More than one run of pages.
    let pages: Vec<Vec<u8>> = (0..4096).map(page).collect();
    let file = recipe.clone().buffer("", &[pages]).v6();
    let len = file.len() as u64;
    let input = Failing(file, len - 4096 * PAGE as u64 + (256 << 10));
    let mut source = TraceDat::new(Box::new(input), "made", len).expect("a good start");
    let mut events = 0;
    let error = loop {
        match source.next_event() {
            Ok(Some(event)) => events += u64::from(event.kind.is_host_event()),
            Ok(None) => panic!("no error"),
            Err(error) => break error,
        }
    };
    assert_eq!(events, (256 << 10) / PAGE as u64);
    assert!(error.to_string().contains("bad sector"), "{error}");
    assert!(matches!(source.next_event(), Ok(None)));
}

/// Gives an error at one read, counted down to 0, and none after it.
struct FailingOnce(Vec<u8>, Arc<AtomicI32>);

impl ReadAt for FailingOnce {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        if self.1.fetch_sub(1, Ordering::Relaxed) == 0 {
            return Err(io::Error::other("bad sector"));
        }
        self.0.read_at(buffer, offset)
    }
}

/// A part that the system does not read is not a damaged one: to leave it out would be a wrong answer.
#[test]
fn an_error_of_any_read_ends_the_reading() {
    let recipe = two_cpus(Endian::Little, 8);
    let page = recipe.page(120, &[(0, 6)], 0);
    let recipe = recipe.buffer("second", &[vec![page]]);
    for file in [recipe.v6(), recipe.v7("none")] {
        for number in 0.. {
            let reads = Arc::new(number.into());
            let input = FailingOnce(file.clone(), Arc::clone(&reads));
            let opened = TraceDat::new(Box::new(input), "made", file.len() as u64);
            let result = opened.and_then(|mut source| {
                while source.next_event()?.is_some() {}
                Ok(())
            });
            if reads.load(Ordering::Relaxed) >= 0 {
                assert!(result.is_ok() && number > 5, "{number} reads");
                break;
            }
            let error = result.expect_err("an error of the system").to_string();
            assert!(error.contains("bad sector"), "read {number}: {error}");
        }
    }
}

#[test]
fn lines_of_saved_command_lines() {
    assert_eq!(
        cmdline(b"  77 CPU 0/KVM"),
        Some((Tid(77), &b"CPU 0/KVM"[..]))
    );
    assert_eq!(cmdline(b"77 <...>"), None);
    assert_eq!(cmdline(b"x y"), None);
    assert_eq!(cmdline(b""), None);
}

#[test]
fn a_beginning_is_recognised() {
    assert!(TraceDat::recognise(b"\x17\x08\x44tracing6\0"));
    assert!(!TraceDat::recognise(b"\x17\x08\x44tracin"));
    assert_eq!(TraceDat::HEAD, 10);
}

//! What is written is what is read.

mod kinds;
mod raw;
#[path = "../../../tests/common/taken.rs"]
mod taken;

use std::collections::BTreeMap;
use std::io;

use proptest::prelude::*;
use stealtime_events::{Context, CpuId, NameId, Tid, VcpuId};

use super::*;
use crate::{ClockUnit, EventSource, NameTable, ReadAt, TraceDat};

const FORMS: [(Version, Compression); 3] = [
    (Version::V6, Compression::None),
    (Version::V7, Compression::None),
    (Version::V7, Compression::Zstd),
];

fn form((version, compression): (Version, Compression)) -> Options {
    Options {
        version,
        compression,
        ..Options::default()
    }
}

fn event(time_ns: u64, cpu: u16, kind: Kind) -> Event {
    Event {
        time_ns,
        tid: Tid(77),
        cpu: CpuId(cpu),
        context: Context::default(),
        kind,
    }
}

fn write(events: &[Event], names: &NameTable, options: Options) -> (Vec<u8>, Stats) {
    let mut file = Vec::new();
    let mut writer = TraceDatWriter::new(options).expect("good options");
    for event in events {
        writer.push(event, names).expect("room");
    }
    let stats = writer.finish(&mut file).expect("memory");
    assert_eq!(stats.bytes, file.len() as u64);
    (file, stats)
}

/// All events of a file, and the source after them.
fn read(file: Vec<u8>) -> (Vec<Event>, TraceDat) {
    let len = file.len() as u64;
    let mut source = TraceDat::new(Box::new(file), "written", len).expect("a good file");
    let mut events = Vec::new();
    while let Some(event) = source.next_event().expect("no error") {
        events.push(event);
    }
    (events, source)
}

/// An event with its names spelled out: tables differ.
fn spelled(event: &Event, names: &dyn Names) -> (u64, u16, i32, u8, String) {
    let mut kind = event.kind;
    let name = taken::take_name(&mut kind);
    let text = format!("{kind:?} {}", names.name(name));
    let (cpu, tid) = (event.cpu.0, event.tid.0);
    (event.time_ns, cpu, tid, event.context.bits(), text)
}

type Spelled = (u64, u16, i32, u8, String);

/// Host events in the order in which a reader gives them: by time, at equal times by CPU.
fn in_order(events: &[Event], names: &dyn Names) -> Vec<Spelled> {
    let host = events.iter().filter(|event| event.kind.is_host_event());
    let mut all: Vec<_> = host.map(|event| spelled(event, names)).collect();
    all.sort_by_key(|event| (event.0, event.1));
    all
}

/// Names of events and functions, good ones.
fn names() -> (NameTable, Vec<NameId>) {
    let mut names = NameTable::default();
    let ids = ["kvm_fpu", "apic_timer_fn", "0xffffffff81000010", "kvm_exit"];
    let ids = ids.map(|name| names.intern(name)).to_vec();
    (names, ids)
}

/// A file, and a second handle on it that the system refuses to read.
struct Halved(Vec<u8>);

impl ReadAt for Halved {
    fn read_at(&mut self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buffer, offset)
    }

    fn handle(&self) -> Option<Box<dyn ReadAt>> {
        struct Refused;
        impl ReadAt for Refused {
            fn read_at(&mut self, _: &mut [u8], _: u64) -> io::Result<usize> {
                Err(io::Error::other("bad sector"))
            }
        }
        Some(Box::new(Refused))
    }
}

#[test]
fn symbols_that_cannot_be_read_are_an_error_and_not_addresses() {
    let (names, ids) = names();
    let start = |time_ns, function| {
        let (hrtimer, expires_ns) = (0x10, time_ns + 1);
        let kind = Kind::HrtimerStart {
            hrtimer,
            function,
            expires_ns,
        };
        event(time_ns, 0, kind)
    };
    let nameless = [event(1, 0, Kind::KvmEntry { vcpu: VcpuId(0) })];
    let named = [nameless[0], start(2, ids[1]), start(3, ids[1])];
    for (events, is_good) in [(&nameless[..], true), (&named[..], false)] {
        let (file, _) = write(events, &names, form(FORMS[0]));
        let len = file.len() as u64;
        let mut source = TraceDat::new(Box::new(Halved(file)), "made", len).expect("a good start");
        let mut read = Vec::new();
        let end = source.next_events(10, &mut read);
        match end {
            Ok(more) => assert!(is_good && !more),
            Err(error) => assert!(
                !is_good && error.to_string().contains("bad sector"),
                "{error}"
            ),
        }
        let mut again = Vec::new();
        assert!(matches!(source.next_events(10, &mut again), Ok(false)));
        assert!(again.is_empty());
    }
}

#[test]
fn every_kind_comes_back_as_it_was() {
    let (names, ids) = names();
    let kinds = kinds::every(&ids);
    // The list has every tracepoint that is written.
    for point in tracepoint::all().filter(|point| !point.is_read_only()) {
        let is_there = kinds
            .iter()
            .any(|kind| kind.tracepoint() == Some(point.name));
        assert!(is_there, "no {}", point.name);
    }
    let mut events: Vec<Event> = (0_u64..)
        .zip(&kinds)
        .map(|(at, kind)| Event {
            tid: Tid((at as i32).wrapping_mul(0x0101_0101)),
            context: Context::from_bits(at as u8),
            ..event(1 << 40 | at, at as u16 % 3, *kind)
        })
        .collect();
    events.push(event(u64::MAX, 2, kinds[0]));
    for options in FORMS.map(form) {
        let (file, stats) = write(&events, &names, options);
        let (back, source) = read(file);
        assert_eq!(in_order(&back, source.names()), in_order(&events, &names));
        assert_eq!(source.info().notes, []);
        assert_eq!(stats.events, events.len() as u64);
        let named = |kind: &&Kind| matches!(kind, Kind::Other { .. });
        assert_eq!(stats.named_only, kinds.iter().filter(named).count() as u64);
    }
}

#[test]
fn names_that_a_description_cannot_hold_are_changed_but_stay_apart() {
    let mut names = NameTable::default();
    let ids = ["a\nprint fmt: b", "", " x ", "tick [kvm]\n"].map(|name| names.intern(name));
    let kinds = ids.map(|name| Kind::Other { name });
    let functions = ids.map(|callback| Kind::IpiSendCpumask { callback });
    let events: Vec<_> = kinds
        .iter()
        .chain(&functions)
        .map(|kind| event(5, 0, *kind))
        .collect();
    let (back, source) = read(write(&events, &names, Options::default()).0);
    let decoded: Vec<_> = in_order(&back, source.names())
        .into_iter()
        .map(|event| event.4)
        .collect();
    let shown = |kind: &str, name: &str| format!("{kind} {name}");
    let other = "Other { name: NameId(0) }";
    let mask = "IpiSendCpumask { callback: NameId(0) }";
    assert_eq!(
        decoded,
        [
            shown(other, "a_print fmt: b"),
            shown(other, "unnamed"),
            shown(other, "x"),
            shown(other, "tick [kvm]"),
            shown(mask, "a_print_fmt:_b"),
            shown(mask, ""),
            shown(mask, "_x_"),
            shown(mask, "tick_[kvm]_"),
        ]
    );
}

#[test]
fn losses_come_before_the_event_after_them() {
    let names = NameTable::default();
    let entry = Kind::KvmEntry { vcpu: VcpuId(0) };
    let lost = |cpu, count| event(3, cpu, Kind::Lost { count });
    let mut events = vec![lost(0, 44), event(5, 0, entry), event(6, 1, entry)];
    events.extend([
        lost(1, 7),
        lost(1, 3),
        event(8, 1, entry),
        lost(0, 9),
        lost(0, 0),
    ]);
    events.extend([event(9, 0, entry), lost(1, 2)]);
    for options in FORMS.map(form) {
        let (file, stats) = write(&events, &names, options);
        let (back, source) = read(file);
        let decoded: Vec<_> = back
            .iter()
            .map(|event| match event.kind {
                Kind::Lost { count } => (event.time_ns, event.cpu.0, Some(count)),
                _ => (event.time_ns, event.cpu.0, None),
            })
            .collect();
        let expected = [
            (5, 0, Some(44)),
            (5, 0, None),
            (6, 1, None),
            (8, 1, Some(10)),
        ];
        assert_eq!(decoded[..4], expected);
        assert_eq!(decoded[4..], [(8, 1, None), (9, 0, Some(0)), (9, 0, None)]);
        // What was lost after the last event is known all the same.
        let lost = source.info().lost;
        assert_eq!((lost.counted, lost.uncounted_gaps), (44 + 10 + 2, 1));
        assert_eq!((stats.losses, stats.events), (6, 4));
    }
}

#[test]
fn a_full_page_has_room_for_the_number_of_its_losses() {
    let names = NameTable::default();
    let entry = Kind::KvmEntry { vcpu: VcpuId(0) };
    let mut events = vec![event(0, 0, Kind::Lost { count: u64::MAX })];
    events.extend((0..10_000).map(|time| event(time, 0, entry)));
    let (back, source) = read(write(&events, &names, Options::default()).0);
    assert_eq!(in_order(&back, source.names()), in_order(&events, &names));
    assert_eq!(back[0].kind, events[0].kind);
    assert_eq!(source.info().notes, []);
}

#[test]
fn tasks_processes_and_vcpus_are_known_again() {
    let mut names = NameTable::default();
    let mut task = |tid, process, name: &str| {
        let name = names.intern(name);
        let (tid, process) = (Tid(tid), Tid(process));
        event(10, 0, Kind::Task { tid, process, name })
    };
    let mut events = vec![
        task(77, 70, "CPU 0/KVM"),
        task(78, 70, "CPU 1/KVM"),
        task(300, 0, "bash"),
        task(5, 0, "longer_than_a_comm_may_be"),
    ];
    let renamed = task(300, 0, "ls");
    let vm = names.intern("guest one");
    for (tid, vcpu) in [(77, 0), (78, 1)] {
        let (tid, vcpu) = (Tid(tid), VcpuId(vcpu));
        events.push(event(10, 0, Kind::VcpuThread { tid, vm, vcpu }));
    }
    let wakes = |time, tid| {
        let (tid, prio, target_cpu) = (Tid(tid), 120, 0);
        event(
            time,
            0,
            Kind::SchedWaking {
                tid,
                prio,
                target_cpu,
            },
        )
    };
    events.extend([wakes(20, 300), renamed, wakes(30, 300), wakes(40, 77)]);
    for options in FORMS.map(form) {
        let (back, source) = read(write(&events, &names, options).0);
        let shown: Vec<String> = back
            .iter()
            .map(|event| match event.kind {
                Kind::Task { tid, process, name } => {
                    format!("{} {} {}", tid.0, process.0, source.names().name(name))
                }
                Kind::VcpuThread { tid, vm, vcpu } => {
                    format!("{} {} {}", tid.0, vcpu.0, source.names().name(vm))
                }
                _ => event.time_ns.to_string(),
            })
            .collect();
        let vcpus = ["77 0 guest one", "78 1 guest one"];
        let tasks = [
            "77 70 CPU 0/KVM",
            "78 70 CPU 1/KVM",
            "300 0 bash",
            "5 0 longer_than_a_c",
        ];
        assert_eq!(shown[..6], [&vcpus[..], &tasks].concat());
        assert_eq!(shown[6..], ["20", "300 0 ls", "30", "40"]);
    }
}

#[test]
fn what_is_known_of_the_host_is_said() {
    let names = NameTable::default();
    let ticks = |unit| Clock {
        name: "x86-tsc".into(),
        unit,
        tsc_khz: None,
    };
    for (clock, unit) in [
        (ticks(ClockUnit::Ticks), ClockUnit::Ticks),
        (ticks(ClockUnit::Ns), ClockUnit::Ns),
        (Clock::default(), ClockUnit::Ns),
    ] {
        for form in FORMS {
            let options = Options {
                clock: clock.clone(),
                cpus: 9,
                uname: Some("Linux host 7.2".into()),
                recorded: vec!["kvm_entry".into(), "kvm_fpu".into(), "kvm_exit".into()],
                ..self::form(form)
            };
            let set = event(
                123_456_789_012_345_678,
                3,
                Kind::KvmSetIrq { gsi: 1, level: 0 },
            );
            let (back, source) = read(write(&[set], &names, options).0);
            assert_eq!(back, [set]);
            let info = source.info();
            assert_eq!((&info.clock.name, info.clock.unit), (&clock.name, unit));
            assert_eq!(
                (info.cpus, info.uname.as_deref()),
                (Some(9), Some("Linux host 7.2"))
            );
            assert_eq!(
                info.recorded,
                ["kvm_entry", "kvm_exit", "kvm_fpu", "kvm_set_irq"]
            );
        }
    }
}

#[test]
fn without_events_the_file_says_so() {
    for options in FORMS.map(form) {
        let (file, stats) = write(&[], &NameTable::default(), options);
        let (back, source) = read(file);
        assert_eq!((back.len(), stats.events), (0, 0));
        let [note] = &source.info().notes[..] else {
            panic!("{:?}", source.info().notes)
        };
        assert!(note.text.contains("no events") && !note.partial, "{note:?}");
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    let refused = |options| match TraceDatWriter::new(options) {
        Ok(_) => panic!("not refused"),
        Err(error) => error.to_string(),
    };
    let packed = form((Version::V6, Compression::Zstd));
    assert!(refused(packed).contains("write version 7"));
    let mut options = Options::default();
    options.clock.name = "local] [mono".into();
    assert!(refused(options).contains("not the name of a trace clock"));

    let mut names = NameTable::default();
    let mut writer = TraceDatWriter::new(Options::default()).expect("good");
    let error = (0..70_000).find_map(|at| {
        let name = names.intern(&format!("event_{at}"));
        writer
            .push(&event(at, 0, Kind::Other { name }), &names)
            .err()
    });
    let error = error.expect("more names than IDs").to_string();
    assert!(error.contains("event_65"), "{error}");
}

/// Takes so many bytes.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let count = buffer.len().min(self.0);
        self.0 -= count;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_output_that_is_full_is_an_error_wherever_it_ends() {
    let names = NameTable::default();
    let events: Vec<_> = (0..2000)
        .map(|at| event(at, 0, Kind::SoftirqExit { vec: 1 }))
        .collect();
    let len = write(&events, &names, Options::default()).0.len();
    for room in [0, 10, len / 2, len - 1] {
        let mut writer = TraceDatWriter::new(Options::default()).expect("good");
        for event in &events {
            writer.push(event, &names).expect("a spool");
        }
        let written = writer.finish(&mut Full(room));
        assert!(matches!(written, Err(WriteError::Io(_))), "{room}");
    }
}

/// Time from one event to the next.
fn gap() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => Just(0_u64),
        8 => 1_u64..1000,
        1 => prop::sample::select(vec![(1 << 27) - 1, 1 << 27, (1 << 27) + 1]),
        1 => prop::sample::select(vec![1 << 40, (1 << 59) - 1, 1 << 59]),
    ]
}

fn cpu() -> impl Strategy<Value = u16> {
    prop_oneof![8 => 0_u16..3, 1 => prop::sample::select(vec![7, 300, u16::MAX])]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn streams_in_the_order_of_time_come_back(
        start in prop::sample::select(vec![0_u64, 1 << 58, u64::MAX >> 1]),
        steps in prop::collection::vec((gap(), cpu(), any::<prop::sample::Index>(), any::<u8>()), 0..600),
        form in prop::sample::select(FORMS.to_vec()),
    ) {
        let (names, ids) = names();
        let kinds = kinds::every(&ids);
        let mut time = start;
        let events: Vec<Event> = steps.iter().map(|(gap, cpu, kind, bits)| {
            time = time.saturating_add(*gap);
            Event { context: Context::from_bits(*bits), ..event(time, *cpu, kinds[kind.index(kinds.len())]) }
        }).collect();
        let (file, stats) = write(&events, &names, self::form(form));
        let (back, source) = read(file);
        prop_assert_eq!(in_order(&back, source.names()), in_order(&events, &names));
        prop_assert_eq!(source.info().out_of_order, 0);
        prop_assert_eq!(stats.out_of_order, 0);
        prop_assert!(!source.info().is_partial());
    }

    /// Whatever the times are, each CPU's events and losses come in the order in which they went in.
    #[test]
    fn each_cpu_keeps_its_order(
        steps in prop::collection::vec((any::<u64>(), 0_u32..64, 0_u16..3, 0_u64..9), 0..300),
        form in prop::sample::select(FORMS.to_vec()),
    ) {
        let names = NameTable::default();
        let events: Vec<Event> = steps.iter().map(|(time, shift, cpu, what)| {
            let kind = match what {
                0 => Kind::Lost { count: time & 3 },
                _ => Kind::KvmSetIrq { gsi: *what as u32, level: 0 },
            };
            event(time >> shift, *cpu, kind)
        }).collect();
        let (back, source) = read(write(&events, &names, self::form(form)).0);
        prop_assert_eq!(by_cpu(&back), by_cpu(&merged(&events)));
        prop_assert!(!source.info().is_partial());
    }
}

/// Losses as a page can say them: one before an event, at its time, and none after the last.
fn merged(events: &[Event]) -> Vec<Event> {
    let mut all = Vec::new();
    let mut lost: BTreeMap<u16, u64> = BTreeMap::new();
    for event in events {
        if let Kind::Lost { count } = event.kind {
            let sum = match lost.get(&event.cpu.0) {
                None => count,
                Some(before) if *before == 0 || count == 0 => 0,
                Some(before) => before + count,
            };
            lost.insert(event.cpu.0, sum);
            continue;
        }
        if let Some(count) = lost.remove(&event.cpu.0) {
            all.push(Event {
                kind: Kind::Lost { count },
                ..*event
            });
        }
        all.push(*event);
    }
    all
}

fn by_cpu(events: &[Event]) -> BTreeMap<u16, Vec<(u64, Kind)>> {
    let mut all: BTreeMap<u16, Vec<_>> = BTreeMap::new();
    for event in events {
        all.entry(event.cpu.0)
            .or_default()
            .push((event.time_ns, event.kind));
    }
    all
}

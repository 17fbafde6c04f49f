//! Recordings re-written as trace.dat, sound ones and damaged ones: every event of the host is there
//! again.

use std::path::{Path, PathBuf};

use stealtime_events::{Event, Names};
use stealtime_trace::write::{Compression, Options, TraceDatWriter, Version};
use stealtime_trace::{EventSource, Options as ReadOptions, open, open_read};

use crate::common::{self, taken::take_name};
use crate::recordings::one_of_each_series;

/// Time, CPU, task, context, and what happened with its names spelled out.
type Spelled = (u64, u16, i32, u8, String);

fn spelled(event: &Event, names: &dyn Names) -> Spelled {
    let mut kind = event.kind;
    let name = take_name(&mut kind);
    let text = format!("{kind:?} {}", plain(names.name(name)));
    let (cpu, tid) = (event.cpu.0, event.tid.0);
    (event.time_ns, cpu, tid, event.context.bits(), text)
}

/// A name as a file can hold it, whether of an event or of a function.
fn plain(name: &str) -> String {
    let name = name.replace(|c: char| c.is_control() || c.is_whitespace(), "_");
    name.trim_matches('_').to_owned()
}

/// What a source has, in the order of time and CPUs, and the same of what was written of it.
fn rewritten(source: &mut dyn EventSource, options: Options) -> [Vec<Spelled>; 2] {
    let mut file = Vec::new();
    let mut writer = TraceDatWriter::new(options).expect("good options");
    let mut before = Vec::new();
    // A damaged file may end in an error: what came before it is written.
    while let Ok(Some(event)) = source.next_event() {
        writer.push(&event, source.names()).expect("room");
        if event.kind.is_host_event() {
            before.push(spelled(&event, source.names()));
        }
    }
    writer.describe(source.info());
    writer.finish(&mut file).expect("memory");
    let mut again = common::open(file).expect("a good file");
    let mut after = Vec::new();
    while let Some(event) = again.next_event().expect("no error") {
        if event.kind.is_host_event() {
            after.push(spelled(&event, again.names()));
        }
    }
    assert!(!again.info().is_partial(), "{:?}", again.info().notes);
    let mut both = [before, after];
    for events in &mut both {
        events.sort_by_key(|event| (event.0, event.1));
    }
    both
}

fn compressed() -> Options {
    Options {
        version: Version::V7,
        compression: Compression::Zstd,
        ..Options::default()
    }
}

fn assert_every_event_is_there_again(options: fn() -> Options) {
    let root =
        std::env::var_os("STEALTIME_TRACES").map_or_else(|| common::SMALL.into(), PathBuf::from);
    let found = one_of_each_series(&root);
    assert!(found.len() >= 6, "{found:?}");
    for path in found {
        let mut source = open(&path).expect("a good file");
        let [before, after] = rewritten(&mut *source, options());
        assert_eq!(before.len(), after.len(), "{}", path.display());
        let differ = before
            .iter()
            .zip(&after)
            .find(|(before, after)| before != after);
        assert_eq!(differ, None, "{}", path.display());
    }
}

// A test for each version, so that both run at once.
#[test]
fn every_event_of_every_recording_is_there_again() {
    assert_every_event_is_there_again(Options::default);
}

#[test]
fn every_event_of_every_recording_is_there_again_compressed() {
    assert_every_event_is_there_again(compressed);
}

/// Bytes changed all over a file, the same in each run.
#[test]
fn whatever_a_damaged_recording_says_can_be_written() {
    let mut seed = 1_u64;
    let mut random = move || {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize
    };
    let mut written = 0;
    for name in [
        "pvmhost-lost-events-ring/trace.dat",
        "pvmhost-ticketlock-idle-text/trace.txt.zst",
        "svm-lost-events-hackbench-hog-timer/perf.data.zst",
    ] {
        let whole = common::bytes(Path::new(common::SMALL).join(name).as_ref());
        for _ in 0..25 {
            let mut damaged = whole.clone();
            for _ in 0..20 {
                let at = random() % damaged.len();
                damaged[at] ^= random() as u8;
            }
            let input = Box::new(std::io::Cursor::new(damaged));
            let Ok(mut source) = open_read(name, input, &ReadOptions::default()) else {
                continue;
            };
            let [before, after] = rewritten(&mut *source, Options::default());
            written += before.len();
            assert_eq!(before, after, "{name}");
        }
    }
    assert!(written > 10_000, "{written}");
}

//! Events that are written and read again: those of hostile pages, so that fields have any values.

use stealtime_events::{Event, Kind, Names};
use stealtime_report::perfetto::{Exporter, Options as ExportOptions};
use stealtime_trace::EventSource;
use stealtime_trace::write::{Compression, Options, TraceDatWriter, Version};

use super::{analyze, open, trace_dat};
use reading::Reading;

/// Perfetto's reading of a trace, of the tests of `report`.
#[path = "../../crates/report/tests/common/mod.rs"]
#[expect(
    dead_code,
    clippy::duplicate_mod,
    reason = "the tests of report and of the command have it too"
)]
mod reading;

#[path = "../../crates/trace/tests/common/taken.rs"]
mod taken;

/// Time, CPU, task, context, and the kind with its names spelled out.
type Spelled = (u64, u16, i32, u8, Kind, String);

/// Writes a trace.dat of the events of another one: it has the same events.
pub fn rewrite(data: &[u8]) {
    let (form, data) = data.split_first().unwrap_or((&0, &[]));
    let (version, compression) = match form {
        ..128 => (Version::V6, Compression::None),
        128..240 => (Version::V7, Compression::None),
        240.. => (Version::V7, Compression::Zstd),
    };
    let Ok(mut source) = open(trace_dat::file(data)) else {
        return;
    };
    let options = Options {
        version,
        compression,
        ..Options::default()
    };
    let mut writer = TraceDatWriter::new(options).expect("good options");
    let mut before = Vec::new();
    while let Ok(Some(event)) = source.next_event() {
        writer.push(&event, source.names()).expect("room");
        before.extend(spelled(&event, source.names()));
    }
    writer.describe(source.info());
    let mut file = Vec::new();
    writer.finish(&mut file).expect("memory");
    let mut again = open(file).expect("a sound file");
    let mut after = Vec::new();
    while let Some(event) = again.next_event().expect("a sound file") {
        after.extend(spelled(&event, again.names()));
    }
    assert!(!again.info().is_partial(), "{:?}", again.info().notes);
    for events in [&mut before, &mut after] {
        events.sort_by_key(|event| (event.0, event.1));
    }
    assert_eq!(before, after);
}

/// An event of the host, independent of the table of names.
fn spelled(event: &Event, names: &dyn Names) -> Option<Spelled> {
    let mut kind = event.kind;
    let name = taken::take_name(&mut kind);
    let name = names.name(name).to_owned();
    let (cpu, tid) = (event.cpu.0, event.tid.0);
    kind.is_host_event()
        .then(|| (event.time_ns, cpu, tid, event.context.bits(), kind, name))
}

/// Exports the events to Perfetto: its decoder finds a well-formed trace.
pub fn export(data: &[u8]) {
    let Ok(mut source) = open(trace_dat::file(data)) else {
        return;
    };
    let mut events = Vec::new();
    let answers = analyze(&mut source, |event| events.push(*event));
    let mut bytes = Vec::new();
    let mut exporter =
        Exporter::new(&mut bytes, &answers, ExportOptions::default()).expect("a vector takes all");
    for event in &events {
        exporter
            .event(event, source.names())
            .expect("a vector takes all");
    }
    exporter.finish().expect("a vector takes all");
    // Begins have ends, flows end once, names and tracks are known.
    let reading = Reading::new(&bytes);
    for slice in &reading.slices {
        assert!(slice.begin <= slice.end, "{slice:?}");
    }
}

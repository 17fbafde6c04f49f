//! The bodies of the fuzz targets for recordings. A test of the command (`tests/corpus.rs`) runs them with
//! the committed corpus.

pub mod choices;
mod head;
pub mod perf_data;
mod record;
pub mod trace_dat;
mod written;

use std::io::Cursor;

use stealtime_analysis::{Analysis, Answers, Options};
use stealtime_events::Event;
use stealtime_trace::{EventSource, TraceDat};
pub use written::{export, rewrite};

/// Events that a small input cannot have: more are a loop.
const MAX_EVENTS: u64 = 50_000_000;

/// Reads all events of a recording and analyses them. Errors are valid outcomes; panics, hangs and wrong
/// sums are faults.
pub fn read_all(data: &[u8]) {
    let input = Box::new(Cursor::new(data.to_vec()));
    if let Ok(mut source) = stealtime_trace::open_read("fuzz", input, &Default::default()) {
        analyze(&mut *source, |_| {});
    }
}

/// trace.dat from any bytes, behind its magic number.
pub fn read_trace_dat(data: &[u8]) {
    read_plain_trace_dat(with_magic(b"\x17\x08\x44tracing", data));
}

/// trace.dat with a sound beginning and hostile pages.
pub fn read_trace_dat_pages(data: &[u8]) {
    read_plain_trace_dat(trace_dat::file(data));
}

/// perf.data, file and pipe mode, from any bytes.
pub fn read_perf_data(data: &[u8]) {
    read_all(&with_magic(b"PERFILE2", data));
}

/// perf.data, file and pipe mode, with sound headers and hostile records.
pub fn read_perf_records(data: &[u8]) {
    read_all(&perf_data::file(data));
}

/// ftrace text from any bytes.
pub fn read_text(data: &[u8]) {
    read_all(&with_magic(b"# tracer: nop\n", data));
}

/// Without the recognition of containers and compressions, which `read_all` has.
fn read_plain_trace_dat(bytes: Vec<u8>) {
    if let Ok(mut source) = open(bytes) {
        analyze(&mut source, |_| {});
    }
}

/// Opens bytes as a trace.dat.
fn open(bytes: Vec<u8>) -> Result<TraceDat, stealtime_trace::ReadError> {
    let len = bytes.len() as u64;
    TraceDat::new(Box::new(bytes), "fuzz", len)
}

/// Analyses all events of a source, which `observe` gets too.
fn analyze(source: &mut dyn EventSource, mut observe: impl FnMut(&Event)) -> Answers {
    let mut analysis = Analysis::new(Options::default());
    let mut events = 0;
    while let Ok(Some(event)) = source.next_event() {
        analysis.event(&event, source.names());
        observe(&event);
        events += 1;
        assert!(events < MAX_EVENTS, "a reader that does not end");
    }
    let answers = analysis.finish(source.names());
    for vcpu in &answers.vcpus {
        let parts = vcpu.on_cpu_ns + vcpu.halt_ns + vcpu.preempted_ns + vcpu.wake_wait_ns;
        assert_eq!(parts, vcpu.span_ns, "{vcpu:?}");
    }
    answers
}

/// The data, with the magic of a format before it unless it is there already.
fn with_magic(magic: &[u8], data: &[u8]) -> Vec<u8> {
    if data.starts_with(magic) {
        data.to_vec()
    } else {
        [magic, data].concat()
    }
}

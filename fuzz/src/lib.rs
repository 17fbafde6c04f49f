//! What fuzz targets do: read a recording to its end, and analyse what it gives. A test of the
//! command (`tests/corpus.rs`) does it with the committed corpus.

use std::io::Cursor;

use stealtime_analysis::{Analysis, Options};

/// Events after which a small input must have ended: more would be a loop.
const MAX_EVENTS: u64 = 50_000_000;

/// Reads all events of a recording and analyses them. Errors are fine; panics, hangs and parts that
/// do not add up are not.
pub fn read_all(data: &[u8]) {
    let input = Box::new(Cursor::new(data.to_vec()));
    let Ok(mut source) = stealtime_trace::open_read("fuzz", input, &Default::default()) else {
        return;
    };
    let mut analysis = Analysis::new(Options::default());
    let mut events = 0;
    while let Ok(Some(event)) = source.next_event() {
        analysis.event(&event, source.names());
        events += 1;
        assert!(events < MAX_EVENTS, "a reader that does not end");
    }
    let answers = analysis.finish(source.names());
    for vcpu in &answers.vcpus {
        let parts = vcpu.on_cpu_ns + vcpu.halt_ns + vcpu.preempted_ns + vcpu.wake_wait_ns;
        assert_eq!(parts, vcpu.span_ns, "{vcpu:?}");
    }
}

/// trace.dat from any bytes: its magic comes first, unless it is there.
pub fn read_trace_dat(data: &[u8]) {
    read_all(&with_magic(b"\x17\x08\x44tracing", data));
}

/// perf.data, file and pipe mode, from any bytes.
pub fn read_perf_data(data: &[u8]) {
    read_all(&with_magic(b"PERFILE2", data));
}

/// ftrace text from any bytes.
pub fn read_text(data: &[u8]) {
    read_all(&with_magic(b"# tracer: nop\n", data));
}

/// The data, with the magic of a format before it unless it is there already.
fn with_magic(magic: &[u8], data: &[u8]) -> Vec<u8> {
    if data.starts_with(magic) {
        data.to_vec()
    } else {
        [magic, data].concat()
    }
}

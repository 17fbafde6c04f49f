//! The body of the fuzz targets for readers: reads a recording to its end and analyses its events. A test
//! of the command (`tests/corpus.rs`) does it with the committed corpus.

use std::io::Cursor;

use stealtime_analysis::{Analysis, Options};

/// Events that a small input cannot have: more are a loop.
const MAX_EVENTS: u64 = 50_000_000;

/// Reads all events of a recording and analyses them. Errors are valid outcomes; panics, hangs and wrong
/// sums are faults.
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

/// trace.dat from any bytes, behind its magic number.
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

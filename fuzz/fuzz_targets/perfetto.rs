//! The writer of Perfetto traces: any events make a well-formed trace.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stealtime_fuzz::export(data));

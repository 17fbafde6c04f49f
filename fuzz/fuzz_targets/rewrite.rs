//! The writer of trace.dat: any events are read again as they were written.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stealtime_fuzz::rewrite(data));

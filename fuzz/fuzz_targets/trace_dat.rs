//! trace.dat from any bytes: whatever does not begin like one is made to.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stealtime_fuzz::read_trace_dat(data));

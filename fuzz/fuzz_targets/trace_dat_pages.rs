//! trace.dat with a sound beginning and hostile pages of the ring buffer.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stealtime_fuzz::read_trace_dat_pages(data));

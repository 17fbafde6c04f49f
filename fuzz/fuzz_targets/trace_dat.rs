//! trace.dat from any bytes: whatever does not begin like one is made to.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    stealtime_fuzz::read_all(&stealtime_fuzz::with_magic(b"\x17\x08\x44tracing", data));
});

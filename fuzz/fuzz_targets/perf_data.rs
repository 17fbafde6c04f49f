//! perf.data, file and pipe mode, from any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    stealtime_fuzz::read_all(&stealtime_fuzz::with_magic(b"PERFILE2", data));
});

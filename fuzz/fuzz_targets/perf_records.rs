//! perf.data, file and pipe mode, with sound headers and hostile records.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stealtime_fuzz::read_perf_records(data));

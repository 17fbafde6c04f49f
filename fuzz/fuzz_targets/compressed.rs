//! Anything, as it is: recognition, and the decoders of zstd, xz and gzip.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| stealtime_fuzz::read_all(data));

//! perf.data, file and pipe mode, with sound headers and hostile records.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::read_perf_records);

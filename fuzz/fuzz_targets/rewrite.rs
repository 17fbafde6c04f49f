//! The writer of trace.dat: any events are read again as they were written.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::rewrite);

//! The writer of Perfetto traces: any events make a well-formed trace.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::export);

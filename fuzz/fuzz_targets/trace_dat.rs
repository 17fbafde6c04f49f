//! trace.dat from any bytes: whatever does not begin like one is made to.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::read_trace_dat);

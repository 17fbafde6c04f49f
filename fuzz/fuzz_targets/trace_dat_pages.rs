//! trace.dat with a sound beginning and hostile pages of the ring buffer.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::read_trace_dat_pages);

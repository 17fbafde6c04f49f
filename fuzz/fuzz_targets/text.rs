//! ftrace text from any bytes.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::read_text);

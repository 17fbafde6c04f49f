//! Anything, as it is: recognition, and the decoders of zstd, xz and gzip.
#![no_main]

#[macro_use]
mod target;

target!(stealtime_fuzz::read_all);

//! The vocabulary of a virtualization host: time, identities and typed events. No I/O.
#![no_std]

//! Mechanisms that give guests their time back, as real hypervisor code.
//!
//! `no_std`, no dependencies, sans-I/O: state in, event in, actions out. A
//! simulator, an interleaving checker, a VMM or a kernel calls the same code.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod counter;
pub mod directed_yield;
pub mod events;
pub mod fair;
pub mod halt_poll;
pub mod ipi_tracking;
pub mod lag_credit;
pub mod lapic;
pub mod lapic_timer;
pub mod posted_interrupt;
pub mod vmx;
pub mod wakeup_batch;
pub mod word;

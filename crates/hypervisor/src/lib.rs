//! Mechanisms that give guests their time back, as real hypervisor code.
//!
//! `no_std`, no dependencies, sans-I/O: state in, event in, actions out. A
//! simulator, an interleaving checker, a VMM or a kernel calls the same code.
//!
//! The feature `alloc` (on by default) adds what needs memory of its own: [`fair`], [`lag_credit`],
//! [`lapic::ApicBus`], and ready-made wakeup lists. Without it the crate neither allocates nor divides 128
//! bits by a call.
#![no_std]
#![forbid(unsafe_code)]

#[cfg(feature = "alloc")]
extern crate alloc;

pub mod counter;
pub mod directed_yield;
pub mod events;
#[cfg(feature = "alloc")]
pub mod fair;
pub mod halt_poll;
pub mod ipi_tracking;
#[cfg(feature = "alloc")]
pub mod lag_credit;
pub mod lapic;
pub mod lapic_timer;
#[cfg(test)]
#[cfg(feature = "alloc")]
mod messages;
pub mod posted_interrupt;
#[cfg(feature = "alloc")]
pub mod scx;
pub mod vmx;
pub mod wakeup_batch;
mod wide;
pub mod word;

/// The examples of README.md, as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

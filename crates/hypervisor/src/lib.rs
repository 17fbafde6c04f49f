//! Mechanisms that give guests their time back, as real hypervisor code.
//!
//! `no_std`, no dependencies, sans-I/O: state in, event in, actions out. A simulator, an interleaving
//! checker, a VMM or a kernel calls the same code.
//!
//! | mechanism | modules | counterpart |
//! |---|---|---|
//! | posted interrupts, notification suppression | [`posted_interrupt`], [`vmx`] | KVM's `vmx/posted_intr.c` |
//! | posted timers | [`lapic_timer`], [`lapic`] | KVM's `lapic.c` |
//! | batched wakeups of a multicast IPI | [`wakeup_batch`] | Xen's `smp.c` and `softirq.c` |
//! | counters as offsets | [`counter`] | KVM's `KVM_GET_CLOCK` and `KVM_VCPU_TSC_OFFSET`, arm64's offsets |
//! | semantics-aware directed yield | [`directed_yield`], [`ipi_tracking`], [`lag_credit`] | KVM's `kvm_vcpu_on_spin` |
//! | the fair class below it, EEVDF and CFS | [`fair`] | Linux 7.2, `kernel/sched/fair.c` |
//! | the same yield under sched_ext | [`scx`] | `scx_stealtime` |
//! | halt polling | [`halt_poll`] | KVM's `kvm_main.c` |
//!
//! All five mechanisms also have what was posted and is not merged; each module names its sources.
//!
//! What several CPUs access is generic over [`word::AtomicWord`]: `AtomicU64` in production, an
//! instrumented word under a checker. [`events::Events`] counts, by default nothing.
//!
//! Each module begins with an example. `examples/vcpu_loop.rs` is a vCPU's loop that uses several of them.
//!
//! The feature `alloc` (on by default) adds what needs memory of its own: [`fair`], [`lag_credit`],
//! [`scx`], [`lapic::ApicBus`], and ready-made wakeup lists. Without it the crate neither allocates nor
//! divides 128 bits by a call.
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

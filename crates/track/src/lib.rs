//! The scheduling state of a host, kept once: events in, closed spans out.
//!
//! ```text
//!  events ──▶ Tracker ──▶ Observer: analysis sums spans, Perfetto prints them, the timeline paints them,
//!                                   replay builds scripts from the switches and wakeups of all threads
//! ```
//!
//! All readers need the same state: each CPU's current task, each thread's state, and the occupant of
//! the CPU that a thread waits for. [`Tracker`] follows it and calls an [`Observer`] with each part
//! that is over. A vCPU's thread goes through these states:
//!
//! ```text
//!            first sign, or a loss
//!                     │                    sched_switch, runnable
//!  Unknown ───────────┼──────▶ Running ─────────────────────────▶ Preempted
//!     ▲   shows up on │           │ ▲  sched_switch to it               │
//!     │   a CPU       │           │ └───────────────────────────────────┤
//!     │               │           ▼ sched_switch, asleep                │
//!     └── lost ── any state    Sleeping ── sched_wakeup ──▶ Waking ─────┘
//! ```
//!
//! While it runs it is in the guest or in an exit ([`Mode`]). A task that ends is `Dead`, from
//! `sched_process_exit` or a switch with such a state on. These rules hold for all readers:
//!
//! - An event's task is current on the event's CPU: the ring buffer records `current->pid`. If another
//!   one is known to be current, a switch is missing, and the old task is unknown since that CPU's
//!   latest event.
//! - A loss makes the current task of its CPU and the tasks in its run queue unknown, since that CPU's
//!   latest event. A wait that ended on another CPU meanwhile is retracted.
//! - A thread with a wakeup as its first event was asleep. A CPU's first task has run since the begin.
//! - `prev_state` is read by [`SwitchOut`], thread ids by [`Threads`], names by [`names`].
//!
//! It does no I/O and depends on `events` alone. Each table has a limit. An endless stream needs bounded
//! memory if its observer sets [`Observer::RECYCLES`]: then new threads get the numbers of dead ones.

mod cause;
mod cpu;
mod host;
mod hrtimers;
mod int_map;
mod links;
mod loss;
pub mod names;
mod observer;
mod reasons;
mod stretches;
mod switch;
mod switch_out;
mod threads;
mod timers;
mod tracker;
mod vcpu;
mod wait;

pub use cause::Cause;
pub use hrtimers::{Hrtimers, LONGEST_SLICE_NS, TimerExpiry, TimerReport, TimerStart, TimerUse};
pub use int_map::IntMap;
pub use links::Links;
pub use observer::{
    Accept, CpuSpan, Exit, FoundCurrent, FunctionSeen, Halt, Loss, Observer, Place, Retracted,
    Span, Switch, SwitchedOut, ThreadRef, Waker, Wakeup, Waking,
};
pub use reasons::{ReasonIndex, Reasons};
pub use stretches::Stretches;
pub use switch_out::SwitchOut;
pub use threads::{Thread, ThreadIndex, Threads};
pub use timers::Function;
pub use tracker::{LONGEST_SILENCE_NS, Tracker};
pub use vcpu::{Mode, Run, Vcpu, VcpuIndex};
pub use wait::{OpenWait, Wait};

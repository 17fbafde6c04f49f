//! LAPIC timer emulation: where a guest's timer runs and how its interrupt gets in.
//!
//! - [`LapicTimer`] is the timer of one vCPU, as a state machine: register writes, expiries,
//!   blocking and migration come in, [`Action`]s come out. Three backends: the VMX preemption
//!   timer, an hrtimer, and an hrtimer on another CPU that posts.
//! - [`TimerPolicy`] chooses among them.
//! - [`place_hrtimer`] says on which CPU an hrtimer lands, and when the housekeeping CPU refuses.
//! - [`arithmetic`], [`hv_timer`] and [`advance`] are pure functions, recorded kernel by recorded
//!   kernel.
//!
//! All times are parameters: nanoseconds of the host's monotonic clock (`_ns`), host TSC cycles
//! (`host_tsc`) and guest TSC cycles (`_deadline`).
//!
//! Sources: Intel SDM vol. 3 "APIC timer", "VMX-preemption timer"; Linux
//! `arch/x86/kvm/lapic.c`, `arch/x86/kvm/vmx/vmx.c`, `kernel/time/hrtimer.c`,
//! `get_nohz_timer_target` in `kernel/sched/core.c`.

mod actions;
pub mod advance;
pub mod arithmetic;
mod housekeeping;
pub mod hv_timer;
mod observed;
mod policy;
mod registers;
mod timer;
mod tsc;

pub use actions::{Action, Actions};
pub use housekeeping::{CpuTimers, NoSuchCpu, Placement, TimerRequest, place_hrtimer};
pub use observed::Observed;
pub use policy::{TimerEnvironment, TimerPolicy, UnknownTimerPolicy};
pub use timer::{Expiry, LapicTimer, Now, TimerMode, TimerParameters};
pub use tsc::{GuestTsc, InvalidTsc};

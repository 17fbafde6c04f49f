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
//! ```
//! use stealtime_hypervisor::lapic_timer::{
//!     Action, GuestTsc, LapicTimer, Now, TimerEnvironment, TimerParameters,
//! };
//! use stealtime_hypervisor::posted_interrupt::VcpuMode;
//!
//! // A 2.5 GHz guest without HLT exits, on an isolated CPU.
//! let tsc = GuestTsc::new(2_500_000, GuestTsc::NEUTRAL, 0)?;
//! let mut timer = LapicTimer::new(TimerParameters::default(), tsc);
//! let env = TimerEnvironment {
//!     pi_inject_timer: true, apicv: true, mwait_in_guest: false, hlt_in_guest: true,
//!     hv_shift: Some(5), on_housekeeping_cpu: false, wants_to_run: true,
//! };
//! timer.write_lvt(0x400ec); // TSC deadline, vector 0xec
//! let start = Now { ns: 0, host_tsc: 0 };
//! let armed = timer.write_tscdeadline(250_000, start, &env, &());
//! assert!(armed.contains(Action::StartHrtimer { at_ns: 99_000 })); // 1 us in advance
//!
//! // It fires on a housekeeping CPU and is posted to the running vCPU.
//! let late = Now { ns: 100_000, host_tsc: 250_000 };
//! let fired = timer.hrtimer_fired(late, VcpuMode::InGuest, &env, &());
//! assert!(fired.contains(Action::Post { vector: 0xec }));
//! # Ok::<(), stealtime_hypervisor::lapic_timer::InvalidTsc>(())
//! ```
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
pub use arithmetic::{BusCycle, BusCycleOutOfRange};
pub use housekeeping::{CpuTimers, NoSuchCpu, Placement, TimerRequest, place_hrtimer};
pub use observed::Observed;
pub use policy::{TimerEnvironment, TimerPolicy, UnknownTimerPolicy};
pub use timer::{Expiry, LapicTimer, Now, PreparedTsc, TimerMode, TimerParameters};
pub use tsc::{GuestTsc, InvalidTsc};

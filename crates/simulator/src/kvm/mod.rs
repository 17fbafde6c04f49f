//! KVM: vCPU threads, the run loop, interrupts on their way to guests.

mod deliver;
mod exit;
mod halt;
mod ipiv;
mod load;
mod run;
mod spin;
mod timer;
mod tracking;

use core::cell::Cell;

use stealtime_hypervisor::directed_yield::YieldState;
use stealtime_hypervisor::directed_yield::ple::PleWindow;
use stealtime_hypervisor::halt_poll::{Halt, HaltPoll};
use stealtime_hypervisor::lapic::Lapic;
use stealtime_hypervisor::lapic_timer::LapicTimer;
use stealtime_hypervisor::posted_interrupt::{PostedVcpu, SharedVcpu};

pub(crate) use exit::{Exit, IpiMask, IpiTo};

use crate::at::At;
use crate::guest::GuestCpu;
use crate::ids::{TaskNr, TimerNr, VmNr};

/// The word type of everything shared: the simulator has one thread.
pub(crate) type Word = Cell<u64>;

/// Where a vCPU's thread is in the run loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum VcpuRun {
    /// About to look at requests and to enter.
    Ready,
    /// On the way into the guest, interrupts off.
    Entering,
    /// In the guest.
    Guest,
    /// On the way out of the guest, interrupts off.
    Exiting,
    /// An exit is handled with interrupts off, and the guest is entered again.
    Fast,
    /// An exit is handled.
    Handling,
    /// An IPI of the guest is sent, one receiver after the other (Xen).
    Sending,
    /// Halted, polling.
    Polling,
    /// Halted, asleep or about to be.
    Blocked,
}

/// A vCPU.
#[derive(Debug)]
pub(crate) struct Vcpu {
    pub(crate) vm: VmNr,
    /// Index within the VM; its APIC id too.
    pub(crate) index: u32,
    pub(crate) task: TaskNr,
    pub(crate) run: VcpuRun,
    /// The exit that is being taken or handled, or was last.
    pub(crate) exit: Exit,
    pub(crate) shared: SharedVcpu<Word>,
    pub(crate) posted: PostedVcpu,
    pub(crate) lapic: Lapic,
    pub(crate) timer: LapicTimer,
    pub(crate) hrtimer: TimerNr,
    /// Host time at which the preemption timer fires, while in the guest.
    pub(crate) hv_at: At,
    pub(crate) halt_poll: HaltPoll,
    pub(crate) halt: Option<HaltState>,
    pub(crate) ple: PleWindow,
    pub(crate) yields: YieldState<Word>,
    /// A vector to be injected at the next entry, without APICv.
    pub(crate) inject: Option<u8>,
    /// An exit is wanted when the guest can take an interrupt.
    pub(crate) window: bool,
    /// Its VM is stopped, and its thread sleeps until it runs again.
    pub(crate) parked: bool,
    pub(crate) guest: GuestCpu,
    /// When the step in progress in the guest ends by itself.
    pub(crate) step_ends: u64,
    /// Counts spins and polls, so that late messages about old ones are known.
    pub(crate) turn: u32,
    pub(crate) books: crate::books::RunningBooks,
}

/// A halt in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HaltState {
    pub(crate) halt: Halt,
    pub(crate) since_ns: u64,
    pub(crate) poll_ns: u64,
    pub(crate) waited: bool,
}

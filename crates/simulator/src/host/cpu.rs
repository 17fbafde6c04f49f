//! What a CPU of the host does.

use std::collections::VecDeque;

use stealtime_events::{Context, Tid};
use stealtime_hypervisor::fair::{Resched, RqId};

use super::Irq;
use crate::engine::Slot;
use crate::ids::{CpuNr, TaskNr, TimerNr};

/// What a CPU is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In an idle state.
    Idle,
    /// On its way out of an idle state.
    IdleExit,
    /// In a host interrupt's handler.
    Irq(Irq),
    /// Switching to its task.
    Switch,
    /// Running its task (a vCPU in guest mode included).
    Run,
}

/// What a CPU does after a step of its task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Flow {
    /// Nothing until its timer or an interrupt: time passes.
    Wait,
    /// Takes interrupts, reschedules if that is requested, and goes on with its task.
    Continue,
    /// Picks a task (`schedule()`).
    Schedule,
    /// Its task sleeps or ends; then it picks another.
    Block,
    /// Goes on with its task.
    Run,
}

/// A CPU that is interrupted between two phases, and what it does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Resume {
    pub(crate) cpu: CpuNr,
    pub(crate) flow: Flow,
}

/// A CPU of the host.
#[derive(Clone, Debug)]
pub(crate) struct Cpu {
    pub(crate) rq: RqId,
    /// Its task's thread id, as events show it.
    pub(crate) tid: Tid,
    pub(crate) phase: Phase,
    /// Fires when the phase is over.
    pub(crate) timer: Slot,
    /// Time owed for what was done at an instant, in ns.
    pub(crate) debt_ns: u64,
    /// The task with its data in the caches.
    pub(crate) warm: Option<TaskNr>,
    /// Interrupts that wait at its LAPIC.
    pub(crate) pending: Irq,
    pub(crate) irqs_off: bool,
    /// It takes no interrupts before this time, in ns.
    pub(crate) stalled_until: u64,
    /// The L1 data cache may hold what a guest must not learn (`kvm_cpu_l1tf_flush_l1d`).
    pub(crate) l1d_unsafe: bool,
    /// Its task may not be switched out now.
    pub(crate) preempt_off: bool,
    pub(crate) resched: Resched,
    /// Its task; `None` for the idle task.
    pub(crate) current: Option<TaskNr>,
    pub(crate) idle: super::idle::IdleCpu,
    /// Armed hrtimers with their times, the first to expire first, and of those of one time the one
    /// that was armed first.
    pub(crate) hrtimers: VecDeque<(u64, TimerNr)>,
    pub(crate) clock_event: Slot,
    pub(crate) tick: TimerNr,
    pub(crate) hrtick: TimerNr,
    /// Interrupts of devices that wait here.
    pub(crate) devices: Vec<super::message::DeviceIrq>,
    /// Tasks that run or wait here.
    pub(crate) runnable: u32,
    /// When the last target of its ICR has accepted, in xAPIC mode, in ns.
    pub(crate) icr_idle_at: u64,
    /// The core's other thread has a task.
    pub(crate) slow: bool,
    /// Up to when its task's time is charged to a limit, in ns.
    pub(crate) charged_ns: u64,
    pub(crate) balance: super::balance::Balance,
    pub(crate) housekeeping: bool,
    pub(crate) isolated: bool,
}

impl Cpu {
    /// The thread and the flags of `common_flags` that its events show.
    pub(super) fn context(&self) -> (Tid, u8) {
        let handler = match self.phase {
            Phase::Irq(_) => Context::HARDIRQ | Context::IRQS_OFF,
            _ => 0,
        };
        let resched = match self.resched {
            Resched::None => 0,
            Resched::Lazy => Context::NEED_RESCHED_LAZY,
            Resched::Now => Context::NEED_RESCHED | Context::PREEMPT_RESCHED,
        };
        (self.tid, handler | resched)
    }
}

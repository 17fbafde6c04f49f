//! One vCPU thread: its state in the scheduler, and its mode on a CPU.

use stealtime_events::{NameId, VcpuId};

use crate::observer::{Span, Waker};
use crate::timers::Armed;
use crate::{Cause, ReasonIndex, ThreadIndex};

/// A vCPU thread's number, dense from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VcpuIndex(pub u32);

impl VcpuIndex {
    /// As an index of tables.
    #[must_use]
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// A thread's state in the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Run {
    /// Nothing is known: before the first sign of the thread, or since events were lost.
    #[default]
    Unknown,
    /// On a CPU.
    Running,
    /// Runnable, in a run queue, after a switch away from it.
    Preempted,
    /// Woken, not yet on a CPU.
    Waking,
    /// Asleep.
    Sleeping,
    /// It has exited.
    Dead,
}

/// The mode of a thread that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// No entry or exit was seen since its state became known.
    #[default]
    Unknown,
    /// In the guest.
    Guest,
    /// Outside the guest, for this reason.
    Exit(ReasonIndex),
}

/// A wait in a CPU's run queue that ended on another CPU, or in its run queue. No event of the first CPU
/// confirms the wait, so a loss of its events can still make it doubtful.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeftQueue {
    pub(crate) cpu: u16,
    pub(crate) start: u64,
    pub(crate) end: u64,
    pub(crate) run: Run,
    /// Whether it stood in the CPU's list of waiters, so that its spans have causes.
    pub(crate) is_queued: bool,
}

/// A vCPU thread.
#[derive(Debug)]
pub struct Vcpu {
    pub(crate) thread: ThreadIndex,
    pub(crate) id: VcpuId,
    pub(crate) is_seen: bool,
    pub(crate) recorded_vm: Option<NameId>,
    /// Nothing at all was seen of it yet.
    pub(crate) is_unborn: bool,
    pub(crate) run: Run,
    pub(crate) mode: Mode,
    /// End of the time that was reported in spans, in ns of the trace's clock.
    pub(crate) since: u64,
    pub(crate) cpu: u16,
    /// Whether it stands in that CPU's list of waiters.
    pub(crate) is_queued: bool,
    /// When it last became a current task, in ns.
    pub(crate) run_start: u64,
    /// When it last entered or left the guest, in ns.
    pub(crate) mode_start: u64,
    /// When its latest sleep began, in ns.
    pub(crate) slept_at: u64,
    /// Number of losses when it fell asleep: with another number at its switch in, its wakeup may be lost.
    pub(crate) sleep_losses: u64,
    /// Time of its `sched_waking` in ns, until it runs, and the CPU in it.
    pub(crate) woken_at: Option<u64>,
    pub(crate) woken_on: u16,
    /// What woke it, until it runs.
    pub(crate) waker: Option<Waker>,
    /// Begin of its wait, in ns, over all CPUs that it waits for.
    pub(crate) wait_start: u64,
    /// Begin of its wait for `cpu`, in ns.
    pub(crate) queue_start: u64,
    pub(crate) left_queue: Option<LeftQueue>,
    /// The unnamed hrtimer that its thread started last: it may be the LAPIC's.
    pub(crate) started_timer: Option<Armed>,
}

impl Vcpu {
    /// A vCPU that exists from `begin` on, in ns, in an unknown state.
    pub(crate) fn new(thread: ThreadIndex, id: VcpuId, begin: u64) -> Self {
        Self {
            thread,
            id,
            is_seen: false,
            recorded_vm: None,
            is_unborn: true,
            run: Run::Unknown,
            mode: Mode::Unknown,
            since: begin,
            cpu: 0,
            is_queued: false,
            run_start: begin,
            mode_start: begin,
            slept_at: begin,
            sleep_losses: 0,
            woken_at: None,
            woken_on: 0,
            waker: None,
            wait_start: 0,
            queue_start: 0,
            left_queue: None,
            started_timer: None,
        }
    }

    /// Its thread.
    #[must_use]
    pub const fn thread(&self) -> ThreadIndex {
        self.thread
    }

    /// Its number in its VM.
    #[must_use]
    pub const fn id(&self) -> VcpuId {
        self.id
    }

    /// Whether KVM events were seen in its context: without any, a thread that is only named like a
    /// vCPU is none.
    #[must_use]
    pub const fn is_seen(&self) -> bool {
        self.is_seen
    }

    /// Whether anything was seen of its thread, such as a switch or a wakeup.
    #[must_use]
    pub const fn is_present(&self) -> bool {
        !self.is_unborn
    }

    /// The guest's name that the recording gives.
    #[must_use]
    pub const fn recorded_vm(&self) -> Option<NameId> {
        self.recorded_vm
    }

    /// Its state in the scheduler.
    #[must_use]
    pub const fn run(&self) -> Run {
        self.run
    }

    /// Whether it waits for a CPU.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.run, Run::Preempted | Run::Waking)
    }

    /// Closes the span up to `now`, in ns; `None` for an empty one.
    #[inline]
    pub(crate) fn close_span(&mut self, now: u64, cause: Cause) -> Option<Span> {
        if now <= self.since {
            return None;
        }
        let start = std::mem::replace(&mut self.since, now);
        (self.run != Run::Dead).then_some(Span {
            run: self.run,
            mode: self.mode,
            start,
            end: now,
            cpu: self.cpu,
            cause,
        })
    }

    /// It no longer waits for its CPU but for `target`, or runs there. To be called before it is taken
    /// out of the queue. Returns whether it waited for another CPU.
    pub(crate) fn leaves_queue_for(&mut self, target: u16, now: u64) -> bool {
        if target == self.cpu || !self.is_waiting() {
            return false;
        }
        self.left_queue = Some(LeftQueue {
            cpu: self.cpu,
            start: self.queue_start,
            end: now,
            run: self.run,
            is_queued: self.is_queued,
        });
        true
    }

    /// Whether the latest event of it is a `sched_waking` for this CPU: it may have run there since, if
    /// the CPU's events were lost.
    pub(crate) const fn was_sent_to(&self, cpu: u16) -> bool {
        matches!(self.run, Run::Sleeping | Run::Unknown) && self.woken_on == cpu
    }

    /// Its state is unknown from here on.
    pub(crate) fn forget(&mut self) {
        self.run = Run::Unknown;
        self.is_unborn = false;
        self.mode = Mode::Unknown;
        self.woken_at = None;
        self.waker = None;
        self.started_timer = None;
    }
}

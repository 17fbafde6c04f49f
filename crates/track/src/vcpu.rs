//! One vCPU thread: what the scheduler does with it and what it does.

use stealtime_events::{NameId, VcpuId};

use crate::observer::{Span, Waker};
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

/// What the scheduler does with a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Run {
    /// Nothing is known: before the first sign of the thread, or since events were lost.
    #[default]
    Unknown,
    /// On a CPU.
    Running,
    /// Runnable; another task has its CPU.
    Preempted,
    /// Woken, not yet on a CPU.
    Waking,
    /// Asleep.
    Sleeping,
    /// It has exited.
    Dead,
}

/// What a thread does when it runs.
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

/// A wait in a CPU's run queue that ended elsewhere: on another CPU, or in the run queue of one. The
/// CPU itself was not there to see it, so a loss of its events can still make the wait doubtful.
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
    /// Up to here its time was reported.
    pub(crate) since: u64,
    pub(crate) cpu: u16,
    /// Whether it stands in that CPU's list of waiters.
    pub(crate) is_queued: bool,
    /// When it last got a CPU.
    pub(crate) run_start: u64,
    /// When it last entered or left the guest.
    pub(crate) mode_start: u64,
    /// When its latest sleep began.
    pub(crate) slept_at: u64,
    /// How many losses there were when it fell asleep.
    pub(crate) sleep_losses: u64,
    /// When `sched_waking` of it was seen, and for which CPU.
    pub(crate) woken_at: Option<u64>,
    pub(crate) woken_on: u16,
    /// What woke it, until it runs.
    pub(crate) waker: Option<Waker>,
    /// Since when it waits for a CPU.
    pub(crate) wait_start: u64,
    /// Since when it waits for this CPU.
    pub(crate) queue_start: u64,
    pub(crate) left_queue: Option<LeftQueue>,
    /// The hrtimer that its thread started last, and its expiry.
    pub(crate) started_timer: Option<(u64, u64)>,
}

impl Vcpu {
    /// A vCPU of which nothing is known from `since` on.
    pub(crate) fn new(thread: ThreadIndex, id: VcpuId, since: u64) -> Self {
        Self {
            thread,
            id,
            is_seen: false,
            recorded_vm: None,
            is_unborn: true,
            run: Run::Unknown,
            mode: Mode::Unknown,
            since,
            cpu: 0,
            is_queued: false,
            run_start: since,
            mode_start: since,
            slept_at: since,
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

    /// The guest's name that the recording gives.
    #[must_use]
    pub const fn recorded_vm(&self) -> Option<NameId> {
        self.recorded_vm
    }

    /// What the scheduler does with it.
    #[must_use]
    pub const fn run(&self) -> Run {
        self.run
    }

    /// Whether it waits for a CPU.
    pub(crate) const fn is_waiting(&self) -> bool {
        matches!(self.run, Run::Preempted | Run::Waking)
    }

    /// Its time up to `now`, which becomes reported; `None` where there is none.
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

    /// It no longer waits for its CPU but for `other`, or runs there. To be called before it is taken
    /// out of the queue. Whether that was so.
    pub(crate) fn leaves_queue_for(&mut self, other: u16, now: u64) -> bool {
        if other == self.cpu || !self.is_waiting() {
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

    /// Its wakeup was seen by the CPU that sent it; whether the CPU that it was sent to has let it run
    /// since is not known.
    pub(crate) const fn was_sent_to(&self, cpu: u16) -> bool {
        matches!(self.run, Run::Sleeping | Run::Unknown) && self.woken_on == cpu
    }

    /// What it does is not known from here on.
    pub(crate) fn forget(&mut self) {
        self.run = Run::Unknown;
        self.is_unborn = false;
        self.mode = Mode::Unknown;
        self.woken_at = None;
        self.waker = None;
        self.started_timer = None;
    }
}

//! One CPU of the host: its current task, its interrupts, its run queue of vCPUs.

use crate::observer::CpuSpan;
use crate::{Cause, ThreadIndex, VcpuIndex};

/// Most waiters of one CPU with waits that are split by cause; further ones have the cause `UNKNOWN`.
/// Each change of the current task visits all of them, so the list must not grow without bound.
const MAX_WAITERS: usize = 1024;
/// Deepest nesting of interrupts with causes of their own: softirq, hard interrupt, and one more each
/// for NMIs and nested handlers.
const MAX_DEPTH: usize = 4;

/// An interrupt request that the current task has raised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    /// In ns of the trace's clock.
    pub(crate) time: u64,
    pub(crate) vcpu: VcpuIndex,
    /// The vector, `None` where the event does not have it.
    pub(crate) vector: Option<u8>,
}

/// A task as a CPU keeps it, so that an event of the current task costs one comparison.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Current {
    pub(crate) thread: ThreadIndex,
    pub(crate) tid: i32,
    pub(crate) vcpu: Option<VcpuIndex>,
}

/// A CPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Cpu {
    /// The task on it, `None` if not known.
    pub(crate) current: Option<Current>,
    /// Whether it had an event: only the first one shows the state since the begin of the trace.
    pub(crate) is_seen: bool,
    /// Time of its latest event, in ns of the trace's clock.
    pub(crate) last: u64,
    /// Time of the switch to the current task, in ns.
    switched: u64,
    /// vCPUs in its run queue.
    waiters: Vec<VcpuIndex>,
    /// Interrupts being handled, innermost last.
    nest: [Option<Cause>; MAX_DEPTH],
    depth: usize,
    /// The vCPU that owns the LAPIC timer which is just expiring here.
    pub(crate) expiring: Option<VcpuIndex>,
    /// The IPI that the current vCPU's exit is about.
    pub(crate) sent: Option<Sent>,
    /// The APIC id of the vCPU at which the current vCPU has just made an interrupt pending.
    pub(crate) accepted: Option<u32>,
}

impl Cpu {
    /// The current task as a vCPU.
    #[inline]
    pub(crate) fn vcpu(&self) -> Option<VcpuIndex> {
        self.current.and_then(|current| current.vcpu)
    }

    /// The current task.
    pub(crate) fn thread(&self) -> Option<ThreadIndex> {
        self.current.map(|current| current.thread)
    }

    /// The occupant of the CPU: the innermost interrupt handler, else the current task.
    pub(crate) fn cause(&self) -> Cause {
        let task = self.thread().map_or(Cause::UNKNOWN, Cause::task);
        match self.depth {
            0 => task,
            depth => self.nest[depth.min(MAX_DEPTH) - 1].unwrap_or(Cause::UNKNOWN),
        }
    }

    /// An interrupt handler begins.
    pub(crate) fn enter(&mut self, cause: Cause) {
        if let Some(slot) = self.nest.get_mut(self.depth) {
            *slot = Some(cause);
        }
        self.depth = self.depth.saturating_add(1);
    }

    /// An interrupt handler ends.
    pub(crate) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// No handler runs: an event in task context shows it, or events were lost. Time since the latest
    /// boundary then counts for the task.
    pub(crate) fn leave_all(&mut self) {
        self.depth = 0;
    }

    /// Whether an interrupt handler is known to run.
    #[inline]
    pub(crate) const fn in_interrupt(&self) -> bool {
        self.depth > 0
    }

    /// vCPUs that wait for it.
    #[inline]
    pub(crate) fn waiters(&self) -> &[VcpuIndex] {
        &self.waiters
    }

    /// Puts a vCPU into the run queue; `false` if it is full.
    pub(crate) fn push_waiter(&mut self, vcpu: VcpuIndex) -> bool {
        let fits = self.waiters.len() < MAX_WAITERS;
        if fits {
            self.waiters.push(vcpu);
        }
        fits
    }

    /// Takes a vCPU out of the run queue.
    pub(crate) fn remove_waiter(&mut self, vcpu: VcpuIndex) {
        if let Some(position) = self.waiters.iter().position(|&waiter| waiter == vcpu) {
            self.waiters.swap_remove(position);
        }
    }

    /// Takes all of them out.
    pub(crate) fn take_waiters(&mut self) -> Vec<VcpuIndex> {
        std::mem::take(&mut self.waiters)
    }

    /// The exit that a request belongs to is over.
    #[inline]
    pub(crate) fn end_request(&mut self) {
        self.sent = None;
        self.accepted = None;
    }

    /// The current task changes. Returns the span of the previous one, if it was known.
    pub(crate) fn switch(&mut self, number: u16, now: u64, next: Current) -> Option<CpuSpan> {
        let span = self.close(number, now);
        self.current = Some(next);
        self.switched = now;
        self.expiring = None;
        self.end_request();
        span
    }

    /// The CPU's state is unknown since its latest event. Returns the span until that.
    pub(crate) fn forget(&mut self, number: u16) -> Option<CpuSpan> {
        let span = self.close(number, self.last);
        let waiters = self.take_waiters();
        *self = Self {
            is_seen: true,
            last: self.last,
            waiters,
            ..Self::default()
        };
        span
    }

    /// Returns the span of the current task up to `now`. The task stays, and its next span begins there.
    pub(crate) fn split(&mut self, number: u16, now: u64) -> Option<CpuSpan> {
        let span = self.close(number, now);
        self.switched = self.switched.max(now);
        span
    }

    fn close(&self, number: u16, end: u64) -> Option<CpuSpan> {
        let current = self.current?;
        Some(CpuSpan {
            cpu: number,
            thread: current.thread,
            vcpu: current.vcpu,
            start: self.switched,
            // A split can lie behind the latest event.
            end: end.max(self.switched),
        })
    }
}

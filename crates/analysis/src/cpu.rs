//! One CPU of the host: who runs on it, who waits for it.

use crate::options::Window;
use crate::ready::Cause;
use crate::threads::{IDLE, ThreadId};

/// No vCPU.
pub(crate) const NO_VCPU: u32 = u32::MAX;
/// Most waiters of one CPU for whom it is told who had the CPU; the time of further ones has the
/// cause `unknown`.
const MAX_WAITERS: usize = 1024;
/// Deepest nesting of interrupts told apart: hard interrupt, softirq, and one more each for NMIs
/// and nested handlers.
const MAX_DEPTH: usize = 4;

/// An interrupt request that the current task has raised.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sent {
    pub(crate) time: u64,
    pub(crate) vcpu: u32,
    /// The vector, `None` where the event does not tell.
    pub(crate) vector: Option<u8>,
}

/// A CPU.
#[derive(Debug, Clone)]
pub(crate) struct Cpu {
    /// The task on it, `None` if not known.
    pub(crate) current: Option<ThreadId>,
    /// The id of that task, meaningless without one.
    pub(crate) tid: i32,
    /// Its number as a vCPU.
    pub(crate) vcpu: u32,
    /// Whether an event of it was seen.
    pub(crate) was_seen: bool,
    /// When its latest event was.
    pub(crate) last: u64,
    /// When the present task was switched in.
    pub(crate) switched: u64,
    /// Idle time.
    pub(crate) idle: u64,
    /// vCPUs in its run queue.
    pub(crate) waiters: Vec<u32>,
    /// Interrupts being handled, innermost last.
    nest: [Cause; MAX_DEPTH],
    depth: usize,
    /// The vCPU whose LAPIC timer is just expiring here.
    pub(crate) expiring: u32,
    /// The IPI that the current vCPU's exit is about.
    pub(crate) sent: Option<Sent>,
    /// The current vCPU has just made an interrupt pending at the vCPU with this APIC id.
    pub(crate) accepted: Option<u32>,
}

impl Default for Cpu {
    fn default() -> Self {
        Self {
            current: None,
            tid: 0,
            vcpu: NO_VCPU,
            was_seen: false,
            last: 0,
            switched: 0,
            idle: 0,
            waiters: Vec::new(),
            nest: [Cause::UNKNOWN; MAX_DEPTH],
            depth: 0,
            expiring: NO_VCPU,
            sent: None,
            accepted: None,
        }
    }
}

impl Cpu {
    /// Who has the CPU.
    pub(crate) fn cause(&self) -> Cause {
        match self.depth {
            0 => self.current.map_or(Cause::UNKNOWN, Cause::of),
            depth => self.nest[depth.min(MAX_DEPTH) - 1],
        }
    }

    /// An interrupt handler begins.
    pub(crate) fn enter(&mut self, cause: Cause) {
        if let Some(slot) = self.nest.get_mut(self.depth) {
            *slot = cause;
        }
        self.depth = self.depth.saturating_add(1);
    }

    /// An interrupt handler ends.
    pub(crate) fn leave(&mut self) {
        self.depth = self.depth.saturating_sub(1);
    }

    /// No handler runs, whatever was seen: an event in task context says so, or events were lost.
    /// Time since the latest boundary then counts for the task.
    pub(crate) fn leave_all(&mut self) {
        self.depth = 0;
    }

    /// Whether an interrupt handler is known to run.
    pub(crate) const fn in_interrupt(&self) -> bool {
        self.depth > 0
    }

    /// Puts a vCPU into the run queue; `false` if it is full.
    pub(crate) fn push_waiter(&mut self, vcpu: u32) -> bool {
        let fits = self.waiters.len() < MAX_WAITERS;
        if fits {
            self.waiters.push(vcpu);
        }
        fits
    }

    /// Takes a vCPU out of the run queue.
    pub(crate) fn remove_waiter(&mut self, vcpu: u32) {
        if let Some(at) = self.waiters.iter().position(|&waiter| waiter == vcpu) {
            self.waiters.swap_remove(at);
        }
    }

    /// The task on the CPU changes at `now`.
    pub(crate) fn switch(
        &mut self,
        window: &Window,
        number: u16,
        now: u64,
        next: (ThreadId, i32, u32),
    ) {
        if self.current == Some(IDLE) {
            self.idle += window.clip(self.switched, now, number);
        }
        (self.current, self.tid, self.vcpu) = (Some(next.0), next.1, next.2);
        self.switched = now;
        self.expiring = NO_VCPU;
        self.sent = None;
        self.accepted = None;
    }

    /// What runs here is no longer known since `last`.
    pub(crate) fn forget(&mut self, window: &Window, number: u16) {
        if self.current == Some(IDLE) {
            self.idle += window.clip(self.switched, self.last, number);
        }
        let waiters = std::mem::take(&mut self.waiters);
        *self = Self {
            was_seen: true,
            last: self.last,
            idle: self.idle,
            waiters,
            ..Self::default()
        };
    }
}

//! Latencies: wakeups, IPIs, LAPIC timers and interrupt injection.
//!
//! Interrupts are matched through a table of 256 vectors per vCPU: what made the vector pending,
//! and when. Nothing is guessed where an APIC id may mean vCPUs of different VMs.

use crate::stats::Histogram;

/// All [`Waker`](stealtime_track::Waker)s, in the order of the enum, with their names.
pub(crate) const WAKERS: [&str; 5] = ["timer", "ipi", "irq", "task", "unknown"];

/// What fires a vCPU's LAPIC timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Backend {
    /// An hrtimer of the host, delivered by the vCPU itself.
    #[default]
    Hrtimer,
    /// The VMX preemption timer.
    PreemptionTimer,
    /// An hrtimer with a handler that makes the interrupt pending at once (`apic_timer_expired`).
    Posted,
}

/// All backends, in the order of the enum, with their names.
pub(crate) const BACKENDS: [&str; 3] = ["hrtimer", "preemption_timer", "posted"];

/// A vector on its way to the guest.
#[derive(Debug, Clone, Copy, Default)]
struct Pending {
    /// When the ICR was written for it, in ns of the trace's clock, as all times here.
    ipi: Option<u64>,
    /// When it was set in IRR.
    accepted: Option<u64>,
    /// When the timer fired for it, and by what.
    timer: Option<(u64, Backend)>,
    /// When the ICR was written for the one that the guest now handles.
    in_service: Option<u64>,
}

/// Latencies of one vCPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Latencies {
    /// Runnable to running, by waker.
    pub(crate) wakeup: [Histogram; WAKERS.len()],
    pub(crate) ipi_accept: Histogram,
    pub(crate) ipi_inject: Histogram,
    pub(crate) ipi_eoi: Histogram,
    pub(crate) injection: Histogram,
    /// Expiry to injection, by backend.
    pub(crate) timer: [Histogram; BACKENDS.len()],
    pub(crate) timer_expire: Histogram,
    /// Timers with an interrupt that the handler of their hrtimer made pending.
    pub(crate) posted: u64,
    vectors: Option<Box<[Pending; 256]>>,
    /// A timer that fired, in ns, and is not pending as a vector yet.
    fired: Option<(u64, Backend)>,
    /// Whether the trace has an injection of this vCPU: posted interrupts have none.
    injects: bool,
}

impl Latencies {
    /// Events were lost: nothing under way can be trusted.
    pub(crate) fn forget(&mut self) {
        self.vectors = None;
        self.fired = None;
    }

    fn vector(&mut self, vector: u8) -> &mut Pending {
        let vectors = self
            .vectors
            .get_or_insert_with(|| Box::new([Pending::default(); 256]));
        &mut vectors[usize::from(vector)]
    }

    /// A vector was set in IRR; `sent` is when the ICR was written for it.
    pub(crate) fn accept(&mut self, vector: u8, now: u64, sent: Option<u64>, counts: bool) {
        let fired = if sent.is_none() {
            self.fired.take()
        } else {
            None
        };
        if let (Some(sent), true) = (sent, counts) {
            self.ipi_accept.record(now.saturating_sub(sent));
        }
        let injects = self.injects;
        let pending = self.vector(vector);
        // A vector that is pending already is delivered once, and the first request waits longest. Without
        // injections its delivery is not traced, so each request begins anew.
        let is_fresh = pending.accepted.is_none() || !injects;
        if is_fresh {
            pending.accepted = Some(now);
            pending.ipi = sent;
            pending.timer = fired;
        } else {
            pending.ipi = pending.ipi.or(sent);
            pending.timer = pending.timer.or(fired);
        }
    }

    /// Its timer is armed again: what an earlier expiry led to is over.
    pub(crate) fn timer_armed(&mut self) {
        self.fired = None;
    }

    /// Its timer fires.
    pub(crate) fn timer_fires(&mut self, now: u64, backend: Backend) {
        self.fired = Some((now, backend));
    }

    /// The handler of its timer makes the interrupt pending. `by_hardware`: the hardware delivers it, so
    /// no injection follows.
    pub(crate) fn timer_posts(&mut self, now: u64, by_hardware: bool, counts: bool) {
        // Without an expiry, the timer was made pending by a handler that began before the trace.
        if let Some((fired, _)) = self.fired {
            self.fired = (!by_hardware).then_some((fired, Backend::Posted));
            self.posted += u64::from(counts);
            if by_hardware && counts {
                self.timer[Backend::Posted as usize].record(now.saturating_sub(fired));
            }
        }
    }

    /// A vector is injected.
    pub(crate) fn inject(&mut self, vector: u8, now: u64, counts: bool) {
        self.injects = true;
        let pending = std::mem::take(self.vector(vector));
        self.vector(vector).in_service = pending.ipi;
        if !counts {
            return;
        }
        if let Some(accepted) = pending.accepted {
            self.injection.record(now.saturating_sub(accepted));
        }
        if let Some(sent) = pending.ipi {
            self.ipi_inject.record(now.saturating_sub(sent));
        }
        if let Some((fired, backend)) = pending.timer {
            self.timer[backend as usize].record(now.saturating_sub(fired));
        }
    }

    /// The guest has handled a vector.
    pub(crate) fn eoi(&mut self, vector: u8, now: u64, counts: bool) {
        let injects = self.injects;
        let pending = self.vector(vector);
        let mut sent = pending.in_service.take();
        if !injects {
            sent = sent.or(pending.ipi);
            *pending = Pending::default();
        }
        if let (Some(sent), true) = (sent, counts) {
            self.ipi_eoi.record(now.saturating_sub(sent));
        }
    }
}

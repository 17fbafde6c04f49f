//! One vCPU thread: where its time went, and what was counted of it.

use stealtime_track::{Cause, IntMap, Mode, ReasonIndex, Run, Span, Stretches};

use crate::clock_reads::ClockReads;
use crate::doubt::Doubted;
use crate::guest_clock::GuestClock;
use crate::interrupts::HitVectors;
use crate::latency::Latencies;
use crate::options::Window;
use crate::polls::Poll;
use crate::ready;
use crate::series::{Sampled, Samples, Series};
use crate::stats::Durations;
use crate::waits::{Longest, Waits};
use crate::yields::Spinning;

/// Sums in ns, clipped to the selection.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Split {
    pub(crate) guest: u64,
    /// On a CPU while it was not known whether in the guest.
    pub(crate) mode_unknown: u64,
    pub(crate) preempted: u64,
    pub(crate) wake_wait: u64,
    pub(crate) halt: u64,
    pub(crate) blocked: u64,
    pub(crate) poll_useful: u64,
    pub(crate) poll_wasted: u64,
    pub(crate) spin: u64,
    pub(crate) unknown: u64,
}

/// What was counted for one exit reason of one vCPU thread.
#[derive(Debug, Clone, Default)]
pub(crate) struct Slot {
    /// `kvm_exit` events.
    pub(crate) count: u64,
    /// On-CPU time outside the guest.
    pub(crate) ns: u64,
    /// From exit to entry, as perf measures it.
    pub(crate) durations: Durations,
}

/// An exit for which perf waits for the entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    pub(crate) time: u64,
    pub(crate) reason: ReasonIndex,
}

/// Counts of halts, polls, spins and clock writes.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Tally {
    pub(crate) halts: u64,
    pub(crate) poll_success: u64,
    pub(crate) poll_fail: u64,
    pub(crate) poll_success_ns: u64,
    pub(crate) poll_fail_ns: u64,
    pub(crate) poll_grow: u64,
    pub(crate) poll_shrink: u64,
    pub(crate) pause_exits: u64,
    pub(crate) ple_grow: u64,
    pub(crate) ple_shrink: u64,
    pub(crate) ple_window_max: u32,
    pub(crate) switches_in: u64,
    pub(crate) tsc_writes: u64,
    pub(crate) timer_msr_writes: u64,
}

/// Time in the run queue of one CPU, in ns of the trace's clock.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Queued {
    pub(crate) cpu: u16,
    pub(crate) start: u64,
    pub(crate) end: u64,
}

/// The account of a vCPU thread.
#[derive(Debug, Default)]
pub(crate) struct Account {
    /// Whether it entered or left a guest.
    pub(crate) has_exits: bool,
    pub(crate) time: Split,
    pub(crate) slots: Vec<Slot>,
    pub(crate) begun: Option<Begun>,
    /// perf counts a thread from its first entry on.
    pub(crate) perf_counts: bool,

    /// Its latest stretches on a CPU since it last entered or left the guest.
    pub(crate) stretches: Stretches,
    /// Sleep of which it is not yet known whether it was a halt.
    pub(crate) sleep_open: u64,
    /// Whether it sleeps after an exit of class `Halt`.
    pub(crate) sleep_in_halt: bool,

    /// Bandwidth timer expiries until its wait began.
    pub(crate) wait_bandwidth: u64,
    /// Waiting in this wait while its CPU was idle.
    pub(crate) wait_idle: u64,
    /// The same without the selection: whether it is throttling does not depend on the part that is
    /// shown.
    pub(crate) wait_idle_whole: u64,
    /// Its latest wait that ended on another CPU.
    pub(crate) doubted: Option<Doubted>,
    /// Waiting by what had the CPU.
    pub(crate) ready: IntMap<Cause, u64>,
    pub(crate) waits: Waits,
    /// The latest waiting, which no series has yet.
    pub(crate) queued: Queued,
    /// Waiting over time.
    pub(crate) steal_over_time: Series,
    pub(crate) states: Samples,

    pub(crate) spinning: Spinning,
    pub(crate) tally: Tally,
    pub(crate) poll: Poll,
    pub(crate) latencies: Latencies,
    pub(crate) hits: HitVectors,
    /// Offset of its TSC, where it was written in the trace.
    pub(crate) tsc_offset: Option<u64>,
    pub(crate) clock_reads: ClockReads,
    pub(crate) guest_clock: GuestClock,
}

impl Account {
    /// What was counted for the reason.
    #[inline]
    pub(crate) fn slot(&mut self, reason: ReasonIndex) -> &mut Slot {
        let slot = reason.0;
        if slot >= self.slots.len() {
            self.slots.resize_with(slot + 1, Slot::default);
        }
        &mut self.slots[slot]
    }

    /// What was counted, by reason.
    pub(crate) fn reasons(&self) -> impl Iterator<Item = (ReasonIndex, &Slot)> {
        (0..).map(ReasonIndex).zip(&self.slots)
    }

    /// Adds a part of its life.
    #[inline]
    pub(crate) fn add(&mut self, window: &Window, span: &Span) {
        let ns = window.clip(span.start, span.end, span.cpu);
        if span.end.saturating_sub(window.origin()) >= self.states.next() {
            self.sample(window, span);
        }
        match span.run {
            Run::Running => self.add_running(span.mode, ns),
            Run::Sleeping => {
                self.time.halt += ns;
                self.sleep_open += ns;
            }
            Run::Preempted => {
                self.time.preempted += ns;
                self.add_wait(span, ns);
            }
            Run::Waking => {
                self.time.wake_wait += ns;
                self.add_wait(span, ns);
            }
            Run::Unknown => self.time.unknown += ns,
            Run::Dead => debug_assert!(false, "the dead have no spans"),
        }
    }

    fn add_running(&mut self, mode: Mode, ns: u64) {
        match mode {
            Mode::Unknown => self.time.mode_unknown += ns,
            Mode::Guest => {
                self.time.guest += ns;
                self.spinning.add_guest(ns);
            }
            Mode::Exit(reason) => self.slot(reason).ns += ns,
        }
    }

    fn sample(&mut self, window: &Window, span: &Span) {
        let state = match span.run {
            Run::Running => Sampled::Running,
            Run::Preempted | Run::Waking => Sampled::Waiting,
            Run::Sleeping => Sampled::Asleep,
            Run::Unknown | Run::Dead => Sampled::Unknown,
        };
        if let Some((start, end)) = window.part(span.start, span.end, span.cpu) {
            self.states.cover(start, end, state);
        }
    }

    fn add_wait(&mut self, span: &Span, ns: u64) {
        let (start, end, cpu) = (span.start, span.end, span.cpu);
        self.waits.add(start, end, cpu, span.cause, ns);
        if span.cause == Cause::IDLE {
            // Whether it was throttled meanwhile shows at the end of the wait.
            self.wait_idle_whole += span.end - span.start;
            self.wait_idle += ns;
        } else if ns > 0 {
            ready::add(&mut self.ready, span.cause, ns);
        }
    }

    /// Ends a wait: decides what idle time in it means. `expiries` counts bandwidth timers.
    pub(crate) fn end_wait(&mut self, run: Run, expiries: u64, longest: Longest) {
        let idle = std::mem::take(&mut self.wait_idle);
        let whole = std::mem::take(&mut self.wait_idle_whole);
        let cause = Cause::of_idle(run, whole, expiries != self.wait_bandwidth);
        if let Some(doubted) = &mut self.doubted {
            doubted.idle.get_or_insert(cause);
        }
        if idle > 0 {
            ready::add(&mut self.ready, cause, idle);
        }
        self.waits.end(run, cause, longest);
    }

    /// Takes up to `ns` out of the on-CPU time of a mode, and returns the amount. Less is left where the
    /// selection cuts the mode's time.
    pub(crate) fn take_back(&mut self, mode: Mode, ns: u64) -> u64 {
        let bucket = match mode {
            Mode::Unknown => &mut self.time.mode_unknown,
            Mode::Guest => &mut self.time.guest,
            Mode::Exit(reason) => &mut self.slot(reason).ns,
        };
        let subtracted = ns.min(*bucket);
        *bucket -= subtracted;
        subtracted
    }

    /// A sleep is over without a `kvm_vcpu_wakeup`: what it was follows from the exit before it.
    pub(crate) fn close_sleep(&mut self) {
        let open = std::mem::take(&mut self.sleep_open);
        if !self.sleep_in_halt {
            self.time.blocked += open;
        }
    }

    /// What it does is not known any more: nothing under way can be trusted.
    pub(crate) fn forget(&mut self) {
        self.spinning.forget();
        self.stretches.clear();
        self.latencies.forget();
        self.hits.forget();
    }
}

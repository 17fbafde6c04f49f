//! Halt polling: what `kvm_vcpu_wakeup` and `kvm_halt_poll_ns` say.
//!
//! `kvm_vcpu_wakeup` comes at the end of a halt and says how long it lasted as a whole. Without a
//! sleep the whole halt was polling. With one, polling is the time between the halt's begin and the
//! switch away, unless the vCPU's polling window is known to be 0: then that time is the way into
//! the scheduler.

use crate::options::Window;
use stealtime_track::{Halt, Mode, Place, ReasonIndex};

use crate::account::Account;

/// How many stretches on a CPU are remembered: a vCPU that is preempted more often while it polls
/// has the earliest of them counted as exit handling.
const STRETCHES: usize = 8;

/// Stretches of a thread on a CPU: from, to, and the CPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Stretches {
    ring: [(u64, u64, u16); STRETCHES],
    next: usize,
}

impl Stretches {
    /// Adds the latest.
    pub(crate) fn push(&mut self, from: u64, to: u64, cpu: u16) {
        if let Some(slot) = self.ring.get_mut(self.next % STRETCHES) {
            *slot = (from, to, cpu);
        }
        self.next = self.next.wrapping_add(1);
    }

    /// Forgets all.
    pub(crate) fn clear(&mut self) {
        if self.next > 0 {
            *self = Self::default();
        }
    }

    /// How much of `[start, end)` was spent on a CPU and is in the selection.
    fn within(&self, window: &Window, start: u64, end: u64) -> u64 {
        let clip =
            |&(from, to, cpu): &(u64, u64, u16)| window.clip(from.max(start), to.min(end), cpu);
        self.ring.iter().map(clip).sum()
    }
}

/// Polling of one vCPU.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Poll {
    /// The window for the next halt, where a change of it was seen.
    window: Option<u32>,
    /// The window for the halt that is just ending: `kvm_halt_poll_ns` comes before
    /// `kvm_vcpu_wakeup`.
    used: Option<u32>,
    /// On-CPU time before sleeps, in halts whose window is not known yet, and how many there were,
    /// whole and in the selection.
    open_ns: u64,
    open: u64,
    open_reason: Option<ReasonIndex>,
    open_wait_ns: u64,
    /// Time taken for halts while no `sched_switch` was seen, and what it was taken from last.
    assumed: (Mode, u64),
    /// Whether a poll ended with success, so that there is a window.
    has_success: bool,
}

impl Account {
    /// `kvm_halt_poll_ns`.
    pub(crate) fn on_poll_window(&mut self, new: u32, old: u32, counts: bool) {
        if counts {
            self.tally.poll_grow += u64::from(new > old);
            self.tally.poll_shrink += u64::from(new < old);
        }
        if self.poll.window.is_none() {
            self.resolve_open_polls(old > 0);
        }
        self.poll.used = Some(old);
        self.poll.window = Some(new);
    }

    /// A halt is over.
    pub(crate) fn on_halt(&mut self, window: &Window, place: &Place, halt: &Halt) {
        let &Halt { start, mode, .. } = halt;
        let (now, cpu) = (place.time, place.cpu);
        let counts = window.has(now, cpu);
        self.tally.halts += u64::from(counts);
        let used = self.poll.used.take().or(self.poll.window);
        if !halt.waited {
            self.poll.has_success |= halt.ns > 0;
            self.stretches.push(halt.running_since, now, cpu);
            let polled = self.stretches.within(window, start, now);
            self.stretches.clear();
            self.time.poll_useful += self.take_back(mode, polled);
            if counts {
                self.tally.poll_success += 1;
                self.tally.poll_success_ns = self.tally.poll_success_ns.saturating_add(halt.ns);
            }
            return;
        }
        if !halt.has_switches {
            // Nothing tells when it slept and when it was woken: the halt as a whole.
            let taken = self.take_back(mode, window.clip(start, now, cpu));
            self.time.halt += taken;
            self.poll.assumed.0 = mode;
            self.poll.assumed.1 += taken;
            return;
        }
        // It slept in KVM, so what was open is a halt.
        self.sleep_open = 0;
        let slept = halt.slept_at;
        let end = used.map_or(slept, |window| {
            slept.min(start.saturating_add(window.into()))
        });
        let polled = self.stretches.within(window, start, end);
        self.stretches.clear();
        let whole = end.saturating_sub(start);
        self.slept_after_poll(mode, used, polled, counts && whole > 0, whole);
    }

    fn slept_after_poll(
        &mut self,
        mode: Mode,
        window: Option<u32>,
        polled: u64,
        counts: bool,
        whole: u64,
    ) {
        match window {
            Some(0) => {}
            Some(_) => {
                self.time.poll_wasted += self.take_back(mode, polled);
                self.tally.poll_fail += u64::from(counts);
                self.tally.poll_fail_ns += if counts { whole } else { 0 };
            }
            None => {
                let reason = match mode {
                    Mode::Exit(reason) => reason,
                    _ => ReasonIndex::NO_EXIT,
                };
                let first = *self.poll.open_reason.get_or_insert(reason);
                if first == reason && mode != Mode::Guest {
                    self.poll.open_ns += polled;
                    self.poll.open += u64::from(counts);
                    self.poll.open_wait_ns += if counts { whole } else { 0 };
                }
            }
        }
    }

    fn resolve_open_polls(&mut self, polled: bool) {
        let poll = &mut self.poll;
        let open_ns = std::mem::take(&mut poll.open_ns);
        let open = std::mem::take(&mut poll.open);
        let whole = std::mem::take(&mut poll.open_wait_ns);
        if polled {
            let reason = poll.open_reason.take().unwrap_or(ReasonIndex::NO_EXIT);
            let mode = if self.has_exits {
                Mode::Exit(reason)
            } else {
                Mode::Unknown
            };
            let taken = self.take_back(mode, open_ns);
            self.time.poll_wasted += taken;
            self.tally.poll_fail += open;
            self.tally.poll_fail_ns += whole;
        }
    }

    /// The trace has `sched_switch` after all: what was taken for a halt before the first of them
    /// was time on a CPU.
    pub(crate) fn undo_assumed_halts(&mut self) {
        let (mode, ns) = std::mem::take(&mut self.poll.assumed);
        self.time.halt -= ns.min(self.time.halt);
        match mode {
            Mode::Exit(reason) => self.slot(reason).ns += ns,
            _ if self.has_exits => self.slot(ReasonIndex::NO_EXIT).ns += ns,
            _ => self.time.mode_unknown += ns,
        }
    }

    /// At the end: a window that never changed and never had success is 0, as every halt longer
    /// than the window would have changed it.
    pub(crate) fn close_polls(&mut self) {
        let polled = self.poll.has_success;
        if self.poll.window.is_none() {
            self.resolve_open_polls(polled);
        }
    }
}

//! Halt polling: what `kvm_vcpu_wakeup` and `kvm_halt_poll_ns` say.
//!
//! `kvm_vcpu_wakeup` comes at the end of a halt and says how long it lasted as a whole. Without a
//! sleep the whole halt was polling. With one, polling is the time between the halt's begin and the
//! switch away, unless the vCPU's polling window is known to be 0: then that time is the way into
//! the scheduler.

use crate::Analysis;
use crate::options::Window;
use crate::vcpu::{Mode, Run};

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
    open_slot: Option<usize>,
    open_wait_ns: u64,
    /// Time taken for halts while no `sched_switch` was seen, and what it was taken from last.
    assumed: (Mode, u64),
    /// Whether a poll ended with success, so that there is a window.
    has_success: bool,
}

impl Analysis {
    /// `kvm_halt_poll_ns`.
    pub(crate) fn on_halt_poll_ns(&mut self, vcpu: u32, now: u64, cpu: u16, change: (u32, u32)) {
        let (new, old) = change;
        let counts = self.window.has(now, cpu);
        let Some(vcpu) = self.vcpus.get_mut(vcpu as usize) else {
            return;
        };
        if counts {
            vcpu.tally.poll_grow += u64::from(new > old);
            vcpu.tally.poll_shrink += u64::from(new < old);
        }
        if vcpu.poll.window.is_none() {
            vcpu.resolve_open_polls(old > 0);
        }
        vcpu.poll.used = Some(old);
        vcpu.poll.window = Some(new);
    }

    /// `kvm_vcpu_wakeup` in the vCPU's own context.
    pub(crate) fn on_vcpu_wakeup(&mut self, index: u32, now: u64, cpu: u16, ns: u64, waited: bool) {
        let has_sched = self.has_sched;
        let cause = self.cause_on(cpu);
        let Some(vcpu) = self.vcpus.get_mut(index as usize) else {
            return;
        };
        vcpu.settle(&self.window, now, cause);
        if vcpu.run != Run::Running {
            return;
        }
        let counts = self.window.has(now, cpu);
        vcpu.tally.halts += u64::from(counts);
        let start = now.saturating_sub(ns).max(vcpu.mode_start);
        let used = vcpu.poll.used.take().or(vcpu.poll.window);
        if !waited {
            vcpu.poll.has_success |= ns > 0;
            vcpu.stretches.push(vcpu.run_start, now, cpu);
            let polled = vcpu.stretches.within(&self.window, start, now);
            vcpu.stretches.clear();
            let taken = vcpu.take_back(vcpu.mode, polled);
            vcpu.time.poll_useful += taken;
            if counts {
                vcpu.tally.poll_success += 1;
                vcpu.tally.poll_success_ns = vcpu.tally.poll_success_ns.saturating_add(ns);
            }
            return;
        }
        if !has_sched {
            // Nothing tells when it slept and when it was woken: the halt as a whole.
            let halted = self.window.clip(start, now, cpu);
            let taken = vcpu.take_back(vcpu.mode, halted);
            vcpu.time.halt += taken;
            vcpu.poll.assumed.0 = vcpu.mode;
            vcpu.poll.assumed.1 += taken;
            return;
        }
        // It slept in KVM, so what was open is a halt.
        vcpu.sleep_open = 0;
        let to = vcpu.slept_at;
        let end = used.map_or(to, |window| to.min(start.saturating_add(u64::from(window))));
        let polled = vcpu.stretches.within(&self.window, start, end);
        vcpu.stretches.clear();
        vcpu.slept_after_poll(
            used,
            polled,
            (start < end) && counts,
            end.saturating_sub(start),
        );
    }
}

impl crate::vcpu::Vcpu {
    fn slept_after_poll(&mut self, window: Option<u32>, polled: u64, counts: bool, whole: u64) {
        match window {
            Some(0) => {}
            Some(_) => {
                let taken = self.take_back(self.mode, polled);
                self.time.poll_wasted += taken;
                self.tally.poll_fail += u64::from(counts);
                self.tally.poll_fail_ns += if counts { whole } else { 0 };
            }
            None => {
                let slot = match self.mode {
                    Mode::Exit(slot) => slot,
                    _ => 0,
                };
                let first = *self.poll.open_slot.get_or_insert(slot);
                if first == slot && self.mode != Mode::Guest {
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
            let slot = poll.open_slot.take().unwrap_or(0);
            let mode = if self.has_exits {
                Mode::Exit(slot)
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
            Mode::Exit(slot) => self.slot(slot).ns += ns,
            _ if self.has_exits => self.slot(0).ns += ns,
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

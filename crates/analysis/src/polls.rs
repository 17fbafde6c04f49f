//! Halt polling, from `kvm_vcpu_wakeup` and `kvm_halt_poll_ns`.
//!
//! `kvm_vcpu_halt` (virt/kvm/kvm_main.c) traces `kvm_vcpu_wakeup` at the end of a halt, with its length.
//! Without a sleep all of the halt is polling. With one, polling is the time from the halt's begin to
//! the switch away, at most the polling window. The remainder is the path into the scheduler.
//!
//! The window is known by its changes: a halt that outlasts it makes `kvm_vcpu_halt` grow or shrink it,
//! which `kvm_halt_poll_ns` traces. A window that never changes is therefore 0. A halt without a sleep
//! is no sign of another one: `kvm_vcpu_block` also returns at once where the wakeup is pending already.

use crate::options::Window;
use stealtime_track::{Halt, Mode, Place, ReasonIndex};

use crate::account::Account;

/// On-CPU time before sleeps while the window is not known, by the reason that it counts for until then.
#[derive(Debug, Clone, Copy)]
struct OpenTime {
    reason: ReasonIndex,
    ns: u64,
}

/// Polling of one vCPU.
#[derive(Debug, Clone, Default)]
pub(crate) struct Poll {
    /// The window for the next halt, where a change of it was seen.
    window: Option<u32>,
    /// The window for the halt that is just ending: `kvm_halt_poll_ns` comes before
    /// `kvm_vcpu_wakeup`.
    used: Option<u32>,
    /// Whether the window before its first change was above 0.
    polls_at_first: bool,
    open: Vec<OpenTime>,
    /// Halts with a sleep while the window is not known.
    open_halts: u64,
    /// Time from their begin to their sleep, in ns.
    open_wait_ns: u64,
    /// Time that counted as halted while no `sched_switch` was seen, in ns, and the mode that lacks it.
    assumed: (Mode, u64),
}

impl Account {
    /// `kvm_halt_poll_ns`.
    pub(crate) fn on_poll_window(&mut self, new: u32, old: u32, counts: bool) {
        if counts {
            self.tally.poll_grow += u64::from(new > old);
            self.tally.poll_shrink += u64::from(new < old);
        }
        if self.poll.window.is_none() {
            self.poll.polls_at_first = old > 0;
            self.close_open_polls();
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
            self.stretches.push(halt.running_since, now, cpu);
            let polled = self.polled(window, start, now);
            self.time.poll_useful += self.take_back(mode, polled);
            if counts {
                self.tally.poll_success += 1;
                self.tally.poll_success_ns = self.tally.poll_success_ns.saturating_add(halt.ns);
            }
            return;
        }
        if !halt.has_switches {
            // When it slept and when it was woken is not recorded: the halt as a whole.
            let halted = self.take_back(mode, window.clip(start, now, cpu));
            self.time.halt += halted;
            self.poll.assumed.0 = mode;
            self.poll.assumed.1 += halted;
            return;
        }
        // It slept in KVM, so what was open is a halt.
        self.sleep_open = 0;
        let end = halt.poll_end(used);
        let polled = self.polled(window, start, end);
        let whole = end.saturating_sub(start);
        self.slept_after_poll(mode, used, polled, counts && whole > 0, whole);
    }

    /// Time on a CPU within `[start, end)` of the halt that ends, as far as it is in the selection.
    fn polled(&mut self, window: &Window, start: u64, end: u64) -> u64 {
        let clip = |begin, finish, cpu| window.clip(begin, finish, cpu);
        let ns = self.stretches.within(start, end, clip);
        self.stretches.clear();
        ns
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
            None => self.poll.add_open(mode, polled, counts, whole),
        }
    }

    /// The first change of the window shows whether the time before sleeps until here was polling.
    fn close_open_polls(&mut self) {
        let open_polls = std::mem::take(&mut self.poll.open);
        if !self.poll.polls_at_first {
            return;
        }
        self.tally.poll_fail += self.poll.open_halts;
        self.tally.poll_fail_ns += self.poll.open_wait_ns;
        for open in open_polls {
            let mode = if self.has_exits {
                Mode::Exit(open.reason)
            } else {
                Mode::Unknown
            };
            self.time.poll_wasted += self.take_back(mode, open.ns);
        }
    }

    /// The trace has `sched_switch` after all: what counted as halted before the first of them was
    /// time on a CPU.
    pub(crate) fn undo_assumed_halts(&mut self) {
        let (mode, ns) = std::mem::take(&mut self.poll.assumed);
        self.time.halt -= ns.min(self.time.halt);
        match mode {
            Mode::Exit(reason) => self.slot(reason).ns += ns,
            _ if self.has_exits => self.slot(ReasonIndex::NO_EXIT).ns += ns,
            _ => self.time.mode_unknown += ns,
        }
    }

    /// Whether it polls before the first change of its window.
    pub(crate) const fn polls_at_first(&self) -> bool {
        self.poll.polls_at_first
    }
}

impl Poll {
    /// A halt with a sleep ends while the window is not known. Before the sleep it lasted `whole` ns,
    /// `polled` ns of them on a CPU.
    fn add_open(&mut self, mode: Mode, polled: u64, counts: bool, whole: u64) {
        let reason = match mode {
            Mode::Exit(reason) => reason,
            // Time in an unknown mode counts for no exit once the thread shows an entry.
            Mode::Unknown => ReasonIndex::NO_EXIT,
            // A halt ends outside the guest, so its exit was lost.
            Mode::Guest => return,
        };
        self.open_halts += u64::from(counts);
        self.open_wait_ns += if counts { whole } else { 0 };
        match self.open.iter_mut().find(|open| open.reason == reason) {
            Some(open) => open.ns += polled,
            None => self.open.push(OpenTime { reason, ns: polled }),
        }
    }
}

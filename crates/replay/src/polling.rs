//! What the recorded host's halt polling was set to.

use std::collections::BTreeMap;

use stealtime_simulator::config::Knobs;

/// Longest halt, in ns, that default settings would have polled for.
const DEFAULT_NS: u64 = 200_000;
/// So many short halts that slept mean that there was no polling.
const SLEPT_FROM: u64 = 20;

/// What `kvm_halt_poll_ns` and `kvm_vcpu_wakeup` say of polling.
#[derive(Clone, Debug, Default)]
pub(crate) struct Polling {
    changes: u64,
    most: u32,
    /// The longest window that a halt began with.
    most_begun: u32,
    /// What each vCPU's window was last, by thread.
    windows: BTreeMap<i32, u32>,
    /// The longest window that was another one when it changed next: the halt had cut it.
    most_cut: u32,
    slept_short: u64,
}

impl Polling {
    /// The window of a vCPU, by its thread, changes at the end of a halt.
    pub(crate) fn change(&mut self, tid: i32, new: u32, old: u32) {
        self.changes += 1;
        self.most = self.most.max(new).max(old);
        self.most_begun = self.most_begun.max(old);
        if let Some(last) = self.windows.insert(tid, new).filter(|&last| last > old) {
            self.most_cut = self.most_cut.max(last);
        }
    }

    pub(crate) fn halt(&mut self, ns: u64, waited: bool) {
        if waited && ns < DEFAULT_NS {
            self.slept_short += 1;
        }
    }

    /// `kvm.halt_poll_ns`, or `None` if the recording does not show it.
    pub(crate) fn halt_poll_ns(&self) -> Option<u32> {
        if self.changes == 0 {
            return (self.slept_short >= SLEPT_FROM).then_some(0);
        }
        // Windows are doubled, also beyond the limit, and the next halt cuts them to it.
        if self.most_cut > self.most_begun {
            return Some(self.most_begun);
        }
        let default = Knobs::default().kvm.halt_poll.halt_poll_ns;
        // Windows below the default's show that it grew and shrank, not where it ends.
        Some(self.most.max(default))
    }
}

#[cfg(test)]
mod tests {
    use super::{DEFAULT_NS, Polling, SLEPT_FROM};

    #[test]
    fn a_window_that_a_halt_has_cut_shows_the_limit() {
        let mut polling = Polling::default();
        polling.change(7, 2_560_000, 1_280_000);
        polling.change(7, 5_120_000, 2_560_000);
        // Where it ends is not known yet.
        assert_eq!(polling.halt_poll_ns(), Some(5_120_000));
        // Another vCPU's window says nothing of this one's.
        polling.change(8, 20_000, 10_000);
        assert_eq!(polling.halt_poll_ns(), Some(5_120_000));
        polling.change(7, 2_000_000, 4_000_000);
        assert_eq!(polling.halt_poll_ns(), Some(4_000_000));
    }

    #[test]
    fn short_halts_that_slept_show_that_nothing_polls() {
        let halts = |ns: u64, waited: bool, count: u64| {
            let mut polling = Polling::default();
            (0..count).for_each(|_| polling.halt(ns, waited));
            polling.halt_poll_ns()
        };
        assert_eq!(halts(DEFAULT_NS - 1, true, SLEPT_FROM), Some(0));
        assert_eq!(halts(DEFAULT_NS - 1, true, SLEPT_FROM - 1), None);
        // The default would not have polled for them either, or the halt ended while it polled.
        assert_eq!(halts(DEFAULT_NS, true, SLEPT_FROM), None);
        assert_eq!(halts(DEFAULT_NS - 1, false, SLEPT_FROM), None);
    }
}

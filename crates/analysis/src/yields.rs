//! Spinning vCPUs: PAUSE exits, the switches after them, and the PLE window.

use stealtime_track::{IntMap, ThreadIndex};

use crate::account::Tally;

/// Most tasks with a count of their own that a spinning vCPU is switched to.
const MAX_TARGETS: usize = 256;
/// The tasks beyond.
pub(crate) const OTHER_TARGETS: ThreadIndex = ThreadIndex(u32::MAX);

/// Spinning of one vCPU.
#[derive(Debug, Default)]
pub(crate) struct Spinning {
    /// Guest time since the latest entry, in ns.
    guest_ns: u64,
    /// Whether its latest exit was a PAUSE.
    after_pause: bool,
    /// Whether a PAUSE exit waits for its outcome.
    pause_open: bool,
    /// Tasks that it was switched out for after a PAUSE exit.
    yielded_to: IntMap<ThreadIndex, u64>,
}

impl Spinning {
    /// Time in the guest, in ns.
    #[inline]
    pub(crate) const fn add_guest(&mut self, ns: u64) {
        self.guest_ns += ns;
    }

    /// `kvm_entry`.
    pub(crate) const fn entry(&mut self) {
        self.guest_ns = 0;
        self.pause_open = false;
    }

    /// An exit for another reason.
    pub(crate) const fn end(&mut self) {
        self.after_pause = false;
    }

    /// Events were lost: nothing under way can be trusted.
    pub(crate) const fn forget(&mut self) {
        self.after_pause = false;
        self.pause_open = false;
        self.guest_ns = 0;
    }

    /// Tasks that it was switched out for after a PAUSE exit, with their numbers of switches.
    pub(crate) const fn yielded_to(&self) -> &IntMap<ThreadIndex, u64> {
        &self.yielded_to
    }

    /// A PAUSE exit. Guest time between two of them is spinning. Before the first one the begin of the
    /// spinning is unknown, so the sum is a lower bound.
    /// Returns the spinning that this one shows, in ns.
    pub(crate) const fn pause_exit(&mut self, counts: bool) -> u64 {
        // Taken: of several exits without an entry between them, the first has it.
        let guest_ns = std::mem::replace(&mut self.guest_ns, 0);
        let spun = if self.after_pause { guest_ns } else { 0 };
        self.after_pause = true;
        self.pause_open = counts;
        spun
    }

    /// It is preempted by `next`, perhaps while it handles a PAUSE exit.
    pub(crate) fn preempted_by(&mut self, next: ThreadIndex) {
        if !std::mem::take(&mut self.pause_open) {
            return;
        }
        let known = self.yielded_to.contains_key(&next);
        let target = if known || self.yielded_to.len() < MAX_TARGETS {
            next
        } else {
            OTHER_TARGETS
        };
        *self.yielded_to.entry(target).or_default() += 1;
    }
}

impl Tally {
    /// `kvm_ple_window_update`.
    pub(crate) fn count_ple_window(&mut self, new: u32, old: u32) {
        self.ple_grow += u64::from(new > old);
        self.ple_shrink += u64::from(new < old);
        self.ple_window_max = self.ple_window_max.max(new).max(old);
    }
}

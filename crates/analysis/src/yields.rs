//! Spinning vCPUs: PAUSE exits, what followed them, and the PLE window.

use crate::account::Account;
use stealtime_track::ThreadIndex;

/// Most different tasks told apart that a spinning vCPU was switched to.
const MAX_TARGETS: usize = 256;
/// The tasks beyond.
pub(crate) const OTHER_TARGETS: ThreadIndex = ThreadIndex(u32::MAX);

impl Account {
    /// A PAUSE exit: the guest stretch before it was spinning if it followed another PAUSE exit. Of
    /// the first stretch nobody knows when the spinning began, so spinning is a lower bound.
    pub(crate) fn on_pause_exit(&mut self, counts: bool) {
        if self.after_pause {
            self.time.spin += self.stretch;
        }
        self.after_pause = true;
        self.pause_open = counts;
        self.tally.pause_exits += u64::from(counts);
    }

    /// It is switched out for `next` while handling a PAUSE exit.
    pub(crate) fn on_yielded(&mut self, next: ThreadIndex) {
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

    /// `kvm_ple_window_update`.
    pub(crate) fn on_ple_window(&mut self, new: u32, old: u32) {
        self.tally.ple_grow += u64::from(new > old);
        self.tally.ple_shrink += u64::from(new < old);
        self.tally.ple_window_max = self.tally.ple_window_max.max(new).max(old);
    }
}

//! What the recorded host's halt polling was set to.

use stealtime_simulator::config::Knobs;

/// Longest halt, in ns, that default settings would have polled for.
const DEFAULT_NS: u64 = 200_000;
/// So many short halts that slept mean that there was no polling.
const SLEPT_FROM: u64 = 20;

/// What `kvm_halt_poll_ns` and `kvm_vcpu_wakeup` say of polling.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Polling {
    changes: u64,
    most: u32,
    slept_short: u64,
}

impl Polling {
    pub(crate) fn change(&mut self, new: u32, old: u32) {
        self.changes += 1;
        self.most = self.most.max(new).max(old);
    }

    pub(crate) fn halt(&mut self, ns: u64, waited: bool) {
        if waited && ns < DEFAULT_NS {
            self.slept_short += 1;
        }
    }

    /// `kvm.halt_poll_ns`, or `None` if the recording does not tell.
    pub(crate) fn halt_poll_ns(&self) -> Option<u32> {
        if self.changes == 0 {
            return (self.slept_short >= SLEPT_FROM).then_some(0);
        }
        let default = Knobs::default().kvm.halt_poll.halt_poll_ns;
        // Windows below the default's show that it grew and shrank, not where it ends.
        Some(self.most.max(default))
    }
}

//! Exit reasons, numbered densely.

use stealtime_events::exit_reason::Class;
use stealtime_events::{ExitReason, Isa};

use crate::IntMap;

/// Most exit reasons kept apart; further ones share the last number. VMX, SVM and arm64 have less
/// than 200 together, and a damaged file must not grow the table.
const MAX_REASONS: usize = 1024;
/// Entries of the direct-mapped cache, a power of two for a cheap modulo: few reasons make up most
/// exits.
const RECENT: usize = 32;

/// An exit reason's number in the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct ReasonIndex(pub usize);

impl ReasonIndex {
    /// Outside the guest without an exit having been seen.
    pub const NO_EXIT: Self = Self(0);
}

/// A key of no reason: the ISA is in bits 32 and up, far below this.
const NO_KEY: (u64, ReasonIndex) = (u64::MAX, ReasonIndex::NO_EXIT);

/// The exit reasons seen. Number 0 is [`ReasonIndex::NO_EXIT`].
#[derive(Debug)]
pub struct Reasons {
    list: Vec<(ExitReason, Class)>,
    by_code: IntMap<u64, ReasonIndex>,
    /// The latest key of each slot. Saves the hash of the map for most exits.
    recent: [(u64, ReasonIndex); RECENT],
}

impl Default for Reasons {
    fn default() -> Self {
        let placeholder = ExitReason {
            isa: Isa::Vmx,
            code: u32::MAX,
        };
        Self {
            list: vec![(placeholder, Class::Other)],
            by_code: IntMap::default(),
            recent: [NO_KEY; RECENT],
        }
    }
}

impl Reasons {
    /// The number of a reason, new or known.
    #[inline]
    pub(crate) fn find(&mut self, reason: ExitReason) -> ReasonIndex {
        let key = (reason.isa as u64) << 32 | u64::from(reason.code);
        let recent = self.recent[reason.code as usize % RECENT];
        if recent.0 == key {
            return recent.1;
        }
        let index = self.look_up(key, reason);
        self.recent[reason.code as usize % RECENT] = (key, index);
        index
    }

    #[cold]
    fn look_up(&mut self, key: u64, reason: ExitReason) -> ReasonIndex {
        if let Some(&index) = self.by_code.get(&key) {
            return index;
        }
        let index = ReasonIndex(self.list.len());
        if self.list.len() < MAX_REASONS {
            self.list.push((reason, reason.class()));
            self.by_code.insert(key, index);
        }
        index
    }

    /// The reason; `None` for [`ReasonIndex::NO_EXIT`] and for those past the limit.
    #[must_use]
    pub fn get(&self, index: ReasonIndex) -> Option<ExitReason> {
        let known = self.list.get(index.0);
        known
            .filter(|_| index != ReasonIndex::NO_EXIT)
            .map(|entry| entry.0)
    }

    /// The class of exits for this reason.
    #[must_use]
    pub fn class(&self, index: ReasonIndex) -> Class {
        self.list.get(index.0).map_or(Class::Other, |entry| entry.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_past_the_limit_share_a_number() {
        let mut reasons = Reasons::default();
        let first = reasons.find(ExitReason::vmx(12));
        for code in 0..5_000 {
            reasons.find(ExitReason::vmx(code));
        }
        assert_eq!(reasons.find(ExitReason::vmx(12)), first);
        assert_eq!(reasons.class(first), Class::Halt);
        let past = reasons.find(ExitReason::vmx(4_999));
        assert_eq!(past, reasons.find(ExitReason::vmx(4_998)));
        assert_eq!(reasons.get(past), None);
    }
}

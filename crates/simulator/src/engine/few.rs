//! Few timers in order: a sorted list.

use super::queue::Slot;

/// Timers as they fire, the next one last.
///
/// A new timer mostly fires soon, so its place is a few steps from the end. A search from the end
/// costs less than a path through a heap, where no branch can be predicted.
#[derive(Clone, Debug, Default)]
pub(super) struct Few {
    list: Vec<(u64, Slot)>,
}

impl Few {
    /// Arms a timer that is not armed: it fires after those that were armed for the same time.
    pub(super) fn arm(&mut self, slot: Slot, at_ns: u64) {
        self.list.push((at_ns, slot));
        // Search and move in one loop: only its last branch is mispredicted.
        let Some((mut free, mut rest)) = self.list.split_last_mut() else {
            debug_assert!(false, "the list has the timer pushed above");
            return;
        };
        while let Some((sooner, later)) = rest.split_last_mut()
            && sooner.0 <= at_ns
        {
            *free = *sooner;
            (free, rest) = (sooner, later);
        }
        *free = (at_ns, slot);
    }

    /// Disarms a timer that is armed.
    pub(super) fn cancel(&mut self, slot: Slot) {
        if let Some(place) = self.list.iter().rposition(|&(_, peer)| peer == slot) {
            self.list.remove(place);
        }
    }

    /// When the next timer will fire.
    pub(super) fn next(&self) -> Option<u64> {
        self.list.last().map(|&(at_ns, _)| at_ns)
    }

    /// Takes the next timer, if it fires at `until_ns` or before.
    pub(super) fn pop(&mut self, until_ns: u64) -> Option<(u64, Slot)> {
        self.list.pop_if(|&mut (at_ns, _)| at_ns <= until_ns)
    }

    /// Armed timers.
    pub(super) const fn armed(&self) -> usize {
        self.list.len()
    }
}

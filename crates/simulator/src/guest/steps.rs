//! The steps that a vCPU or a thread has before it.

use stealtime_hypervisor::prefetch::prefetch_room;

use super::Micro;
use crate::huge_pages::HugePages;

/// Steps, the next one first. They are few, so that what is added behind all others may cost a
/// move of them; and there is a list for each vCPU and thread, so that it is no larger than it
/// must be.
#[derive(Clone, Debug, Default)]
pub(crate) struct Steps {
    /// The next one last.
    list: Vec<Micro>,
}

impl Steps {
    /// The next step.
    pub(crate) fn front(&self) -> Option<&Micro> {
        self.list.last()
    }

    /// Asks for the memory that they are in.
    pub(crate) fn prefetch(&self) {
        prefetch_room(&self.list);
    }

    /// Adds the memory that they are in.
    pub(crate) fn add_to(&self, pages: &mut HugePages) {
        pages.add_room(&self.list);
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }

    /// Takes the next step.
    pub(crate) fn pop_front(&mut self) -> Option<Micro> {
        self.list.pop()
    }

    /// Adds a step that comes next.
    pub(crate) fn push_front(&mut self, micro: Micro) {
        self.make_room(1);
        self.list.push(micro);
    }

    /// Adds a step that comes behind all others.
    pub(crate) fn push_back(&mut self, micro: Micro) {
        self.make_room(1);
        self.list.insert(0, micro);
    }

    /// Takes all steps away.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// These steps instead of what is there.
    pub(crate) fn replace<const N: usize>(&mut self, steps: [Micro; N]) {
        self.list.clear();
        self.make_room(N);
        self.list.extend(steps.into_iter().rev());
    }

    /// Twice as much as there was, and not four at once as a vector would begin with.
    fn make_room(&mut self, more: usize) {
        let (len, room) = (self.list.len(), self.list.capacity());
        if room - len < more {
            self.list.reserve_exact(more.max(room));
        }
    }
}

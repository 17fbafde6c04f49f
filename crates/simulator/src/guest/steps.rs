//! The steps that a vCPU or a thread has before it.

use super::Micro;

/// Steps, the next one first. They are few, so that adding one behind all others may move them.
/// Each vCPU and thread has such a list, so it is kept small.
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
        // Mostly there are none: nothing is moved.
        if self.list.is_empty() {
            self.list.push(micro);
        } else {
            self.list.insert(0, micro);
        }
    }

    /// Takes all steps away.
    pub(crate) fn clear(&mut self) {
        self.list.clear();
    }

    /// Replaces all steps.
    pub(crate) fn replace<const N: usize>(&mut self, steps: [Micro; N]) {
        self.list.clear();
        self.make_room(N);
        self.list.extend(steps.into_iter().rev());
    }

    /// Twice as much as there was, and not four at once as a vector would begin with.
    #[inline]
    fn make_room(&mut self, additional: usize) {
        if self.list.capacity() - self.list.len() < additional {
            self.grow(additional);
        }
    }

    #[cold]
    fn grow(&mut self, additional: usize) {
        let room = self.list.capacity();
        self.list.reserve_exact(additional.max(room));
    }
}

//! A node of the tree of queued entities: a sorted array of at most [`FANOUT`] entries.

use super::timeline::Keys;
use super::weights::{before, earlier};

/// Entries in a node.
pub const FANOUT: usize = 16;

/// No node and no entity.
pub(super) const NONE: u32 = u32::MAX;

/// An entry of a node: of an entity in a leaf, of a subtree above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
pub(super) struct Entry {
    /// Deadline; of a subtree the latest one.
    pub(super) deadline: u64,
    /// Virtual runtime; of a subtree the earliest one.
    pub(super) vruntime: u64,
    pub(super) min_slice: u32,
    pub(super) max_slice: u32,
    /// Entity, or node.
    pub(super) child: u32,
}

impl Entry {
    pub(super) const BLANK: Self = Self {
        deadline: 0,
        vruntime: 0,
        min_slice: 0,
        max_slice: 0,
        child: NONE,
    };

    /// The entry of an entity in a leaf.
    #[inline]
    pub(super) const fn of(entity: u32, slice: u32, keys: Keys) -> Self {
        Self {
            deadline: keys.deadline,
            vruntime: keys.vruntime,
            min_slice: slice,
            max_slice: slice,
            child: entity,
        }
    }
}

/// The head precedes the entries, so that a short queue is one or two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
pub(super) struct Node {
    pub(super) len: u32,
    pub(super) parent: u32,
    /// A copy of its entry in its parent, which spares most removals the access. Undefined for a
    /// root.
    pub(super) vruntime: u64,
    pub(super) min_slice: u32,
    pub(super) max_slice: u32,
    pub(super) leaf: bool,
    pub(super) entries: [Entry; FANOUT],
}

impl Node {
    pub(super) fn new(leaf: bool, parent: u32) -> Self {
        Self {
            entries: [Entry::BLANK; FANOUT],
            len: 0,
            parent,
            vruntime: 0,
            min_slice: 0,
            max_slice: 0,
            leaf,
        }
    }

    /// Copies its entry in its parent.
    #[inline]
    pub(super) fn copy_entry(&mut self, entry: &Entry) {
        self.vruntime = entry.vruntime;
        (self.min_slice, self.max_slice) = (entry.min_slice, entry.max_slice);
    }

    /// Whether no node above changes after `removed` has left `index`: it had no extreme of the
    /// node, and enough entries remain.
    #[inline]
    pub(super) fn parent_unaffected(&self, removed: &Entry, index: usize) -> bool {
        let (lo, hi) = (self.min_slice, self.max_slice);
        let slices = lo == hi || (removed.min_slice != lo && removed.max_slice != hi);
        slices
            && removed.vruntime != self.vruntime
            && index < self.len()
            && self.len() >= FANOUT / 4
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        // The minimum, always `len` itself, proves to the compiler that indexes are in bounds.
        (self.len as usize).min(FANOUT)
    }

    #[inline]
    pub(super) fn filled(&self) -> &[Entry] {
        &self.entries[..self.len()]
    }

    /// Inserts `entry` at `index`. The node must not be full.
    #[inline]
    pub(super) fn put(&mut self, index: usize, entry: Entry) {
        debug_assert!(self.len() < FANOUT && index <= self.len());
        let end = self.len() + 1;
        // Entry by entry from the end: a node is too short for a call of memmove to pay.
        let tail = &mut self.entries[index..end];
        for i in (1..tail.len()).rev() {
            tail[i] = tail[i - 1];
        }
        tail[0] = entry;
        self.len += 1;
    }

    /// Removes the entry at `index`.
    #[inline]
    pub(super) fn take(&mut self, index: usize) {
        debug_assert!(index < self.len());
        let tail = &mut self.entries[index..(self.len as usize).min(FANOUT)];
        for i in 1..tail.len() {
            tail[i - 1] = tail[i];
        }
        self.len -= 1;
    }

    /// Removes entity `outgoing` and inserts `entry` after entries with its deadline. Returns the
    /// removed entry.
    #[inline(always)]
    pub(super) fn swap(&mut self, outgoing: u32, entry: Entry) -> Entry {
        let len = self.len();
        let used = &mut self.entries[..len];
        let mut hole = used.iter().position(|e| e.child == outgoing).unwrap_or(0);
        let removed = used.get(hole).copied().unwrap_or(Entry::BLANK);
        debug_assert_eq!(removed.child, outgoing, "not in this node");
        // Entry by entry towards the new position: most incoming entities have a late deadline.
        while let Some(after) = used.get(hole + 1).copied()
            && !before(entry.deadline, after.deadline)
        {
            used[hole] = after;
            hole += 1;
        }
        while let Some(ahead) = hole.checked_sub(1).map(|i| used[i])
            && before(entry.deadline, ahead.deadline)
        {
            used[hole] = ahead;
            hole -= 1;
        }
        if let Some(slot) = used.get_mut(hole) {
            *slot = entry;
        }
        removed
    }

    #[inline]
    pub(super) fn position(&self, child: u32) -> usize {
        let index = self.filled().iter().position(|e| e.child == child);
        debug_assert!(index.is_some(), "not in this node");
        index.unwrap_or(0)
    }

    /// Index of the first entry with a deadline after `deadline`, or the end.
    #[inline]
    pub(super) fn upper_bound(&self, deadline: u64) -> usize {
        let used = self.filled();
        // From the end: most insertions are of the previous task, with a late deadline.
        used.iter()
            .rposition(|e| !before(deadline, e.deadline))
            .map_or(0, |i| i + 1)
    }

    /// Shortest and longest slice.
    #[inline]
    pub(super) fn slices(&self) -> (u32, u32) {
        let extend = |(lo, hi): (u32, u32), e: &Entry| (lo.min(e.min_slice), hi.max(e.max_slice));
        self.filled().iter().fold((u32::MAX, 0), extend)
    }

    #[inline]
    pub(super) fn earliest(&self) -> u64 {
        let used = self.filled();
        used.iter()
            .fold(self.entries[0].vruntime, |v, e| earlier(v, e.vruntime))
    }

    #[inline]
    pub(super) fn last_deadline(&self) -> u64 {
        self.filled().last().map_or(0, |e| e.deadline)
    }

    /// The entry of this node, numbered `id`, in its parent. The node must not be empty.
    pub(super) fn summary(&self, id: u32) -> Entry {
        let (min_slice, max_slice) = self.slices();
        let (deadline, vruntime) = (self.last_deadline(), self.earliest());
        Entry {
            deadline,
            vruntime,
            min_slice,
            max_slice,
            child: id,
        }
    }
}

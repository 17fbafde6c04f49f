//! Typed ids, and arenas indexed by them.

use alloc::vec::Vec;
use core::fmt;
use core::ops::{Index, IndexMut};

/// A task. Ids are never reused: a stale one is refused, not mistaken for another task.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TaskId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl TaskId {
    /// Slot of the task, for tables by task: dense from 0, and reused after an exit.
    pub const fn slot(self) -> usize {
        self.index as usize
    }
}

impl fmt::Debug for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task {}.{}", self.index, self.generation)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! plain_id {
    ($(#[$doc:meta])* $name:ident, $word:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Dense number from 0, in order of creation.
            pub const fn slot(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

plain_id!(
    /// A group of tasks (`struct task_group`) other than the root group.
    GroupId,
    "group"
);
plain_id!(
    /// The run queue of one CPU (`struct rq`).
    RqId,
    "run queue"
);

impl RqId {
    /// The `n`-th created run queue, from 0. Operations refuse it if there is none.
    pub const fn nth(n: u32) -> Self {
        Self(n)
    }
}

/// Index of an entity (a task, or a group on one CPU); `NONE` for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Ent(pub(crate) u32);

impl Ent {
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.0 != u32::MAX
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.0 == u32::MAX
    }
}

/// Index of a queue (`struct cfs_rq`); `NONE` for none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Que(pub(crate) u32);

impl Que {
    pub(crate) const NONE: Self = Self(u32::MAX);

    #[inline]
    pub(crate) fn is_some(self) -> bool {
        self.0 != u32::MAX
    }
}

/// Makes room for another entry in a table. A lean table keeps a sixteenth in reserve: growth stays
/// linear overall, where doubling leaves half unused.
pub(crate) fn make_room<T>(lean: bool, table: &mut Vec<T>) {
    if lean && table.len() == table.capacity() {
        table.reserve_exact((table.len() / 16).max(1));
    }
}

/// A table, indexed by ids that were checked on entry to the crate or never leave it.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Arena<T>(Vec<T>);

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<T> Arena<T> {
    pub(crate) const EMPTY: Self = Self(Vec::new());

    /// The entry of an id; `None` for the id of nothing, which is beyond any table, so that one
    /// comparison covers both cases.
    #[inline]
    pub(crate) fn get(&self, id: impl Slot) -> Option<&T> {
        self.0.get(id.slot_index())
    }

    /// The entry of an id, to change; `None` for the id of nothing.
    #[inline]
    pub(crate) fn get_mut(&mut self, id: impl Slot) -> Option<&mut T> {
        self.0.get_mut(id.slot_index())
    }

    /// Entries, which have the ids from 0 on.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Entries for which memory is allocated.
    pub(crate) fn capacity(&self) -> usize {
        self.0.capacity()
    }

    /// Adds the entry of the next id.
    pub(crate) fn push(&mut self, lean: bool, entry: T) {
        make_room(lean, &mut self.0);
        self.0.push(entry);
    }

    #[inline]
    pub(crate) fn as_slice(&self) -> &[T] {
        &self.0
    }

    #[inline]
    pub(crate) fn as_mut_slice(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// An id that indexes an [`Arena`].
pub(crate) trait Slot: Copy {
    fn slot_index(self) -> usize;
}

macro_rules! indexed_by {
    ($id:ty) => {
        impl Slot for $id {
            #[inline]
            fn slot_index(self) -> usize {
                self.0 as usize
            }
        }

        impl<T> Index<$id> for Arena<T> {
            type Output = T;

            #[inline]
            fn index(&self, id: $id) -> &T {
                &self.0[id.0 as usize]
            }
        }

        impl<T> IndexMut<$id> for Arena<T> {
            #[inline]
            fn index_mut(&mut self, id: $id) -> &mut T {
                &mut self.0[id.0 as usize]
            }
        }
    };
}

indexed_by!(Ent);
indexed_by!(Que);
indexed_by!(RqId);
indexed_by!(GroupId);

//! The tree of queued entities: ordered by deadline, searched by eligibility.
//!
//! The kernel keeps an augmented red-black tree per queue (`cfs_rq->tasks_timeline`). This is a
//! B+ tree with the same answers. Its entries are in order of deadline, and equal deadlines in
//! order of insertion. Each subtree has its earliest virtual runtime and its shortest and longest
//! slice. All trees share one pool of nodes.
//!
//! A queue of one entity is in the [`Timeline`] itself. A queue of up to [`FANOUT`] is one node, a
//! sorted array. `docs/eevdf.md` has the measurements behind this choice.
//!
//! ```
//! use stealtime_hypervisor::fair::timeline::{Keys, Pool, Timeline};
//!
//! let keys = [(30, 5), (10, 9), (20, 2)].map(|(deadline, vruntime)| Keys { deadline, vruntime });
//! let (mut pool, mut queue) = (Pool::with_capacity(3), Timeline::EMPTY);
//! for entity in 0..3 {
//!     pool.insert(&mut queue, entity, 700_000, &|entity| keys[entity as usize]);
//! }
//! // Entity 1 has the earliest deadline, but is not eligible at a virtual time of 5.
//! assert_eq!(pool.first(&queue), Some(1));
//! let found = pool.first_eligible(&queue, 0, 5, &|entity| keys[entity as usize]);
//! assert_eq!(found.map(|found| found.entity), Some(2));
//! ```

use alloc::vec::Vec;

use super::eevdf::lag::{WeightedSum, floor_div};
pub use super::node::FANOUT;
use super::node::{Entry, NONE, Node};
use super::weights::earlier;

/// Marks the single entity of a tree, in place of the number of a node.
const ALONE: u32 = 1 << 31;
/// Limit of the numbers of entities: they leave the bit [`ALONE`] clear, and with it set they
/// differ from [`NONE`].
pub(super) const MAX_ENTITIES: usize = ALONE as usize - 1;

/// The virtual times by which a tree sorts and searches. Both wrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keys {
    /// Virtual deadline: the order of the tree.
    pub deadline: u64,
    /// Virtual runtime: decides eligibility.
    pub vruntime: u64,
}

/// An entity that a search has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Number of the entity.
    pub entity: u32,
    /// Its virtual deadline.
    pub deadline: u64,
}

/// One tree. It is valid only with the [`Pool`] that has filled it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The root's number, [`NONE`], or the single entity with [`ALONE`].
    root: u32,
    min_slice: u32,
    max_slice: u32,
}

impl Timeline {
    /// A tree without entities.
    pub const EMPTY: Self = Self {
        root: NONE,
        min_slice: u32::MAX,
        max_slice: 0,
    };

    /// A tree of one entity.
    #[inline]
    const fn alone(entity: u32, slice: u32) -> Self {
        Self {
            root: ALONE | entity,
            min_slice: slice,
            max_slice: slice,
        }
    }

    /// Whether it has one entity, without a node.
    #[inline]
    fn is_alone(&self) -> bool {
        self.root >= ALONE && self.root != NONE
    }

    /// The single entity, if [`Self::is_alone`].
    #[inline]
    fn single(&self) -> u32 {
        debug_assert!(self.is_alone());
        self.root & !ALONE
    }

    /// Longest slice in it, in ns; 0 if it is empty.
    #[inline]
    pub fn longest(&self) -> u32 {
        self.max_slice
    }

    /// Shortest slice in it, in ns; `u32::MAX` if it is empty.
    #[inline]
    pub fn shortest(&self) -> u32 {
        self.min_slice
    }

    /// Whether no entity is in it.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.min_slice > self.max_slice
    }
}

/// Nodes of all trees, and the leaf of each entity.
///
/// Entities are numbers below the capacity, each in at most one tree. The caller, [`super::Fair`],
/// ensures that it inserts no queued entity and removes only queued ones.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// The leaf that an entity is in; [`ALONE`] for the single entity of a tree.
    leaf_of: Vec<u32>,
    /// Nodes are allocated on demand.
    lean: bool,
}

impl Pool {
    /// A pool for entities 0 to `capacity - 1`. Nothing is allocated until the next call.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut pool = Self::default();
        pool.grow(capacity);
        pool
    }

    /// Allocates nodes on demand, a few at a time, instead of by [`Self::grow`]: most queues are
    /// too short to need one.
    pub fn set_lean(&mut self) {
        self.lean = true;
    }

    /// Whether [`Self::set_lean`] was called.
    #[inline]
    pub fn is_lean(&self) -> bool {
        self.lean
    }

    /// Makes room for `capacity` entities: after this no insertion allocates, unless
    /// [`Self::set_lean`] was called.
    pub fn grow(&mut self, capacity: usize) {
        if capacity <= self.leaf_of.len() {
            return;
        }
        if self.lean {
            self.leaf_of.reserve_exact(capacity - self.leaf_of.len());
            self.leaf_of.resize(capacity, NONE);
            return;
        }
        self.leaf_of.resize(capacity, NONE);
        // Each leaf but an empty root has an entity, each inner node two children, and there are
        // no more trees than entities.
        let nodes = capacity.saturating_mul(3);
        // Moved by hand: `reserve` of an aligned type copies the old block's whole capacity, most
        // of which has never become memory.
        if nodes > self.nodes.capacity() {
            let mut room = Vec::with_capacity(nodes);
            room.append(&mut self.nodes);
            self.nodes = room;
        }
        self.free.reserve(nodes.saturating_sub(self.free.len()));
    }

    /// Whether `entity` is in a tree.
    #[inline]
    pub fn contains(&self, entity: u32) -> bool {
        self.leaf_of
            .get(entity as usize)
            .is_some_and(|leaf| *leaf != NONE)
    }

    /// Inserts an entity after those with the same deadline.
    ///
    /// `slice` is in ns: the longest that the scheduler allows fits 32 bits. `keys` returns the
    /// keys of this entity and of those in the tree. They must not change while the entity is in
    /// the tree, which stores only the slice of a single entity.
    #[inline(always)]
    pub fn insert(
        &mut self,
        t: &mut Timeline,
        entity: u32,
        slice: u32,
        keys: &impl Fn(u32) -> Keys,
    ) {
        debug_assert!(!self.contains(entity), "in a tree already");
        if t.root == NONE {
            *t = Timeline::alone(entity, slice);
            self.leaf_of[entity as usize] = ALONE;
            return;
        }
        if t.is_alone() {
            self.make_leaf(t, keys(t.single()));
        }
        let entry = Entry::of(entity, slice, keys(entity));
        let deadline = entry.deadline;
        t.min_slice = t.min_slice.min(slice);
        t.max_slice = t.max_slice.max(slice);
        // A short queue is one leaf.
        if let Some(node) = self.nodes.get_mut(t.root as usize)
            && node.leaf
            && node.len() < FANOUT
        {
            let index = node.upper_bound(deadline);
            node.put(index, entry);
            self.leaf_of[entity as usize] = t.root;
            return;
        }
        self.descend(t, entry);
    }

    /// Moves a single entity into a leaf, which has room for a second one.
    #[inline(never)]
    fn make_leaf(&mut self, t: &mut Timeline, keys: Keys) {
        let entry = Entry::of(t.single(), t.min_slice, keys);
        t.root = self.node(true, NONE);
        self.nodes[t.root as usize].put(0, entry);
        self.leaf_of[entry.child as usize] = t.root;
    }

    /// Inserts from the root down, where the root is an inner node or a full leaf.
    #[inline(never)]
    fn descend(&mut self, t: &mut Timeline, entry: Entry) {
        let (deadline, vruntime, entity) = (entry.deadline, entry.vruntime, entry.child);
        let slice = entry.min_slice;
        let mut n = t.root;
        loop {
            let node = &mut self.nodes[n as usize];
            let index = node.upper_bound(deadline);
            if node.leaf {
                if node.len() < FANOUT {
                    node.put(index, entry);
                    self.leaf_of[entity as usize] = n;
                } else {
                    self.add(t, n, index, entry);
                }
                return;
            }
            // The entries on the path are updated on the way down, so that none is visited twice.
            let last = node.len() - 1;
            let sub = &mut node.entries[index.min(last)];
            if index > last {
                sub.deadline = deadline;
            }
            sub.vruntime = earlier(sub.vruntime, vruntime);
            sub.min_slice = sub.min_slice.min(slice);
            sub.max_slice = sub.max_slice.max(slice);
            let sub = *sub;
            n = sub.child;
            self.nodes[n as usize].copy_entry(&sub);
        }
    }

    /// Removes an entity that is in the tree.
    #[inline(always)]
    pub fn remove(&mut self, t: &mut Timeline, entity: u32) {
        debug_assert!(self.contains(entity), "in no tree");
        let n = self.leaf_of[entity as usize];
        self.leaf_of[entity as usize] = NONE;
        if n == ALONE {
            *t = Timeline::EMPTY;
            return;
        }
        let node = &mut self.nodes[n as usize];
        let i = node.position(entity);
        let removed = node.entries[i];
        node.take(i);
        if n != t.root {
            if !node.parent_unaffected(&removed, i) {
                self.rebalance(t, n, removed);
            }
        } else if node.len == 0 {
            self.free.push(n);
            *t = Timeline::EMPTY;
            return;
        }
        // Equal slices stay equal.
        let (lo, hi) = (t.min_slice, t.max_slice);
        if lo != hi && (removed.min_slice == lo || removed.max_slice == hi) {
            (t.min_slice, t.max_slice) = self.nodes[t.root as usize].slices();
        }
    }

    /// [`Self::insert`] of `incoming` with `slice`, then [`Self::remove`] of `outgoing`: cheaper in
    /// a short queue.
    #[inline(always)]
    pub fn exchange(
        &mut self,
        t: &mut Timeline,
        incoming: u32,
        slice: u32,
        outgoing: u32,
        keys: &impl Fn(u32) -> Keys,
    ) {
        debug_assert!(self.contains(outgoing) && !self.contains(incoming));
        if t.is_alone() {
            *t = Timeline::alone(incoming, slice);
            self.leaf_of[outgoing as usize] = NONE;
            self.leaf_of[incoming as usize] = ALONE;
            return;
        }
        let Some(node) = self.nodes.get_mut(t.root as usize).filter(|n| n.leaf) else {
            self.insert(t, incoming, slice, keys);
            self.remove(t, outgoing);
            return;
        };
        let entry = Entry::of(incoming, slice, keys(incoming));
        self.leaf_of[incoming as usize] = t.root;
        self.leaf_of[outgoing as usize] = NONE;
        let removed = node.swap(outgoing, entry);
        let (lo, hi) = (t.min_slice, t.max_slice);
        (t.min_slice, t.max_slice) = (lo.min(slice), hi.max(slice));
        if removed.min_slice != slice && (removed.min_slice == lo || removed.min_slice == hi) {
            (t.min_slice, t.max_slice) = node.slices();
        }
    }

    /// Changes the slice of an entity in the tree. Its position stays: slices do not sort.
    pub fn update_slice(&mut self, t: &mut Timeline, entity: u32, slice: u32) {
        debug_assert!(self.contains(entity), "in no tree");
        let n = self.leaf_of[entity as usize];
        if n == ALONE {
            (t.min_slice, t.max_slice) = (slice, slice);
            return;
        }
        let node = &mut self.nodes[n as usize];
        let i = node.position(entity);
        let entry = &mut node.entries[i];
        if entry.min_slice != slice {
            (entry.min_slice, entry.max_slice) = (slice, slice);
            self.propagate(n);
            (t.min_slice, t.max_slice) = self.nodes[t.root as usize].slices();
        }
    }

    /// Entity with the earliest deadline.
    pub fn first(&self, t: &Timeline) -> Option<u32> {
        // No predicate reads the keys, so that any will do.
        let keys = |_| Keys {
            deadline: 0,
            vruntime: 0,
        };
        self.first_where(t, |_| true, &keys)
            .map(|found| found.entity)
    }

    /// The entity with the earliest deadline among those with `vruntime - zero <= bound`.
    pub fn first_eligible(
        &self,
        t: &Timeline,
        zero: u64,
        bound: i64,
        keys: &impl Fn(u32) -> Keys,
    ) -> Option<Found> {
        self.first_where(t, |v| v.wrapping_sub(zero) as i64 <= bound, keys)
    }

    /// The entity with the earliest deadline among the eligible ones (`pick_eevdf`).
    ///
    /// `sum` is over all members of the queue, relative to `zero`.
    #[inline]
    pub fn earliest_eligible(
        &self,
        t: &Timeline,
        zero: u64,
        sum: WeightedSum,
        keys: &impl Fn(u32) -> Keys,
    ) -> Option<Found> {
        if t.is_alone() {
            let Keys { deadline, vruntime } = keys(t.single());
            let eligible = sum.is_eligible(vruntime.wrapping_sub(zero) as i64);
            return eligible.then_some(Found {
                entity: t.single(),
                deadline,
            });
        }
        let root = self.nodes.get(t.root as usize)?;
        if root.leaf {
            // A few products cost less than one division.
            let entry = root
                .filled()
                .iter()
                .find(|e| sum.is_eligible(e.vruntime.wrapping_sub(zero) as i64))?;
            return Some(Found {
                entity: entry.child,
                deadline: entry.deadline,
            });
        }
        // `sum >= key * weight` is `key <= floor(sum / weight)` for whole keys: one division
        // instead of a product for each entity on the path.
        let bound = floor_div(sum.w_vruntime, sum.weight.max(1) as i64);
        self.first_eligible(t, zero, bound, keys)
    }

    #[inline]
    fn first_where(
        &self,
        t: &Timeline,
        eligible: impl Fn(u64) -> bool,
        keys: &impl Fn(u32) -> Keys,
    ) -> Option<Found> {
        if t.root == NONE {
            return None;
        }
        if t.is_alone() {
            let Keys { deadline, vruntime } = keys(t.single());
            return eligible(vruntime).then_some(Found {
                entity: t.single(),
                deadline,
            });
        }
        let mut n = t.root;
        // A subtree's earliest vruntime is eligible if any in it is, so the walk never turns back.
        loop {
            let node = &self.nodes[n as usize];
            let entry = node.filled().iter().find(|e| eligible(e.vruntime))?;
            if node.leaf {
                return Some(Found {
                    entity: entry.child,
                    deadline: entry.deadline,
                });
            }
            n = entry.child;
        }
    }

    /// Calls `f` with each entity in order of deadline.
    pub fn for_each(&self, t: &Timeline, f: &mut impl FnMut(u32)) {
        if t.is_alone() {
            f(t.single());
        } else if t.root != NONE {
            self.visit(t.root, f);
        }
    }

    fn visit(&self, n: u32, f: &mut impl FnMut(u32)) {
        let node = &self.nodes[n as usize];
        for entry in node.filled() {
            if node.leaf {
                f(entry.child);
            } else {
                self.visit(entry.child, f);
            }
        }
    }

    fn node(&mut self, leaf: bool, parent: u32) -> u32 {
        if let Some(n) = self.free.pop() {
            // Entries beyond `len` are never read. Clearing them is most of the cost of `new`.
            let node = &mut self.nodes[n as usize];
            (node.len, node.leaf, node.parent) = (0, leaf, parent);
            return n;
        }
        if self.nodes.len() == self.nodes.capacity() {
            // By an eighth: at 576 bytes a node, doubling would reserve too much.
            let growth = (self.nodes.len() / 8).max(4);
            self.nodes.reserve_exact(growth);
            self.free.reserve(growth);
        }
        self.nodes.push(Node::new(leaf, parent));
        self.nodes.len() as u32 - 1
    }

    /// Records that `child`, an entity below a leaf or a node below an inner node, is in `node`.
    #[inline]
    fn link(&mut self, leaf: bool, child: u32, node: u32) {
        if leaf {
            self.leaf_of[child as usize] = node;
        } else {
            self.nodes[child as usize].parent = node;
        }
    }

    /// Inserts `entry` into node `n`, which is split if it is full.
    #[inline(never)]
    fn add(&mut self, t: &mut Timeline, n: u32, index: usize, entry: Entry) {
        let node = &mut self.nodes[n as usize];
        let leaf = node.leaf;
        if node.len() < FANOUT {
            node.put(index, entry);
            self.link(leaf, entry.child, n);
            return;
        }
        let right = self.split(n);
        let (half, index) = if index <= FANOUT / 2 {
            (n, index)
        } else {
            (right, index - FANOUT / 2)
        };
        self.nodes[half as usize].put(index, entry);
        self.link(leaf, entry.child, half);
        let (left_sum, right_sum) = (self.summary(n), self.summary(right));
        self.nodes[n as usize].copy_entry(&left_sum);
        self.nodes[right as usize].copy_entry(&right_sum);
        let parent = self.nodes[n as usize].parent;
        if parent == NONE {
            let root = self.node(false, NONE);
            self.nodes[root as usize].put(0, left_sum);
            self.nodes[root as usize].put(1, right_sum);
            self.nodes[n as usize].parent = root;
            self.nodes[right as usize].parent = root;
            t.root = root;
            return;
        }
        let above = &mut self.nodes[parent as usize];
        let i = above.position(n);
        above.entries[i] = left_sum;
        self.add(t, parent, i + 1, right_sum);
    }

    /// Moves the upper half of a full node to a new one.
    fn split(&mut self, n: u32) -> u32 {
        let (leaf, parent) = (self.nodes[n as usize].leaf, self.nodes[n as usize].parent);
        let right = self.node(leaf, parent);
        for i in FANOUT / 2..FANOUT {
            let entry = self.nodes[n as usize].entries[i];
            self.nodes[right as usize].put(i - FANOUT / 2, entry);
            self.link(leaf, entry.child, right);
        }
        self.nodes[n as usize].len = (FANOUT / 2) as u32;
        right
    }

    fn summary(&self, n: u32) -> Entry {
        self.nodes[n as usize].summary(n)
    }

    /// Node `n`, not the root, has lost an entry: frees it, merges it, or corrects those above.
    #[inline(never)]
    fn rebalance(&mut self, t: &mut Timeline, n: u32, removed: Entry) {
        let node = &self.nodes[n as usize];
        let (len, parent) = (node.len(), node.parent);
        if len >= FANOUT / 4 {
            self.shrink(n, &removed);
            return;
        }
        let above = &mut self.nodes[parent as usize];
        let i = above.position(n);
        if len == 0 {
            above.take(i);
            self.free.push(n);
        } else {
            // The left neighbour below the same parent, or the right one of a first node.
            let first = i.saturating_sub(1);
            let (a, b) = (above.entries[first].child, above.entries[first + 1].child);
            // A quarter of a merged node stays free, so that the next insertion does not split it.
            if above.len() < 2 || self.len(a) + self.len(b) > FANOUT * 3 / 4 {
                self.shrink(n, &removed);
                return;
            }
            for j in 0..self.len(b) {
                let entry = self.nodes[b as usize].entries[j];
                let leaf = self.nodes[a as usize].leaf;
                let end = self.len(a);
                self.nodes[a as usize].put(end, entry);
                self.link(leaf, entry.child, a);
            }
            let merged = self.summary(a);
            let above = &mut self.nodes[parent as usize];
            above.entries[first] = merged;
            above.take(first + 1);
            self.nodes[a as usize].copy_entry(&merged);
            self.free.push(b);
        }
        if parent != t.root {
            self.rebalance(t, parent, removed);
            return;
        }
        let root = &self.nodes[parent as usize];
        if root.len() == 1 {
            t.root = root.entries[0].child;
            self.nodes[t.root as usize].parent = NONE;
            self.free.push(parent);
        }
    }

    #[inline]
    fn len(&self, n: u32) -> usize {
        self.nodes[n as usize].len()
    }

    /// Corrects the entries above `n`, which has lost `removed`, up to the first that does not
    /// change. Only the loss of an extreme needs a pass over a node.
    #[inline(never)]
    fn shrink(&mut self, mut n: u32, removed: &Entry) {
        loop {
            let node = &self.nodes[n as usize];
            let parent = node.parent;
            if parent == NONE {
                return;
            }
            let above = &self.nodes[parent as usize];
            let i = above.position(n);
            let mut entry = above.entries[i];
            let (lo, hi) = (entry.min_slice, entry.max_slice);
            // Equal slices stay equal.
            if lo != hi && (removed.min_slice == lo || removed.max_slice == hi) {
                (entry.min_slice, entry.max_slice) = node.slices();
            }
            if removed.vruntime == entry.vruntime {
                entry.vruntime = node.earliest();
            }
            entry.deadline = node.last_deadline();
            if above.entries[i] == entry {
                return;
            }
            self.nodes[parent as usize].entries[i] = entry;
            self.nodes[n as usize].copy_entry(&entry);
            n = parent;
        }
    }

    /// Corrects the entries above `n`, up to the first that does not change.
    #[inline(never)]
    fn propagate(&mut self, mut n: u32) {
        loop {
            let parent = self.nodes[n as usize].parent;
            if parent == NONE {
                return;
            }
            let entry = self.summary(n);
            let above = &mut self.nodes[parent as usize];
            let i = above.position(n);
            if above.entries[i] == entry {
                return;
            }
            above.entries[i] = entry;
            self.nodes[n as usize].copy_entry(&entry);
            n = parent;
        }
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;

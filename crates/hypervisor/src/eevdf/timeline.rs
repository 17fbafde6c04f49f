//! The tree of queued entities: ordered by deadline, searched by eligibility.
//!
//! The kernel keeps an augmented red-black tree per queue (`cfs_rq->tasks_timeline`). This is a
//! B+ tree with the same answers: entries in order of deadline, equal deadlines in order of
//! insertion, and over each subtree the earliest virtual runtime and the shortest and longest
//! slice. All trees share one pool of nodes. A queue of one entity is in the [`Timeline`] itself, one
//! of up to [`FANOUT`] is one node: a sorted array. `docs/eevdf.md` has the measurements that chose
//! it.

use alloc::vec::Vec;

use super::queue::{fits, floor_div};
use super::weights::{before, earlier};

/// Entries in a node.
pub const FANOUT: usize = 16;

const NONE: u32 = u32::MAX;
/// In place of a node's number: the one entity of a tree, with this bit.
const ALONE: u32 = 1 << 31;
/// Entities are numbers below this.
pub(super) const MOST: usize = ALONE as usize - 1;

/// What an entry of a node says: of an entity in a leaf, of a subtree above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(align(32))]
struct Entry {
    /// Deadline; of a subtree the last one.
    deadline: u64,
    /// Virtual runtime; of a subtree the earliest.
    vruntime: u64,
    min_slice: u32,
    max_slice: u32,
    /// Entity, or node.
    child: u32,
}

impl Entry {
    const BLANK: Self = Self {
        deadline: 0,
        vruntime: 0,
        min_slice: 0,
        max_slice: 0,
        child: NONE,
    };

    /// Of an entity with its deadline and virtual runtime.
    #[inline]
    const fn of(entity: u32, slice: u32, (deadline, vruntime): (u64, u64)) -> Self {
        Self {
            deadline,
            vruntime,
            min_slice: slice,
            max_slice: slice,
            child: entity,
        }
    }
}

/// The head stands before the entries: a short queue is one or two cache lines.
#[derive(Clone, Debug)]
#[repr(C, align(64))]
struct Node {
    len: u32,
    parent: u32,
    /// Of its entry in its parent: most removals need not look there. Of a root: anything.
    vruntime: u64,
    min_slice: u32,
    max_slice: u32,
    leaf: bool,
    entries: [Entry; FANOUT],
}

impl Node {
    fn new(leaf: bool, parent: u32) -> Self {
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

    /// Keeps what its entry in its parent says.
    #[inline]
    fn note(&mut self, entry: &Entry) {
        self.vruntime = entry.vruntime;
        (self.min_slice, self.max_slice) = (entry.min_slice, entry.max_slice);
    }

    /// Whether nothing above changes now that `gone` is no longer at `at`: it was not the first
    /// or last in anything, and enough are left.
    #[inline]
    fn unmissed(&self, gone: &Entry, at: usize) -> bool {
        let (lo, hi) = (self.min_slice, self.max_slice);
        let slices = lo == hi || (gone.min_slice != lo && gone.max_slice != hi);
        slices && gone.vruntime != self.vruntime && at < self.len() && self.len() >= FANOUT / 4
    }

    #[inline]
    fn len(&self) -> usize {
        (self.len as usize).min(FANOUT)
    }

    #[inline]
    fn used(&self) -> &[Entry] {
        &self.entries[..self.len()]
    }

    /// Makes room at `at` and puts `entry` there. The node must not be full.
    #[inline]
    fn put(&mut self, at: usize, entry: Entry) {
        let end = self.len() + 1;
        // Entry by entry from behind: a node is too short for a call to memmove to pay.
        let tail = &mut self.entries[at..end];
        for i in (1..tail.len()).rev() {
            tail[i] = tail[i - 1];
        }
        tail[0] = entry;
        self.len += 1;
    }

    #[inline]
    fn take(&mut self, at: usize) {
        let tail = &mut self.entries[at..(self.len as usize).min(FANOUT)];
        for i in 1..tail.len() {
            tail[i - 1] = tail[i];
        }
        self.len -= 1;
    }

    /// Takes `go` out and puts `entry` in behind those with its deadline. What was taken out.
    #[inline(always)]
    fn swap(&mut self, go: u32, entry: Entry) -> Entry {
        let len = self.len();
        let used = &mut self.entries[..len];
        let mut hole = used.iter().position(|e| e.child == go).unwrap_or(0);
        let gone = used.get(hole).copied().unwrap_or(Entry::BLANK);
        // Entry by entry toward where it belongs: most that come have a late deadline.
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
        gone
    }

    #[inline]
    fn position(&self, child: u32) -> usize {
        self.used()
            .iter()
            .position(|e| e.child == child)
            .unwrap_or(0)
    }

    /// First entry whose deadline is after `deadline`, or the end.
    #[inline]
    fn upper_bound(&self, deadline: u64) -> usize {
        let used = self.used();
        // From behind: most insertions are of what has just run, with a late deadline.
        used.iter()
            .rposition(|e| !before(deadline, e.deadline))
            .map_or(0, |i| i + 1)
    }

    /// Shortest and longest slice.
    #[inline]
    fn slices(&self) -> (u32, u32) {
        let both = |(lo, hi): (u32, u32), e: &Entry| (lo.min(e.min_slice), hi.max(e.max_slice));
        self.used().iter().fold((u32::MAX, 0), both)
    }

    #[inline]
    fn earliest(&self) -> u64 {
        let used = self.used();
        used.iter()
            .fold(self.entries[0].vruntime, |v, e| earlier(v, e.vruntime))
    }

    #[inline]
    fn last_deadline(&self) -> u64 {
        self.used().last().map_or(0, |e| e.deadline)
    }

    /// The entry of this node, numbered `id`, in its parent. The node must not be empty.
    fn summary(&self, id: u32) -> Entry {
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

/// One tree. Only with the [`Pool`] it was filled from does it mean anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeline {
    /// The root's number, [`NONE`], or the one entity with [`ALONE`].
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

    /// Whether one entity is in it, without a node.
    #[inline]
    fn is_alone(&self) -> bool {
        self.root >= ALONE && self.root != NONE
    }

    /// The one entity, if [`Self::is_alone`].
    #[inline]
    fn only(&self) -> u32 {
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

/// Nodes of all trees, and where each entity is.
///
/// Entities are numbers below the capacity; each is in one tree at most. The caller keeps to
/// that: [`super::Fair`] inserts what is not in and removes what is.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    nodes: Vec<Node>,
    free: Vec<u32>,
    /// The leaf that an entity is in; [`ALONE`] if it is the one of its tree.
    leaf_of: Vec<u32>,
    /// Nodes are allocated when they are needed.
    lean: bool,
}

impl Pool {
    /// A pool for entities 0 to `capacity - 1`. Nothing is allocated until the next call.
    pub fn with_capacity(capacity: usize) -> Self {
        let mut pool = Self::default();
        pool.grow(capacity);
        pool
    }

    /// From here on nodes are allocated when they are needed, a few at a time, instead of with
    /// [`Self::grow`]: most queues are too short for one.
    pub fn set_lean(&mut self) {
        self.lean = true;
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
        // Each leaf but an empty root holds an entity, each inner node two children; and there are
        // no more trees in use than entities have been in.
        let nodes = capacity.saturating_mul(3);
        // Moved by hand: a larger block for an aligned type is a copy of all of the old one, and
        // most of it has never been touched.
        if nodes > self.nodes.capacity() {
            let mut room = Vec::with_capacity(nodes);
            room.append(&mut self.nodes);
            self.nodes = room;
        }
        self.free.reserve(nodes.saturating_sub(self.free.len()));
    }

    /// Where nodes and what is noted of entities lie.
    pub(super) fn memory(&self) -> [core::ops::Range<*const u8>; 2] {
        use super::memory::bytes_of;
        [bytes_of(&self.nodes), bytes_of(&self.leaf_of)]
    }

    /// Asks for where `entity` is noted, which an insertion or removal will need.
    pub(crate) fn prefetch(&self, entity: u32) {
        if let Some(leaf) = self.leaf_of.get(entity as usize) {
            crate::prefetch::prefetch(leaf);
        }
    }

    /// Whether `entity` is in a tree.
    #[inline]
    pub fn contains(&self, entity: u32) -> bool {
        self.leaf_of
            .get(entity as usize)
            .is_some_and(|leaf| *leaf != NONE)
    }

    /// Inserts an entity behind those with the same deadline.
    ///
    /// `slice` is in ns; the longest that the scheduler allows fits 32 bits. `keys` says deadline
    /// and virtual runtime of this entity and of those in the tree, which must stay as they are
    /// while they are in it: of a tree of one entity nothing is kept here but its slice.
    #[inline(always)]
    pub fn insert(
        &mut self,
        t: &mut Timeline,
        entity: u32,
        slice: u32,
        keys: &impl Fn(u32) -> (u64, u64),
    ) {
        if t.root == NONE {
            *t = Timeline::alone(entity, slice);
            self.leaf_of[entity as usize] = ALONE;
            return;
        }
        if t.is_alone() {
            self.second(t, keys(t.only()));
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
            let at = node.upper_bound(deadline);
            node.put(at, entry);
            self.leaf_of[entity as usize] = t.root;
            return;
        }
        self.descend(t, entry);
    }

    /// Gives a tree of one entity a node, for a second to come.
    #[inline(never)]
    fn second(&mut self, t: &mut Timeline, keys: (u64, u64)) {
        let entry = Entry::of(t.only(), t.min_slice, keys);
        t.root = self.node(true, NONE);
        self.nodes[t.root as usize].put(0, entry);
        self.leaf_of[entry.child as usize] = t.root;
    }

    /// Inserts from the root down, where the root is no leaf with room.
    #[inline(never)]
    fn descend(&mut self, t: &mut Timeline, entry: Entry) {
        let (deadline, vruntime, entity) = (entry.deadline, entry.vruntime, entry.child);
        let slice = entry.min_slice;
        let mut n = t.root;
        loop {
            let node = &mut self.nodes[n as usize];
            let at = node.upper_bound(deadline);
            if node.leaf {
                if node.len() < FANOUT {
                    node.put(at, entry);
                    self.leaf_of[entity as usize] = n;
                } else {
                    self.add(t, n, at, entry);
                }
                return;
            }
            let last = node.len() - 1;
            let sub = &mut node.entries[at.min(last)];
            if at > last {
                sub.deadline = deadline;
            }
            sub.vruntime = earlier(sub.vruntime, vruntime);
            sub.min_slice = sub.min_slice.min(slice);
            sub.max_slice = sub.max_slice.max(slice);
            let sub = *sub;
            n = sub.child;
            self.nodes[n as usize].note(&sub);
        }
    }

    /// Removes an entity that is in the tree.
    #[inline(always)]
    pub fn remove(&mut self, t: &mut Timeline, entity: u32) {
        let n = self.leaf_of[entity as usize];
        self.leaf_of[entity as usize] = NONE;
        if n == ALONE {
            *t = Timeline::EMPTY;
            return;
        }
        let node = &mut self.nodes[n as usize];
        let i = node.position(entity);
        let gone = node.entries[i];
        node.take(i);
        if n != t.root {
            if !node.unmissed(&gone, i) {
                self.shrunk(t, n, gone);
            }
        } else if node.len == 0 {
            self.free.push(n);
            *t = Timeline::EMPTY;
            return;
        }
        // Where all slices are the same, they still are.
        let (lo, hi) = (t.min_slice, t.max_slice);
        if lo != hi && (gone.min_slice == lo || gone.max_slice == hi) {
            (t.min_slice, t.max_slice) = self.nodes[t.root as usize].slices();
        }
    }

    /// [`Self::insert`] of `come`, then [`Self::remove`] of `go`: cheaper in a short queue.
    #[inline(always)]
    pub fn exchange(
        &mut self,
        t: &mut Timeline,
        (come, go): (u32, u32),
        slice: u32,
        keys: &impl Fn(u32) -> (u64, u64),
    ) {
        if t.is_alone() {
            *t = Timeline::alone(come, slice);
            self.leaf_of[go as usize] = NONE;
            self.leaf_of[come as usize] = ALONE;
            return;
        }
        let Some(node) = self.nodes.get_mut(t.root as usize).filter(|n| n.leaf) else {
            self.insert(t, come, slice, keys);
            self.remove(t, go);
            return;
        };
        let entry = Entry::of(come, slice, keys(come));
        self.leaf_of[come as usize] = t.root;
        self.leaf_of[go as usize] = NONE;
        let gone = node.swap(go, entry);
        let (lo, hi) = (t.min_slice, t.max_slice);
        (t.min_slice, t.max_slice) = (lo.min(slice), hi.max(slice));
        if gone.min_slice != slice && (gone.min_slice == lo || gone.min_slice == hi) {
            (t.min_slice, t.max_slice) = node.slices();
        }
    }

    /// The slice of an entity in the tree has changed; its place has not.
    pub fn update_slice(&mut self, t: &mut Timeline, entity: u32, slice: u32) {
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
        // Its keys are not asked: any is right.
        self.first_where(t, |_| true, &|_| (0, 0)).map(|(e, _)| e)
    }

    /// Entity with the earliest deadline of those that have `vruntime - zero <= bound`, and that
    /// deadline.
    pub fn first_eligible(
        &self,
        t: &Timeline,
        zero: u64,
        bound: i64,
        keys: &impl Fn(u32) -> (u64, u64),
    ) -> Option<(u32, u64)> {
        self.first_where(t, |v| v.wrapping_sub(zero) as i64 <= bound, keys)
    }

    /// Entity with the earliest deadline of those that are eligible, and that deadline.
    ///
    /// Eligible are those with `sum >= (vruntime - zero) * weight`, as [`super::Fair`]'s pick asks.
    #[inline]
    pub fn earliest_eligible(
        &self,
        t: &Timeline,
        zero: u64,
        (sum, weight): (i64, u64),
        keys: &impl Fn(u32) -> (u64, u64),
    ) -> Option<(u32, u64)> {
        if t.is_alone() {
            let (deadline, vruntime) = keys(t.only());
            let eligible = fits(sum, weight, vruntime.wrapping_sub(zero) as i64);
            return eligible.then_some((t.only(), deadline));
        }
        let root = self.nodes.get(t.root as usize)?;
        if root.leaf {
            // A few products cost less than one division.
            let entry = root
                .used()
                .iter()
                .find(|e| fits(sum, weight, e.vruntime.wrapping_sub(zero) as i64))?;
            return Some((entry.child, entry.deadline));
        }
        // `sum >= key * weight` is `key <= floor(sum / weight)` for whole keys: one division
        // instead of a product at each entity looked at.
        self.first_eligible(t, zero, floor_div(sum, weight.max(1) as i64), keys)
    }

    #[inline]
    fn first_where(
        &self,
        t: &Timeline,
        fits: impl Fn(u64) -> bool,
        keys: &impl Fn(u32) -> (u64, u64),
    ) -> Option<(u32, u64)> {
        if t.root == NONE {
            return None;
        }
        if t.is_alone() {
            let (deadline, vruntime) = keys(t.only());
            return fits(vruntime).then_some((t.only(), deadline));
        }
        let mut n = t.root;
        loop {
            let node = &self.nodes[n as usize];
            let entry = node.used().iter().find(|e| fits(e.vruntime))?;
            if node.leaf {
                return Some((entry.child, entry.deadline));
            }
            n = entry.child;
        }
    }

    /// Calls `f` with each entity in order of deadline.
    pub fn for_each(&self, t: &Timeline, f: &mut impl FnMut(u32)) {
        if t.is_alone() {
            f(t.root & !ALONE);
        } else {
            self.visit(t.root, f);
        }
    }

    fn visit(&self, n: u32, f: &mut impl FnMut(u32)) {
        let Some(node) = self.nodes.get(n as usize) else {
            return;
        };
        for entry in node.used() {
            if node.leaf {
                f(entry.child);
            } else {
                self.visit(entry.child, f);
            }
        }
    }

    fn node(&mut self, leaf: bool, parent: u32) -> u32 {
        if let Some(n) = self.free.pop() {
            // Entries beyond `len` are never read: clearing them would cost more than all else.
            let node = &mut self.nodes[n as usize];
            (node.len, node.leaf, node.parent) = (0, leaf, parent);
            return n;
        }
        if self.nodes.len() == self.nodes.capacity() {
            // By an eighth: a node is too large to keep as many again in reserve.
            let more = (self.nodes.len() / 8).max(4);
            self.nodes.reserve_exact(more);
            self.free.reserve(more);
        }
        self.nodes.push(Node::new(leaf, parent));
        self.nodes.len() as u32 - 1
    }

    #[inline]
    fn link(&mut self, leaf: bool, child: u32, to: u32) {
        if leaf {
            self.leaf_of[child as usize] = to;
        } else {
            self.nodes[child as usize].parent = to;
        }
    }

    #[inline(never)]
    fn add(&mut self, t: &mut Timeline, n: u32, at: usize, entry: Entry) {
        let node = &mut self.nodes[n as usize];
        let leaf = node.leaf;
        if node.len() < FANOUT {
            node.put(at, entry);
            self.link(leaf, entry.child, n);
            return;
        }
        let right = self.split(n);
        let (to, at) = if at <= FANOUT / 2 {
            (n, at)
        } else {
            (right, at - FANOUT / 2)
        };
        self.nodes[to as usize].put(at, entry);
        self.link(leaf, entry.child, to);
        let (left_sum, right_sum) = (self.summary(n), self.summary(right));
        self.nodes[n as usize].note(&left_sum);
        self.nodes[right as usize].note(&right_sum);
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

    /// Node `n`, not the root, has lost an entry: drops it, merges it, or corrects those above.
    #[inline(never)]
    fn shrunk(&mut self, t: &mut Timeline, n: u32, gone: Entry) {
        let node = &self.nodes[n as usize];
        let (len, parent, last) = (node.len(), node.parent, node.last_deadline());
        if len >= FANOUT / 4 {
            let above = &self.nodes[parent as usize];
            let sum = &above.entries[above.position(n)];
            let slices = sum.min_slice == sum.max_slice
                || (gone.min_slice != sum.min_slice && gone.max_slice != sum.max_slice);
            // What was not the first or last in anything is not missed above.
            if !(slices && gone.vruntime != sum.vruntime && last == sum.deadline) {
                self.propagate(n);
            }
            return;
        }
        let above = &mut self.nodes[parent as usize];
        let i = above.position(n);
        if len == 0 {
            above.take(i);
            self.free.push(n);
        } else {
            // The neighbour that is there; both under the same parent.
            let left = i.saturating_sub(1);
            let (a, b) = (above.entries[left].child, above.entries[left + 1].child);
            if above.len() < 2 || self.len(a) + self.len(b) > FANOUT * 3 / 4 {
                self.propagate(n);
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
            above.entries[left] = merged;
            above.take(left + 1);
            self.nodes[a as usize].note(&merged);
            self.free.push(b);
        }
        if parent != t.root {
            self.shrunk(t, parent, gone);
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

    /// Corrects the entries above `n` up to the first that is right.
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
            self.nodes[n as usize].note(&entry);
            n = parent;
        }
    }
}

#[cfg(test)]
#[path = "timeline_tests.rs"]
mod tests;

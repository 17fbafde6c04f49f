//! Weights of entities and totals of levels under flat picking.
//!
//! Level by level an entity competes in its own queue at its own weight, so that entity and queue
//! suffice. Under flat picking a task competes in the root's queue at its share of the tree. The
//! queue, weight and totals of its own level are here then.

use super::ids::{Arena, Ent, Que};

/// The additional state of an entity.
#[derive(Clone, Copy, Debug, Hash)]
struct FlatPart {
    /// Weight on its own level (`se->load.weight`).
    load: u64,
    /// Queue in which it competes: the root's of its run queue, for a task.
    pick_queue: Que,
}

/// The additional state of a queue.
#[derive(Clone, Copy, Debug, Hash)]
struct FlatQueue {
    /// Weight of all entities of its level, the current one included.
    load: u64,
    /// Entities of its level.
    nr_queued: u32,
}

/// Both tables. They have an entry for each entity and queue once a run queue picks flat, and none
/// until then.
#[derive(Clone, Debug, Hash)]
pub(super) struct FlatLevels {
    parts: Arena<FlatPart>,
    queues: Arena<FlatQueue>,
}

impl FlatLevels {
    pub(super) const DISABLED: Self = Self {
        parts: Arena::EMPTY,
        queues: Arena::EMPTY,
    };

    /// Whether a run queue picks flat.
    #[inline]
    pub(crate) fn is_enabled(&self) -> bool {
        // A run queue has at least its root's queue.
        self.queues.len() > 0
    }

    /// Entities in the table.
    pub(crate) fn entities(&self) -> usize {
        self.parts.len()
    }

    /// Queues in the table.
    pub(crate) fn queues(&self) -> usize {
        self.queues.len()
    }

    /// Adds an entity, which competes in the queue of its own level.
    pub(crate) fn push_entity(&mut self, lean: bool, load: u64, queue: Que) {
        let pick_queue = queue;
        self.parts.push(lean, FlatPart { load, pick_queue });
    }

    /// Adds a queue with the totals of its level.
    pub(crate) fn push_queue(&mut self, lean: bool, load: u64, nr_queued: u32) {
        self.queues.push(lean, FlatQueue { load, nr_queued });
    }

    /// Weight of an entity on its own level; `None` without flat picking.
    #[inline]
    pub(crate) fn load(&self, e: Ent) -> Option<u64> {
        self.parts.get(e).map(|part| part.load)
    }

    /// Sets that weight. Nothing happens without flat picking.
    #[inline]
    pub(crate) fn set_load(&mut self, e: Ent, load: u64) {
        if let Some(part) = self.parts.get_mut(e) {
            part.load = load;
        }
    }

    /// The queue in which an entity competes; `None` without flat picking.
    #[inline]
    pub(crate) fn pick_queue(&self, e: Ent) -> Option<Que> {
        self.parts.get(e).map(|part| part.pick_queue)
    }

    /// Sets that queue. Nothing happens without flat picking.
    pub(crate) fn set_pick_queue(&mut self, e: Ent, pick_queue: Que) {
        if let Some(part) = self.parts.get_mut(e) {
            part.pick_queue = pick_queue;
        }
    }

    /// Weight of all entities of a queue's level; `None` without flat picking.
    #[inline]
    pub(crate) fn level_load(&self, q: Que) -> Option<u64> {
        self.queues.get(q).map(|level| level.load)
    }

    /// Entities of a queue's level; `None` without flat picking.
    pub(crate) fn level_queued(&self, q: Que) -> Option<u32> {
        self.queues.get(q).map(|level| level.nr_queued)
    }

    /// Adds `entities` (-1, 0 or 1) and their weight `load` to the totals of a queue's level.
    /// Nothing happens without flat picking.
    #[inline]
    pub(crate) fn count(&mut self, q: Que, load: i64, entities: i32) {
        if let Some(level) = self.queues.get_mut(q) {
            debug_assert!(
                level.load.checked_add_signed(load).is_some()
                    && level.nr_queued.checked_add_signed(entities).is_some(),
                "less on the level than leaves it"
            );
            level.load = level.load.wrapping_add_signed(load);
            level.nr_queued = level.nr_queued.wrapping_add_signed(entities);
        }
    }
}

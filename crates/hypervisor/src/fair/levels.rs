//! Weights of entities and totals of levels, level by level and under flat picking.
//!
//! Level by level an entity competes in its own queue at its own weight, so that entity and queue
//! suffice. Under flat picking a task competes in the root's queue at its share of the tree. The
//! queue, weight and totals of its own level are here then.

use super::Fair;
use super::entity::Entity;
use super::ids::{Ent, Que};

/// The additional state of an entity under flat picking.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct FlatPart {
    /// Weight on its own level (`se->load.weight`).
    load: u64,
    /// Queue in which it competes: the root's of its run queue, for a task.
    pick_queue: Que,
}

/// The additional state of a queue under flat picking.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct FlatQueue {
    /// Weight of all entities of its level, the current one included.
    load: u64,
    /// Entities of its level.
    nr_queued: u32,
}

impl Fair {
    /// Extends the tables of flat picking to all entities and queues.
    pub(crate) fn extend_flat(&mut self) {
        let part = |e: &Entity| FlatPart {
            load: e.weight,
            pick_queue: e.queue,
        };
        // Before the first flat run queue, all entities compete level by level.
        let missing = self.ent.0.get(self.flat.0.len()..).unwrap_or(&[]);
        self.flat.0.extend(missing.iter().map(part));
        for q in self.flat_queues.0.len()..self.que.0.len() {
            let q = Que(q as u32);
            let (load, nr_queued) = (self.weight(q), self.que[q].members);
            self.flat_queues.0.push(FlatQueue { load, nr_queued });
        }
        self.has_flat = true;
    }

    /// Weight of an entity on its own level (`se->load.weight`).
    #[inline]
    pub(crate) fn load(&self, e: Ent) -> u64 {
        match self.flat.get(e) {
            Some(part) => part.load,
            None => self.ent[e].weight,
        }
    }

    /// Sets that weight. Without flat picking it is `Entity::weight`, which the caller sets.
    pub(crate) fn set_load(&mut self, e: Ent, load: u64) {
        if self.has_flat {
            self.flat[e].load = load;
        }
    }

    /// Weight of all entities of a queue's level, the current one included.
    #[inline]
    pub(crate) fn level_load(&self, q: Que) -> u64 {
        let level = self.flat_queues.0.get(q.0 as usize);
        level.map_or_else(|| self.weight(q), |level| level.load)
    }

    /// Entities of a queue's level.
    pub(crate) fn level_queued(&self, q: Que) -> u32 {
        let level = self.flat_queues.0.get(q.0 as usize);
        level.map_or(self.que[q].members, |level| level.nr_queued)
    }

    /// Adds `entities` (-1, 0 or 1) and their weight `load` to the totals of a queue's level.
    #[inline]
    pub(crate) fn count_level(&mut self, q: Que, load: i64, entities: i32) {
        if self.has_flat {
            let level = &mut self.flat_queues[q];
            debug_assert!(
                level.load.checked_add_signed(load).is_some()
                    && level.nr_queued.checked_add_signed(entities).is_some(),
                "less on the level than leaves it"
            );
            level.load = level.load.wrapping_add_signed(load);
            level.nr_queued = level.nr_queued.wrapping_add_signed(entities);
        }
    }

    /// The queue in which an entity competes: that of its own level, or the root's for a task
    /// under flat picking.
    #[inline]
    pub(crate) fn pick_queue(&self, e: Ent) -> Que {
        match self.flat.get(e) {
            Some(part) => part.pick_queue,
            None => self.ent[e].queue,
        }
    }

    pub(crate) fn set_pick_queue(&mut self, e: Ent, pick_queue: Que) {
        if self.has_flat {
            self.flat[e].pick_queue = pick_queue;
        }
    }
}

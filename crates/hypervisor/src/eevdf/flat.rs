//! Flat picking: one queue of tasks per CPU, groups for weight only ("Flatten the pick").
//!
//! The tree of groups is kept for counting. Each runnable task competes in the root's queue at
//! the weight that is its share of the tree. That weight is computed when the task is enqueued,
//! when it starts to run, at its tick and when its own weight changes; waiting tasks keep a
//! stale one, on purpose.

use super::Fair;
use super::enqueue::{Dequeue, Enqueue};
use super::entity::Entity;
use super::features::Feature;
use super::ids::{Ent, Que, RqId};
use super::queue::Resched;
use super::weights::{MIN_SHARES, NICE_0_LOAD};

/// What flat picking keeps of an entity beyond the rest.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct FlatPart {
    /// Weight on its own level (`se->load.weight`).
    load: u64,
    /// Queue in whose tree it competes: the root of its run queue, if it is a task there.
    arena: Que,
}

/// What flat picking keeps of a queue beyond the rest.
#[derive(Clone, Copy, Debug, Hash)]
pub(crate) struct FlatQueue {
    /// Weight of all entities of its level, the running one included.
    load: u64,
    /// Entities of its level.
    nr_queued: u32,
}

impl Fair {
    /// From here on a run queue picks flat: what it needs of entities and queues is kept.
    pub(crate) fn begin_flat(&mut self) {
        let part = |e: &Entity| FlatPart {
            load: e.weight,
            arena: e.queue,
        };
        // Those that are there have competed level by level so far.
        let missing = self.ent.0.get(self.flat.0.len()..).unwrap_or(&[]);
        self.flat.0.extend(missing.iter().map(part));
        for q in self.flat_queues.0.len()..self.que.0.len() {
            let q = Que(q as u32);
            let (load, nr_queued) = (self.weight(q), self.que[q].members);
            self.flat_queues.0.push(FlatQueue { load, nr_queued });
        }
        self.keeps_flat = true;
    }

    /// Weight of an entity on its own level (`se->load.weight`).
    #[inline]
    pub(crate) fn load(&self, e: Ent) -> u64 {
        match self.flat.at(e) {
            Some(part) => part.load,
            None => self.ent[e].weight,
        }
    }

    /// Sets it. Without flat picking the weight that the entity competes at follows, or has.
    pub(crate) fn set_load(&mut self, e: Ent, load: u64) {
        if self.keeps_flat {
            self.flat[e].load = load;
        }
    }

    /// Weight of all entities of a queue's level, the running one included.
    #[inline]
    pub(crate) fn level_load(&self, q: Que) -> u64 {
        let kept = self.flat_queues.0.get(q.0 as usize);
        kept.map_or_else(|| self.weight(q), |kept| kept.load)
    }

    /// Entities of a queue's level.
    pub(crate) fn level_queued(&self, q: Que) -> u32 {
        let kept = self.flat_queues.0.get(q.0 as usize);
        kept.map_or(self.que[q].members, |kept| kept.nr_queued)
    }

    /// An entity of weight `load` comes to a queue's level or, below 0, leaves it; or its weight
    /// there changes by `load`.
    #[inline]
    pub(crate) fn count_level(&mut self, q: Que, load: i64, entities: i32) {
        if self.keeps_flat {
            let kept = &mut self.flat_queues[q];
            kept.load = kept.load.wrapping_add_signed(load);
            kept.nr_queued = kept.nr_queued.wrapping_add_signed(entities);
        }
    }

    /// Queue in whose tree an entity competes: the one that counts it, but under flat picking the
    /// root.
    #[inline]
    pub(crate) fn arena(&self, e: Ent) -> Que {
        match self.flat.at(e) {
            Some(part) => part.arena,
            None => self.ent[e].queue,
        }
    }

    pub(crate) fn set_arena(&mut self, e: Ent, arena: Que) {
        if self.keeps_flat {
            self.flat[e].arena = arena;
        }
    }

    /// Share of the tree that an entity that is counted on all its levels has (`h_load`).
    ///
    /// From the task up, each level multiplies by `load / queue load` and floors at 2; the top
    /// level multiplies by `load / NICE_0_LOAD`, so a task of the root group gets its own weight.
    pub(crate) fn flat_weight(&self, task: Ent) -> u64 {
        let mut w = NICE_0_LOAD;
        let mut e = task;
        while e.is_some() {
            let ent = &self.ent[e];
            let (parent, whole) = match &self.que[ent.queue] {
                queue if queue.owner.is_some() => (queue.owner, self.level_load(ent.queue)),
                root => (root.owner, NICE_0_LOAD),
            };
            let part = u128::from(w) * u128::from(self.load(e)) / u128::from(whole.max(1));
            w = u64::try_from(part).unwrap_or(u64::MAX).max(MIN_SHARES);
            e = parent;
        }
        w
    }

    #[inline(never)]
    pub(crate) fn flat_enqueue(&mut self, task: Ent, flags: Enqueue) {
        let rq = self.ent[task].rq;
        let root = self.rqs[rq].root;
        self.update_curr(root);
        let mut count = self.enqueue_count(task, flags);
        let mut e = task;
        while e.is_some() {
            let q = self.ent[e].queue;
            self.refresh_weight(e);
            if !self.ent[e].on_rq {
                self.account_load(q, e);
                // The task itself is not a member before it is placed.
                self.ent[e].on_rq = e != task;
            }
            self.count_up(q, &mut count);
            e = self.parent(e);
        }
        let weight = self.flat_weight(task);
        self.rescale(task, weight, false);
        self.place(root, task, flags.initial);
        self.ent[task].on_rq = true;
        self.que[root].members += 1;
        if self.que[root].curr != task {
            self.tree_insert(root, task);
        }
    }

    /// False if the task stays, delayed.
    #[inline(never)]
    pub(crate) fn flat_dequeue(&mut self, task: Ent, flags: Dequeue) -> bool {
        let root = self.arena(task);
        self.update_curr(root);
        self.clear_buddies(root, task);
        let may_stay = flags.may_stay() && self.cfg.features.has(Feature::DelayDequeue);
        // The lag is taken while the task still counts.
        let stays = may_stay && !self.eligible(root, task);
        self.update_lag(root, task);
        if stays {
            self.set_delayed(task);
            return false;
        }
        if !flags.sleep && self.cfg.features.has(Feature::PlaceRelDeadline) {
            let ent = &mut self.ent[task];
            ent.deadline = ent.deadline.wrapping_sub(ent.vruntime);
            ent.rel_deadline = true;
        }
        if self.que[root].curr != task {
            self.tree_remove(root, task);
        }
        self.que[root].members -= 1;
        let mut count = self.dequeue_count(task, flags);
        if flags.last {
            self.clear_delayed(task);
        }
        let mut leaves = true;
        let mut e = task;
        while e.is_some() {
            let q = self.ent[e].queue;
            if leaves {
                self.unaccount_load(q, e);
                self.ent[e].on_rq = false;
                leaves = self.level_load(q) == 0;
            } else {
                self.refresh_weight(e);
            }
            self.count_down(q, &mut count);
            e = self.parent(e);
        }
        true
    }

    #[inline(never)]
    pub(crate) fn flat_put(&mut self, prev: Ent) {
        let root = self.arena(prev);
        if self.ent[prev].on_rq {
            self.update_curr(root);
            self.tree_insert(root, prev);
        }
        self.que[root].curr = Ent::NONE;
    }

    #[inline(never)]
    pub(crate) fn flat_set(&mut self, next: Ent, first: bool) {
        let root = self.arena(next);
        self.set_next_entity(root, next, false);
        self.flat_reweight_curr(next);
        if first {
            self.set_protect(root, next);
        }
    }

    /// Gives the running task, if it is queued, the weight that it should have now.
    fn flat_reweight_curr(&mut self, curr: Ent) {
        if !self.ent[curr].on_rq {
            return;
        }
        let weight = self.flat_weight(curr);
        if weight != self.ent[curr].weight {
            self.reweight_queued(self.arena(curr), curr, weight);
        }
    }

    pub(crate) fn flat_tick(&mut self, rq: RqId, timer: bool) {
        let (root, curr) = (self.rqs[rq].root, self.rqs[rq].curr);
        if curr.is_none() {
            return;
        }
        self.update_curr(root);
        let mut e = self.parent(curr);
        while e.is_some() {
            self.refresh_weight(e);
            e = self.parent(e);
        }
        self.flat_reweight_curr(curr);
        if timer {
            self.request(rq, Resched::Now);
        }
    }
}

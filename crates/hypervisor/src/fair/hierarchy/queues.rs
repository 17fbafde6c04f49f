//! Members of queues: their weights, slices and buddies, and the timelines.

use super::level::Level;
use super::{Ent, Hierarchy, Que};
use crate::fair::cfs_rq::Running;
use crate::fair::eevdf::lag::{Average, WeightedSum, floor_div};
use crate::fair::timeline::Found;

impl Hierarchy {
    /// Weight of an entity on its own level (`se->load.weight`).
    #[inline]
    pub(crate) fn load(&self, e: Ent) -> u64 {
        self.flat.load(e).unwrap_or_else(|| self[e].weight())
    }

    /// Sets that weight. Without flat picking it is `SchedEntity::weight`, which the caller sets.
    #[inline]
    pub(crate) fn set_load(&mut self, e: Ent, load: u64) {
        self.flat.set_load(e, load);
    }

    /// Weight of all entities of a queue's level, the current one included.
    #[inline]
    pub(crate) fn level_load(&self, q: Que) -> u64 {
        self.flat.level_load(q).unwrap_or_else(|| self.weight(q))
    }

    /// Entities of a queue's level.
    pub(crate) fn level_queued(&self, q: Que) -> u32 {
        self.flat.level_queued(q).unwrap_or(self[q].members())
    }

    /// Adds `entities` (-1, 0 or 1) and their weight `load` to the totals of a queue's level.
    #[inline]
    pub(crate) fn count_level(&mut self, q: Que, load: i64, entities: i32) {
        self.flat.count(q, load, entities);
    }

    /// The queue in which an entity competes: that of its own level, or the root's for a task
    /// under flat picking.
    #[inline]
    pub(crate) fn pick_queue(&self, e: Ent) -> Que {
        self.flat.pick_queue(e).unwrap_or_else(|| self[e].queue())
    }

    pub(crate) fn set_pick_queue(&mut self, e: Ent, pick_queue: Que) {
        self.flat.set_pick_queue(e, pick_queue);
    }

    /// A queue with the tables that its members are in.
    #[inline(always)]
    pub(crate) fn level(&mut self, q: Que) -> Level<'_> {
        Level {
            queue: &mut self.queues[q],
            entities: self.entities.as_mut_slice(),
            pool: &mut self.pool,
        }
    }

    /// The current entity of `q` if it is a member.
    #[inline]
    pub(crate) fn curr_on(&self, q: Que) -> Option<Ent> {
        let curr = self[q].curr();
        self.get(curr).filter(|c| c.on_rq()).map(|_| curr)
    }

    /// Sums over all members.
    #[inline(always)]
    pub(crate) fn sums(&self, q: Que) -> WeightedSum {
        let queue = &self[q];
        queue.sums(queue.running(self.entities.as_slice()))
    }

    /// The current entity of `q`, if it is a member.
    #[inline(always)]
    pub(crate) fn running(&self, q: Que) -> Option<Running> {
        self[q].running(self.entities.as_slice())
    }

    /// `entity_eligible`.
    #[inline(always)]
    pub(crate) fn eligible(&self, q: Que, e: Ent) -> bool {
        self[q].eligible(self.running(q), self[e].vruntime())
    }

    /// `avg_vruntime` without moving the base.
    #[inline]
    pub(crate) fn average(&self, q: Que) -> u64 {
        let queue = &self[q];
        let WeightedSum { w_vruntime, weight } = self.sums(q);
        if queue.sum_weight() != 0 {
            let delta = floor_div(w_vruntime, weight as i64);
            return queue.zero_vruntime().wrapping_add(delta as u64);
        }
        if weight == 0 {
            queue.zero_vruntime()
        } else {
            self[queue.curr()].vruntime()
        }
    }

    /// `avg_vruntime`: the average of `q`, which becomes the base.
    #[inline]
    pub(crate) fn avg_vruntime(&mut self, q: Que) -> Average {
        let queue = &mut self.queues[q];
        queue.avg_vruntime(queue.running(self.entities.as_slice()))
    }

    /// Weight of all members.
    #[inline]
    pub(crate) fn weight(&self, q: Que) -> u64 {
        self.sums(q).weight
    }

    /// Shortest slice among the members in ns (`cfs_rq_min_slice`); `u32::MAX` without any.
    #[inline]
    pub(crate) fn min_slice(&self, q: Que) -> u64 {
        let queue = &self[q];
        let tree = u64::from(queue.timeline().shortest());
        let curr = queue.running(self.entities.as_slice());
        curr.map_or(tree, |curr| tree.min(curr.slice))
    }

    /// Longest slice among the members in ns (`cfs_rq_max_slice`); 0 without any.
    #[inline]
    pub(crate) fn max_slice(&self, q: Que) -> u64 {
        let queue = &self[q];
        let tree = u64::from(queue.timeline().longest());
        let curr = queue.running(self.entities.as_slice());
        curr.map_or(tree, |curr| tree.max(curr.slice))
    }

    /// Sets the slice of an entity that is queued, in the tree or current.
    #[inline]
    pub(crate) fn set_queued_slice(&mut self, e: Ent, slice: u64) {
        let slice = slice as u32;
        if self[e].slice() != slice {
            self[e].set_slice(slice);
            if self.pool.contains(e.0) {
                let q = self.pick_queue(e);
                self.queues[q].update_slice(&mut self.pool, e, slice);
            }
        }
    }

    /// The entity with the earliest deadline in the tree.
    #[inline]
    pub(crate) fn first(&self, q: Que) -> Option<Ent> {
        self.pool.first(self[q].timeline()).map(Ent)
    }

    /// The entity with the earliest deadline in the tree among the eligible ones (`pick_eevdf`).
    /// `sum` is over all members.
    #[inline(always)]
    pub(crate) fn earliest_eligible(&self, q: Que, sum: WeightedSum) -> Option<Found> {
        let (queue, keys) = (&self[q], &|e| self.entities[Ent(e)].keys());
        let zero = queue.zero_vruntime();
        self.pool
            .earliest_eligible(queue.timeline(), zero, sum, keys)
    }

    /// Calls `f` with each entity of the tree in order of deadline.
    pub(crate) fn for_each_waiting(&self, q: Que, f: &mut impl FnMut(Ent)) {
        self.pool.for_each(self[q].timeline(), &mut |e| f(Ent(e)));
    }

    /// `set_next_buddy`: nominates `e` and its ancestors, up to an idle one.
    pub(crate) fn set_next_buddy(&mut self, mut e: Ent) {
        while e.is_some() {
            if !self[e].on_rq() || self.is_idle(e) {
                return;
            }
            let q = self[e].queue();
            self[q].set_next(e);
            e = self.parent(e);
        }
    }

    /// `__clear_buddies_next`: clears `e` as the buddy of `q`, and its nominated ancestors.
    #[inline(always)]
    pub(crate) fn clear_next_buddy(&mut self, q: Que, e: Ent) {
        if self[q].next() == e {
            self.clear_buddies_up(q, e);
        }
    }

    #[inline(never)]
    fn clear_buddies_up(&mut self, q: Que, e: Ent) {
        self[q].set_next(Ent::NONE);
        let mut e = self.parent(e);
        while e.is_some() {
            let q = self[e].queue();
            if self[q].next() != e {
                return;
            }
            self[q].set_next(Ent::NONE);
            e = self.parent(e);
        }
    }
}

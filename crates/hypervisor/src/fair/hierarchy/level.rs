//! One level: a queue, and the entities that compete in it.

use super::{Ent, SchedEntity};
use crate::fair::cfs_rq::{CfsRq, Running};
use crate::fair::timeline::Pool;

/// A queue with the tables that its members are in, for operations that change both.
pub(crate) struct Level<'a> {
    pub(super) queue: &'a mut CfsRq,
    pub(super) entities: &'a mut [SchedEntity],
    pub(super) pool: &'a mut Pool,
}

impl<'a> Level<'a> {
    /// The queue and an entity.
    #[inline(always)]
    pub(crate) fn pair(&mut self, e: Ent) -> (&mut CfsRq, &mut SchedEntity) {
        (self.queue, &mut self.entities[e.0 as usize])
    }

    /// The current entity, if it is a member.
    #[inline(always)]
    pub(crate) fn running(&self) -> Option<Running> {
        self.queue.running(self.entities)
    }

    /// Adds a placed entity to the members. Its flag `on_rq` stays.
    #[inline(always)]
    pub(crate) fn link(&mut self, e: Ent) {
        self.queue.link(self.pool, self.entities, e);
    }

    /// Takes an entity out of the members. Its flag `on_rq` stays.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, e: Ent) {
        self.queue
            .unlink(self.pool, e, &self.entities[e.0 as usize]);
    }

    /// A placed entity becomes a member.
    #[inline(always)]
    pub(crate) fn join(&mut self, e: Ent) -> &mut CfsRq {
        let ent = &mut self.entities[e.0 as usize];
        debug_assert!(!ent.on_rq(), "a member already");
        ent.set_on_rq(true);
        self.link(e);
        self.queue
    }

    /// A member leaves.
    #[inline(always)]
    pub(crate) fn leave(&mut self, e: Ent) -> &mut CfsRq {
        debug_assert!(self.entities[e.0 as usize].on_rq(), "no member");
        self.unlink(e);
        self.entities[e.0 as usize].set_on_rq(false);
        self.queue
    }

    /// Entity `e` is the current one from time `now` on: it leaves the tree.
    #[inline(always)]
    pub(crate) fn set_curr(self, e: Ent, now: u64) -> (&'a mut CfsRq, &'a mut SchedEntity) {
        let ent = &mut self.entities[e.0 as usize];
        if ent.on_rq() {
            self.queue.tree_remove(self.pool, e, ent);
        }
        ent.start_exec(now);
        self.queue.set_curr(e);
        (self.queue, ent)
    }

    /// The current entity `e` returns to the tree, if it is a member. Returns the entity that owns
    /// the queue.
    #[inline(always)]
    pub(crate) fn put_curr(&mut self, e: Ent) -> Ent {
        if self.entities[e.0 as usize].on_rq() {
            self.queue.tree_insert(self.pool, self.entities, e);
        }
        self.queue.set_curr(Ent::NONE);
        self.queue.owner()
    }

    /// The current entity `outgoing` returns to the tree, and `incoming` is current in its place,
    /// from time `now` on.
    #[inline(always)]
    pub(crate) fn switch(
        self,
        outgoing: Ent,
        incoming: Ent,
        now: u64,
    ) -> (&'a mut CfsRq, &'a mut SchedEntity) {
        debug_assert_eq!(
            self.queue.curr(),
            outgoing,
            "the previous task is not current"
        );
        self.queue
            .tree_exchange(self.pool, self.entities, outgoing, incoming);
        self.queue.set_curr(incoming);
        let ent = &mut self.entities[incoming.0 as usize];
        ent.start_exec(now);
        (self.queue, ent)
    }

    /// An entity returns to the tree after a change of its virtual times or weight.
    #[inline(always)]
    pub(crate) fn tree_insert(&mut self, e: Ent) {
        self.queue.tree_insert(self.pool, self.entities, e);
    }

    /// An entity leaves the tree for such a change.
    #[inline(always)]
    pub(crate) fn tree_remove(&mut self, e: Ent) {
        self.queue
            .tree_remove(self.pool, e, &self.entities[e.0 as usize]);
    }
}

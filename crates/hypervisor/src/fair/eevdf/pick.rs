//! The pick of a queue's next entity, and its protection from preemption.

use crate::fair::Fair;
use crate::fair::config::Config;
use crate::fair::entity::Entity;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que};
use crate::fair::queue::{Queue, Running};
use crate::fair::timeline::Found;
use crate::fair::weights::{before, earlier};

/// `pick_eevdf`, of a queue with at least two members.
#[inline(always)]
pub(super) fn pick_eevdf(fair: &Fair, q: Que, curr: Option<&Entity>, protect: bool) -> Ent {
    let queue = &fair.que[q];
    let running = queue.curr;
    let sum = queue.sums(curr.map(Running::of));
    // An entity that leaves the queue stops being its buddy: see `clear_buddies`.
    if protect
        && let Some(buddy) = fair.ent.get(queue.next)
        && fair.cfg.features.has(Feature::PickBuddy)
        && sum.is_eligible(queue.key(buddy.vruntime))
    {
        debug_assert!(buddy.on_rq, "the buddy has left the queue");
        return queue.next;
    }
    let eligible = curr.filter(|c| sum.is_eligible(queue.key(c.vruntime)));
    if protect && eligible.is_some_and(Entity::protected) {
        return running;
    }
    let keys = &|e| fair.ent.keys(e);
    let zero = queue.zero_vruntime;
    let best = fair
        .pool
        .earliest_eligible(&queue.timeline, zero, sum, keys);
    match (best, eligible) {
        (Some(found), Some(c)) if before(c.deadline, found.deadline) => running,
        (Some(Found { entity, .. }), _) => Ent(entity),
        // The member with the least vruntime is eligible. Outside the tree that is `curr`; without
        // it only sums that have wrapped leave no entity.
        (None, _) if curr.is_some() => running,
        (None, _) => fair.leftmost(q),
    }
}

impl Queue {
    /// `set_protect_slice`: protection ends at the deadline, or after the shortest queued slice.
    #[inline(always)]
    pub(super) fn set_protect_slice(&self, ent: &mut Entity, cfg: &Config) {
        let mut slice = cfg.normalized_base_slice_ns;
        if cfg.features.has(Feature::RunToParity) {
            slice = u64::from(self.timeline.shortest());
        }
        let mut vprot = ent.deadline;
        if slice < u64::from(ent.slice) {
            vprot = earlier(vprot, ent.vruntime.wrapping_add(ent.vtime(slice)));
        }
        ent.vprot = vprot;
    }
}

impl Entity {
    /// `protect_slice`.
    #[inline]
    pub(crate) fn protected(&self) -> bool {
        before(self.vruntime, self.vprot)
    }

    /// `cancel_protect_slice`.
    #[inline]
    pub(crate) fn cancel_protect_slice(&mut self) {
        if self.protected() {
            self.vprot = self.vruntime;
        }
    }
}

impl Fair {
    /// `update_protect_slice`: shortens the protection to the shortest slice queued.
    #[inline(always)]
    pub(super) fn update_protect_slice(&mut self, q: Que, e: Ent) {
        let queue = &self.que[q];
        let mut slice = u64::from(queue.timeline.shortest());
        if let Some(curr) = queue.running(&self.ent) {
            slice = slice.min(curr.slice);
        }
        let ent = &mut self.ent[e];
        let end = ent.vruntime.wrapping_add(ent.vtime(slice));
        ent.vprot = earlier(ent.vprot, end);
    }
}

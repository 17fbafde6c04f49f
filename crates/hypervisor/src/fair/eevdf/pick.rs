//! The pick of a queue's next entity, and its protection from preemption.

use crate::fair::cfs_rq::{CfsRq, Running};
use crate::fair::config::Config;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que};
use crate::fair::sched::Sched;
use crate::fair::sched_entity::SchedEntity;
use crate::fair::timeline::Found;
use crate::fair::weights::before;

/// `pick_eevdf`, of a queue with at least two members.
#[inline(always)]
pub(super) fn pick_eevdf(sched: &Sched, q: Que, curr: Option<&SchedEntity>, protect: bool) -> Ent {
    let queue = &sched.tree[q];
    let running = queue.curr();
    let sum = queue.sums(curr.map(Running::of));
    // An entity that leaves the queue stops being its buddy: see `clear_buddies`.
    if protect
        && let Some(buddy) = sched.tree.get(queue.next())
        && sched.cfg.features.has(Feature::PickBuddy)
        && sum.is_eligible(queue.key(buddy.vruntime()))
    {
        debug_assert!(buddy.on_rq(), "the buddy has left the queue");
        return queue.next();
    }
    let eligible = curr.filter(|c| sum.is_eligible(queue.key(c.vruntime())));
    if protect && eligible.is_some_and(SchedEntity::protected) {
        return running;
    }
    let best = sched.tree.earliest_eligible(q, sum);
    match (best, eligible) {
        (Some(found), Some(c)) if before(c.deadline(), found.deadline) => running,
        (Some(Found { entity, .. }), _) => Ent(entity),
        // The member with the least vruntime is eligible. Outside the tree that is `curr`; without
        // it only sums that have wrapped leave no entity.
        (None, _) if curr.is_some() => running,
        (None, _) => sched.tree.first(q).unwrap_or(Ent::NONE),
    }
}

/// `set_protect_slice`: protection ends at the deadline, or after the shortest queued slice.
#[inline(always)]
pub(super) fn set_protect_slice(cfs_rq: &CfsRq, ent: &mut SchedEntity, cfg: &Config) {
    let mut slice = cfg.normalized_base_slice_ns;
    if cfg.features.has(Feature::RunToParity) {
        slice = u64::from(cfs_rq.timeline().shortest());
    }
    ent.set_protect_slice(slice);
}

/// `update_protect_slice`: shortens the protection to the shortest slice queued.
#[inline(always)]
pub(super) fn update_protect_slice(sched: &mut Sched, q: Que, e: Ent) {
    let mut level = sched.tree.level(q);
    let (queue, ent) = level.pair(e);
    debug_assert_eq!(queue.curr(), e, "only the current entity is protected");
    let mut slice = queue.timeline().shortest();
    if ent.on_rq() {
        slice = slice.min(ent.slice());
    }
    ent.limit_protection(u64::from(slice));
}

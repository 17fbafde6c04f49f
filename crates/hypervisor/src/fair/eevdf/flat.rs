//! Flat picking: one queue of tasks per CPU, groups for weight only ("Flatten the pick").
//!
//! The tree of groups is kept for counting. Each runnable task competes in the root's queue, at
//! the weight that is its share of the tree. That weight is computed as the task is enqueued or
//! picked, at its tick, and as its own weight changes. The weights of waiting tasks are stale by
//! design.

use super::lag::update_queued_lag;
use super::place;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, RqId};
use crate::fair::rq::Resched;
use crate::fair::sched::Sched;
use crate::fair::sched::{Dequeue, Enqueue};
use crate::fair::weights::{MIN_SHARES, NICE_0_LOAD, share};

/// Share of the tree of a task that is counted on all its levels (`h_load`).
///
/// From the task up, each level multiplies by `load / queue load` and floors at 2. The top
/// level multiplies by `load / NICE_0_LOAD`: a task of the root group gets its own weight.
pub(crate) fn flat_weight(sched: &Sched, task: Ent) -> u64 {
    let mut w = NICE_0_LOAD;
    let mut e = task;
    while e.is_some() {
        let ent = &sched.tree[e];
        let (parent, whole) = match &sched.tree[ent.queue()] {
            queue if queue.owner().is_some() => (queue.owner(), sched.tree.level_load(ent.queue())),
            root => (root.owner(), NICE_0_LOAD),
        };
        w = share(w, sched.tree.load(e), whole).max(MIN_SHARES);
        e = parent;
    }
    w
}

/// `enqueue_task_fair`.
#[inline(never)]
pub(crate) fn enqueue(sched: &mut Sched, task: Ent, flags: Enqueue) {
    debug_assert!(!sched.tree[task].on_rq(), "queued twice");
    let rq = sched.tree[task].rq();
    let root = sched.rqs[rq].root();
    sched.update_curr(root);
    let mut count = sched.enqueue_count(task, flags);
    let mut e = task;
    while e.is_some() {
        let q = sched.tree[e].queue();
        sched.update_cfs_group(e);
        if !sched.tree[e].on_rq() {
            sched.account_load(q, e);
            // The task itself is not a member before it is placed.
            sched.tree[e].set_on_rq(e != task);
        }
        sched.count_up(q, &mut count);
        e = sched.tree.parent(e);
    }
    let weight = flat_weight(sched, task);
    sched.rescale_entity(task, weight, false);
    place::place(sched, root, task, flags.initial);
    sched.tree.level(root).join(task);
}

/// `dequeue_entities`: false if the task stays, delayed.
#[inline(never)]
pub(crate) fn dequeue(sched: &mut Sched, task: Ent, flags: Dequeue) -> bool {
    debug_assert!(sched.tree[task].on_rq(), "dequeued twice");
    let root = sched.tree.pick_queue(task);
    sched.update_curr(root);
    sched.clear_buddies(root, task);
    let may_stay = flags.may_stay() && sched.cfg.features.has(Feature::DelayDequeue);
    // Before the removal: the average must include the task.
    let stays = may_stay && !sched.tree.eligible(root, task);
    update_queued_lag(sched, root, task);
    if stays {
        place::set_delayed(sched, task);
        return false;
    }
    if !flags.sleep && sched.cfg.features.has(Feature::PlaceRelDeadline) {
        sched.tree[task].make_deadline_relative();
    }
    sched.tree.level(root).leave(task);
    let mut count = sched.dequeue_count(task, flags);
    if flags.last {
        place::clear_delayed(sched, task);
    }
    let mut leaves = true;
    let mut e = task;
    while e.is_some() {
        let q = sched.tree[e].queue();
        if leaves {
            sched.unaccount_load(q, e);
            sched.tree[e].set_on_rq(false);
            leaves = sched.tree.level_load(q) == 0;
        } else {
            sched.update_cfs_group(e);
        }
        sched.count_down(q, &mut count);
        e = sched.tree.parent(e);
    }
    true
}

/// `put_prev_task_fair`.
#[inline(never)]
pub(crate) fn put_prev(sched: &mut Sched, prev: Ent) {
    let root = sched.tree.pick_queue(prev);
    if sched.tree[prev].on_rq() {
        sched.update_curr(root);
    }
    sched.tree.level(root).put_curr(prev);
}

/// `set_next_task_fair`.
#[inline(never)]
pub(crate) fn set_next(sched: &mut Sched, next: Ent, first: bool) {
    let root = sched.tree.pick_queue(next);
    sched.set_next_entity(root, next, false);
    // Before the protected slice is set: its length in virtual time follows from the weight.
    reweight_curr(sched, next);
    if first {
        let mut level = sched.tree.level(root);
        let (queue, ent) = level.pair(next);
        sched.cfg.class_set_next(queue, ent, true);
    }
}

/// Updates the weight of the current task, if it is queued.
fn reweight_curr(sched: &mut Sched, curr: Ent) {
    if !sched.tree[curr].on_rq() {
        return;
    }
    let weight = flat_weight(sched, curr);
    if weight != sched.tree[curr].weight() {
        place::reweight_queued(sched, sched.tree.pick_queue(curr), curr, weight);
    }
}

/// `task_tick_fair`; `timer` is the slice timer's.
pub(crate) fn tick(sched: &mut Sched, rq: RqId, timer: bool) {
    let (root, curr) = (sched.rqs[rq].root(), sched.rqs[rq].curr());
    if curr.is_none() {
        return;
    }
    sched.update_curr(root);
    let mut e = sched.tree.parent(curr);
    while e.is_some() {
        sched.update_cfs_group(e);
        e = sched.tree.parent(e);
    }
    reweight_curr(sched, curr);
    if timer {
        sched.resched_curr(rq, Resched::Now);
    }
}

//! Flat picking: one queue of tasks per CPU, groups for weight only ("Flatten the pick").
//!
//! The tree of groups is kept for counting. Each runnable task competes in the root's queue, at
//! the weight that is its share of the tree. That weight is computed as the task is enqueued or
//! picked, at its tick, and as its own weight changes. The weights of waiting tasks are stale by
//! design.

use super::place;
use crate::fair::Fair;
use crate::fair::enqueue::{Dequeue, Enqueue};
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, RqId};
use crate::fair::queue::Resched;
use crate::fair::weights::{MIN_SHARES, NICE_0_LOAD};

impl Fair {
    /// Share of the tree of a task that is counted on all its levels (`h_load`).
    ///
    /// From the task up, each level multiplies by `load / queue load` and floors at 2. The top
    /// level multiplies by `load / NICE_0_LOAD`: a task of the root group gets its own weight.
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

    /// `enqueue_task_fair`.
    #[inline(never)]
    pub(crate) fn flat_enqueue(&mut self, task: Ent, flags: Enqueue) {
        debug_assert!(!self.ent[task].on_rq, "queued twice");
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
        self.rescale_entity(task, weight, false);
        self.place_entity(root, task, flags.initial);
        self.ent[task].on_rq = true;
        self.que[root].members += 1;
        if self.que[root].curr != task {
            self.tree_insert(root, task);
        }
    }

    /// `dequeue_entities`: false if the task stays, delayed.
    #[inline(never)]
    pub(crate) fn flat_dequeue(&mut self, task: Ent, flags: Dequeue) -> bool {
        debug_assert!(self.ent[task].on_rq, "dequeued twice");
        let root = self.pick_queue(task);
        self.update_curr(root);
        self.clear_buddies(root, task);
        let may_stay = flags.may_stay() && self.cfg.features.has(Feature::DelayDequeue);
        // Before the removal: the average must include the task.
        let stays = may_stay && !self.eligible(root, task);
        self.update_entity_lag(root, task);
        if stays {
            self.set_delayed(task);
            return false;
        }
        if !flags.sleep && self.cfg.features.has(Feature::PlaceRelDeadline) {
            self.ent[task].make_deadline_relative();
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

    /// `put_prev_task_fair`.
    #[inline(never)]
    pub(crate) fn flat_put(&mut self, prev: Ent) {
        let root = self.pick_queue(prev);
        if self.ent[prev].on_rq {
            self.update_curr(root);
            self.tree_insert(root, prev);
        }
        self.que[root].curr = Ent::NONE;
    }

    /// `set_next_task_fair`.
    #[inline(never)]
    pub(crate) fn flat_set(&mut self, next: Ent, first: bool) {
        let root = self.pick_queue(next);
        self.set_next_entity(root, next, false);
        // Before the protected slice is set: its length in virtual time follows from the weight.
        self.flat_reweight_curr(next);
        if first {
            self.cfg
                .class_set_next(&self.que[root], &mut self.ent[next], true);
        }
    }

    /// Updates the weight of the current task, if it is queued.
    fn flat_reweight_curr(&mut self, curr: Ent) {
        if !self.ent[curr].on_rq {
            return;
        }
        let weight = self.flat_weight(curr);
        if weight != self.ent[curr].weight {
            place::reweight_queued(self, self.pick_queue(curr), curr, weight);
        }
    }

    /// `task_tick_fair`; `timer` is the slice timer's.
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
            self.resched_curr(rq, Resched::Now);
        }
    }
}

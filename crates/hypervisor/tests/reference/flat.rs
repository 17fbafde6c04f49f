//! The reference's flat picking: tasks compete in the root's queue, groups are counted only.

use stealtime_hypervisor::fair::Feature;

use crate::model::{Model, N0};
use crate::walk::{Join, Leave};

impl Model {
    /// Share of the tree that a task has: floored on each level, at least 2.
    fn share(&self, task: usize) -> u64 {
        let mut weight = u128::from(N0);
        let mut at = Some(task);
        while let Some(e) = at {
            at = self.parent(e);
            let whole = if at.is_some() {
                self.load(self.level(e))
            } else {
                N0
            };
            weight = (weight * u128::from(self.entities[e].load) / u128::from(whole)).max(2);
        }
        weight as u64
    }

    pub(crate) fn flat_join(&mut self, task: usize, why: Join) {
        let root = self.arena(task);
        self.update_curr(root);
        assert_ne!(
            self.queues[root].curr,
            Some(task),
            "no task runs while off the queue"
        );
        let mut at = Some(task);
        while let Some(e) = at {
            self.refresh(e);
            self.entities[e].on_rq = true;
            at = self.parent(e);
        }
        let weight = self.share(task);
        // It competes as one that is off the queue until it is placed.
        self.entities[task].on_rq = false;
        self.reweigh(task, weight);
        self.place(root, task, why == Join::Initial);
        self.entities[task].on_rq = true;
        self.queues[root].tree.push(task);
    }

    pub(crate) fn flat_leave(&mut self, task: usize, how: Leave) {
        let root = self.arena(task);
        self.update_curr(root);
        self.clear_buddy(root, task);
        let may_stay = how.sleep
            && !how.special
            && !how.throttle
            && !how.last
            && self.has(Feature::DelayDequeue);
        self.update_lag(root, task);
        if may_stay && !self.eligible(root, self.entities[task].vruntime) {
            self.mark("task delayed", true);
            self.entities[task].delayed = true;
            return;
        }
        if !how.sleep && self.has(Feature::PlaceRelDeadline) {
            let ent = &mut self.entities[task];
            ent.deadline = ent.deadline.wrapping_sub(ent.vruntime);
            ent.rel = true;
        }
        if self.queues[root].curr != Some(task) {
            self.leave_tree(root, task);
        }
        self.entities[task].delayed &= !how.last;
        let (mut at, mut leaves) = (Some(task), true);
        while let Some(e) = at {
            if leaves {
                self.entities[e].on_rq = false;
                leaves = self.load(self.level(e)) == 0;
            } else {
                self.refresh(e);
            }
            at = self.parent(e);
        }
    }

    /// Gives the running task the weight that it should have now.
    pub(crate) fn flat_reweigh_curr(&mut self, task: usize) {
        if self.entities[task].on_rq {
            let weight = self.share(task);
            if weight != self.entities[task].weight {
                self.reweigh(task, weight);
            }
        }
    }
}

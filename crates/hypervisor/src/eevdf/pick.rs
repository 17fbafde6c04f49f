//! Picking the next task, and switching to it.

use super::enqueue::Dequeue;
use super::entity::{Entity, TaskState};
use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, Que, RqId, TaskId};
use super::queue::{Resched, fits, floor_div};
use super::weights::{before, earlier};
use super::{Actions, Fair};

/// Outcome of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// Task that runs now; `None` for the idle task.
    pub task: Option<TaskId>,
    /// It is another than before.
    pub switched: bool,
    /// State of requests and timer.
    pub actions: Actions,
}

impl Fair {
    /// `pick_eevdf`: the entity to run in one queue that has members.
    ///
    /// With `protect`, the buddy and the running entity's protection count.
    pub(crate) fn pick_eevdf(&self, q: Que, protect: bool) -> Ent {
        let queue = &self.que[q];
        let running = queue.curr;
        let curr = running
            .is_some()
            .then(|| &self.ent[running])
            .filter(|c| c.on_rq);
        if queue.members == 1 {
            return if curr.is_some() {
                running
            } else {
                self.leftmost(q)
            };
        }
        let (sum, weight) = match curr {
            Some(c) => queue.sums_with(c),
            None => (queue.sum_w_vruntime, queue.sum_weight),
        };
        let key = |v: u64| v.wrapping_sub(queue.zero_vruntime) as i64;
        let buddy = queue.next;
        if protect && buddy.is_some() && self.cfg.features.has(Feature::PickBuddy) {
            // An entity that has left the queue is no longer its buddy: see `clear_buddies`.
            if fits(sum, weight, key(self.ent[buddy].vruntime)) {
                return buddy;
            }
        }
        let eligible = curr.filter(|c| fits(sum, weight, key(c.vruntime)));
        if protect && eligible.is_some_and(Entity::protected) {
            return running;
        }
        // `sum >= key * weight` is `key <= floor(sum / weight)` for whole keys: one division
        // instead of a product at each entity looked at.
        let bound = floor_div(sum, weight.max(1) as i64);
        let best = self
            .pool
            .first_eligible(&queue.timeline, queue.zero_vruntime, bound);
        match (best, eligible) {
            (Some((_, deadline)), Some(c)) if before(c.deadline, deadline) => running,
            (Some((b, _)), _) => Ent(b),
            (None, _) if curr.is_some() => running,
            (None, _) => self.leftmost(q),
        }
    }

    #[inline]
    fn leftmost(&self, q: Que) -> Ent {
        self.pool
            .first(&self.que[q].timeline)
            .map_or(Ent::NONE, Ent)
    }

    /// `pick_task_fair`: the task to run, after dequeueing what was delayed and is due.
    fn pick_task(&mut self, rq: RqId) -> Ent {
        // Under flat picking all that is in the root's tree are tasks.
        let root = self.rqs[rq].root;
        'again: loop {
            let mut q = root;
            if self.que[q].members == 0 {
                return Ent::NONE;
            }
            loop {
                if self.curr_on(q).is_some() {
                    self.update_curr(q);
                }
                let e = self.pick_eevdf(q, true);
                if self.ent[e].delayed {
                    self.dequeue_task(e, FINAL);
                    continue 'again;
                }
                if self.ent[e].is_task() {
                    return e;
                }
                q = self.ent[e].my_q;
            }
        }
    }

    /// Picks the next task and switches to it (`schedule`: `pick_next_task_fair`,
    /// `put_prev_task_fair`, `set_next_task_fair`).
    ///
    /// Requests that were pending are done with. If the running task is picked again nothing
    /// else changes: its protected period stays what it was.
    ///
    /// # Errors
    ///
    /// An unknown run queue, or a clock that goes back or too far.
    pub fn pick(&mut self, rq: RqId, now_ns: u64) -> Result<Picked, Error> {
        self.check_clock(rq, now_ns)?;
        self.set_clock(rq, now_ns);
        let prev = self.rqs[rq].curr;
        let next = self.pick_task(rq);
        let switched = prev != next;
        if switched {
            if prev.is_some() {
                self.put_prev(prev, next);
            }
            if next.is_some() {
                self.set_next(next, true);
            }
            self.rqs[rq].curr = next;
        }
        if next.is_none() {
            self.rqs[rq].hrtick = 0;
        }
        let r = &mut self.rqs[rq];
        r.resched = Resched::None;
        r.announced = false;
        r.pick_due = false;
        if prev.is_some() && switched && self.ent[prev].task.state == TaskState::Exiting {
            self.free_task(prev);
        }
        let task = next.is_some().then(|| self.ent[next].task_id(next));
        Ok(Picked {
            task,
            switched,
            actions: self.actions(rq),
        })
    }

    /// Puts the entities of `prev` back, from the task up to the queue that `next` shares.
    pub(crate) fn put_prev(&mut self, prev: Ent, next: Ent) {
        if self.is_flat(self.ent[prev].rq) {
            self.flat_put(prev);
            return;
        }
        let shared = self.shared_queue(prev, next);
        let mut e = prev;
        while e.is_some() {
            let q = self.ent[e].queue;
            if self.ent[e].on_rq {
                self.update_curr(q);
                self.tree_insert(q, e);
            }
            self.que[q].curr = Ent::NONE;
            if Some(q) == shared {
                return;
            }
            e = self.ent[e].parent;
        }
    }

    /// The lowest queue in which both chains have an entity.
    fn shared_queue(&self, a: Ent, b: Ent) -> Option<Que> {
        if b.is_none() {
            return None;
        }
        let (a, _) = self.siblings(a, b);
        Some(self.ent[a].queue)
    }

    /// `find_matching_se`: the ancestors of both that are in one queue.
    #[inline]
    pub(crate) fn siblings(&self, a: Ent, b: Ent) -> (Ent, Ent) {
        if self.ent[a].queue == self.ent[b].queue {
            (a, b)
        } else {
            self.cousins(a, b)
        }
    }

    #[inline(never)]
    fn cousins(&self, mut a: Ent, mut b: Ent) -> (Ent, Ent) {
        while self.ent[a].depth > self.ent[b].depth {
            a = self.ent[a].parent;
        }
        while self.ent[b].depth > self.ent[a].depth {
            b = self.ent[b].parent;
        }
        while self.ent[a].queue != self.ent[b].queue {
            a = self.ent[a].parent;
            b = self.ent[b].parent;
        }
        (a, b)
    }

    /// Makes the entities of `next` the running ones, from the task up to the first queue that
    /// still has one. With `first` their protected period starts.
    pub(crate) fn set_next(&mut self, next: Ent, first: bool) {
        let rq = self.ent[next].rq;
        if self.is_flat(rq) {
            self.flat_set(next, first);
        } else {
            let mut e = next;
            while e.is_some() {
                let q = self.ent[e].queue;
                if self.que[q].curr.is_some() {
                    break;
                }
                self.set_next_entity(q, e, first);
                e = self.ent[e].parent;
            }
        }
        if first && self.cfg.features.has(Feature::Hrtick) {
            self.arm_hrtick(rq, next);
        }
    }

    /// `set_next_entity`.
    pub(crate) fn set_next_entity(&mut self, q: Que, e: Ent, first: bool) {
        self.clear_buddies(q, e);
        if self.ent[e].on_rq {
            self.tree_remove(q, e);
        }
        self.ent[e].exec_start = self.now;
        if first {
            self.set_protect(q, e);
        }
        self.que[q].curr = e;
    }

    /// `set_protect_slice`: until the deadline, or until a shorter slice that is queued.
    pub(crate) fn set_protect(&mut self, q: Que, e: Ent) {
        let mut slice = self.cfg.normalized_base_slice_ns;
        if self.cfg.features.has(Feature::RunToParity) {
            slice = u64::from(self.que[q].timeline.shortest());
        }
        let ent = &mut self.ent[e];
        let mut vprot = ent.deadline;
        if slice < ent.slice {
            vprot = earlier(vprot, ent.vruntime.wrapping_add(ent.vtime(slice)));
        }
        ent.vprot = vprot;
    }
}

/// Flags of the dequeue that ends a delay.
pub(crate) const FINAL: Dequeue = Dequeue {
    sleep: true,
    special: false,
    last: true,
};

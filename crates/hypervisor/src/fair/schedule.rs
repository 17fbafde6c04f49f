//! `schedule()`: the pick of the next task, level by level, and the switch to it.

use super::enqueue::Dequeue;
use super::entity::{Entity, TaskState};
use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, Que, RqId, TaskId};
use super::queue::Resched;
use super::{Actions, Fair};

/// Outcome of a pick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Picked {
    /// The current task; `None` for the idle task.
    pub task: Option<TaskId>,
    /// Whether the CPU has switched to it.
    pub switched: bool,
    /// State of requests and timer.
    pub actions: Actions,
}

impl Fair {
    /// `pick_next_entity`, in a queue with members.
    #[inline(always)]
    pub(crate) fn pick_next_entity(&self, q: Que, protect: bool) -> Ent {
        let queue = &self.que[q];
        debug_assert!(queue.members > 0, "a pick in an empty queue");
        let curr = self.ent.get(queue.curr).filter(|c| c.on_rq);
        if queue.members == 1 {
            return if curr.is_some() {
                queue.curr
            } else {
                self.leftmost(q)
            };
        }
        self.pick_entity(q, curr, protect)
    }

    #[inline]
    pub(crate) fn leftmost(&self, q: Que) -> Ent {
        self.pool
            .first(&self.que[q].timeline)
            .map_or(Ent::NONE, Ent)
    }

    /// `pick_task_fair`: the next task. Delayed entities that are picked are dequeued first.
    fn pick_task(&mut self, rq: RqId) -> Ent {
        // Under flat picking the root's tree has tasks only, so that the walk ends there.
        let root = self.rqs[rq].root;
        'again: loop {
            let mut q = root;
            if self.que[q].members == 0 {
                return Ent::NONE;
            }
            loop {
                let curr = self.que[q].curr;
                let ran = |c: &Entity| c.on_rq && self.now > c.exec_start;
                if self.ent.get(curr).is_some_and(ran) {
                    self.charge(q, curr);
                }
                let e = self.pick_next_entity(q, true);
                let ent = &self.ent[e];
                if ent.delayed {
                    self.dequeue_task(e, FINAL);
                    self.delayed_left(e, rq);
                    continue 'again;
                }
                if ent.is_task() {
                    return e;
                }
                q = ent.my_q;
            }
        }
    }

    /// Picks the next task and switches to it (`schedule`: `pick_next_task_fair`,
    /// `put_prev_task_fair`, `set_next_task_fair`).
    ///
    /// Clears pending requests. If the current task is picked again, nothing else changes: its
    /// protected slice stays.
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
            if prev.is_none() {
                self.set_next(next, true);
            } else if next.is_none() || !self.switch_siblings(prev, next) {
                self.put_prev(prev, next);
                if next.is_some() {
                    self.set_next(next, true);
                }
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
        if prev.is_some() && switched && self.ent[prev].state == TaskState::Exiting {
            self.free_task(prev);
        }
        let task = next.is_some().then(|| self.ent[next].task_id(next));
        Ok(Picked {
            task,
            switched,
            actions: self.actions(rq),
        })
    }

    /// [`Self::put_prev`] and [`Self::set_next`] in one step for tasks of one queue, which the pick
    /// has charged. False, without a change, if they are in different queues.
    #[inline(always)]
    fn switch_siblings(&mut self, prev: Ent, next: Ent) -> bool {
        let (p, n) = (&self.ent[prev], &self.ent[next]);
        let (q, rq) = (p.queue, p.rq);
        if q != n.queue || !p.on_rq || self.is_flat(rq) {
            return false;
        }
        self.clear_buddies(q, next);
        let queue = &mut self.que[q];
        debug_assert_eq!(queue.curr, prev, "the previous task is not current");
        queue.tree_exchange(&mut self.pool, &self.ent, prev, next);
        queue.curr = next;
        let ent = &mut self.ent[next];
        ent.exec_start = self.now;
        self.cfg.class_set_next(queue, ent, true);
        if self.cfg.features.has(Feature::Hrtick) {
            self.arm_hrtick(rq, next);
        }
        true
    }

    /// `put_prev_task_fair`: returns the entities of `prev` to their trees, up to the queue that
    /// `next` shares.
    pub(crate) fn put_prev(&mut self, prev: Ent, next: Ent) {
        if self.is_flat(self.ent[prev].rq) {
            self.flat_put(prev);
            return;
        }
        let shared = self.shared_queue(prev, next);
        let mut e = prev;
        while let Some(ent) = self.ent.get(e) {
            let q = ent.queue;
            if ent.on_rq {
                self.update_curr(q);
            }
            let queue = &mut self.que[q];
            if self.ent[e].on_rq {
                queue.tree_insert(&mut self.pool, &self.ent, e);
            }
            queue.curr = Ent::NONE;
            if Some(q) == shared {
                return;
            }
            e = queue.owner;
        }
    }

    /// The lowest queue with an entity of both chains.
    fn shared_queue(&self, a: Ent, b: Ent) -> Option<Que> {
        if b.is_none() {
            return None;
        }
        let (a, _) = self.find_matching_se(a, b);
        Some(self.ent[a].queue)
    }

    /// `find_matching_se`: the ancestors of both in one queue.
    #[inline]
    pub(crate) fn find_matching_se(&self, a: Ent, b: Ent) -> (Ent, Ent) {
        if self.ent[a].queue == self.ent[b].queue {
            (a, b)
        } else {
            self.find_matching_se_slow(a, b)
        }
    }

    #[inline(never)]
    fn find_matching_se_slow(&self, mut a: Ent, mut b: Ent) -> (Ent, Ent) {
        while self.ent[a].depth > self.ent[b].depth {
            a = self.parent(a);
        }
        while self.ent[b].depth > self.ent[a].depth {
            b = self.parent(b);
        }
        while self.ent[a].queue != self.ent[b].queue {
            a = self.parent(a);
            b = self.parent(b);
        }
        (a, b)
    }

    /// `set_next_task_fair`: makes the entities of `next` the current ones, up to the first queue
    /// that has a current entity. With `first` their protected slices start.
    pub(crate) fn set_next(&mut self, next: Ent, first: bool) {
        let rq = self.ent[next].rq;
        if self.is_flat(rq) {
            self.flat_set(next, first);
        } else {
            let mut e = next;
            while let Some(ent) = self.ent.get(e) {
                let q = ent.queue;
                if self.que[q].curr.is_some() {
                    break;
                }
                self.set_next_entity(q, e, first);
                e = self.que[q].owner;
            }
        }
        if first && self.cfg.features.has(Feature::Hrtick) {
            self.arm_hrtick(rq, next);
        }
    }

    /// `set_next_entity`.
    #[inline(always)]
    pub(crate) fn set_next_entity(&mut self, q: Que, e: Ent, first: bool) {
        self.clear_buddies(q, e);
        let (queue, ent) = (&mut self.que[q], &mut self.ent[e]);
        if ent.on_rq {
            queue.tree_remove(&mut self.pool, e, ent);
        }
        ent.exec_start = self.now;
        self.cfg.class_set_next(queue, ent, first);
        queue.curr = e;
    }
}

/// Flags of the dequeue that completes a delayed one.
pub(crate) const FINAL: Dequeue = Dequeue {
    sleep: true,
    special: false,
    throttle: false,
    last: true,
    saves: false,
};

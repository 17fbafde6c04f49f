//! Picking the next task, and switching to it.

use super::config::Config;
use super::enqueue::Dequeue;
use super::entity::{Entity, TaskState};
use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, Que, RqId, TaskId};
use super::queue::{Queue, Resched, Running, fits};
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
    #[inline(always)]
    pub(crate) fn pick_eevdf(&self, q: Que, protect: bool) -> Ent {
        let queue = &self.que[q];
        let running = queue.curr;
        let curr = self.ent.at(running).filter(|c| c.on_rq);
        if queue.members == 1 {
            return if curr.is_some() {
                running
            } else {
                self.leftmost(q)
            };
        }
        if let Some(cfs) = &self.cfg.cfs {
            return self.cfs_pick(cfs, q);
        }
        let (sum, weight) = queue.sums(curr.map(Running::of));
        // An entity that has left the queue is no longer its buddy: see `clear_buddies`.
        if protect
            && let Some(buddy) = self.ent.at(queue.next)
            && self.cfg.features.has(Feature::PickBuddy)
            && fits(sum, weight, queue.key(buddy.vruntime))
        {
            return queue.next;
        }
        let eligible = curr.filter(|c| fits(sum, weight, queue.key(c.vruntime)));
        if protect && eligible.is_some_and(Entity::protected) {
            return running;
        }
        let keys = &|e| self.ent.keys(e);
        let zero = queue.zero_vruntime;
        let best = self
            .pool
            .earliest_eligible(&queue.timeline, zero, (sum, weight), keys);
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
                let curr = self.que[q].curr;
                let ran = |c: &Entity| c.on_rq && self.now > c.exec_start;
                if self.ent.at(curr).is_some_and(ran) {
                    self.charge(q, curr);
                }
                let e = self.pick_eevdf(q, true);
                let ent = &self.ent[e];
                if ent.delayed {
                    self.dequeue_task(e, FINAL);
                    self.left_delayed(e, rq);
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

    /// [`Self::put_prev`] and [`Self::set_next`] in one where both tasks are in one queue, which
    /// the pick has charged. False, and nothing done, if they are not.
    #[inline(always)]
    fn switch_siblings(&mut self, prev: Ent, next: Ent) -> bool {
        let (p, n) = (&self.ent[prev], &self.ent[next]);
        let (q, rq) = (p.queue, p.rq);
        if q != n.queue || !p.on_rq || self.is_flat(rq) {
            return false;
        }
        match self.cfg.cfs {
            None => self.clear_buddies(q, next),
            Some(_) => self.cfs_clear_buddies(q, next),
        }
        let queue = &mut self.que[q];
        queue.tree_exchange(&mut self.pool, &self.ent, (prev, next));
        queue.curr = next;
        let ent = &mut self.ent[next];
        ent.exec_start = self.now;
        queue.set_protect(ent, &self.cfg);
        if self.cfg.features.has(Feature::Hrtick) {
            self.arm_hrtick(rq, next);
        }
        true
    }

    /// Puts the entities of `prev` back, from the task up to the queue that `next` shares.
    pub(crate) fn put_prev(&mut self, prev: Ent, next: Ent) {
        if self.is_flat(self.ent[prev].rq) {
            self.flat_put(prev);
            return;
        }
        let shared = self.shared_queue(prev, next);
        let mut e = prev;
        while let Some(ent) = self.ent.at(e) {
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

    /// Makes the entities of `next` the running ones, from the task up to the first queue that
    /// still has one. With `first` their protected period starts.
    pub(crate) fn set_next(&mut self, next: Ent, first: bool) {
        let rq = self.ent[next].rq;
        if self.is_flat(rq) {
            self.flat_set(next, first);
        } else {
            let mut e = next;
            while let Some(ent) = self.ent.at(e) {
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
        match self.cfg.cfs {
            None => self.clear_buddies(q, e),
            Some(_) => self.cfs_clear_buddies(q, e),
        }
        let (queue, ent) = (&mut self.que[q], &mut self.ent[e]);
        if ent.on_rq {
            queue.tree_remove(&mut self.pool, e, ent);
        }
        ent.exec_start = self.now;
        if first || self.cfg.cfs.is_some() {
            queue.set_protect(ent, &self.cfg);
        }
        queue.curr = e;
    }

    /// [`Queue::set_protect`].
    pub(crate) fn set_protect(&mut self, q: Que, e: Ent) {
        self.que[q].set_protect(&mut self.ent[e], &self.cfg);
    }
}

impl Queue {
    /// `set_protect_slice`: until the deadline, or until a shorter slice that is queued.
    #[inline(always)]
    fn set_protect(&self, ent: &mut Entity, cfg: &Config) {
        if cfg.cfs.is_some() {
            ent.vprot = 0;
            return;
        }
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

/// Flags of the dequeue that ends a delay.
pub(crate) const FINAL: Dequeue = Dequeue {
    sleep: true,
    special: false,
    throttle: false,
    last: true,
    saves: false,
};

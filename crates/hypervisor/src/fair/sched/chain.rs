//! Joining, leaving, pick and switch, level by level (`enqueue_task_fair`, `dequeue_entities`,
//! `pick_task_fair`, `put_prev_task_fair`, `set_next_task_fair`).

use super::Sched;
use crate::fair::compact;
use crate::fair::eevdf::{deadline, flat, place};
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que, RqId};
use crate::fair::sched_entity::{Policy, SchedEntity, TaskState};

/// Flags of an enqueue (`ENQUEUE_*`).
#[derive(Clone, Copy, Default)]
pub(crate) struct Enqueue {
    /// The task is new (`ENQUEUE_INITIAL`).
    pub(crate) initial: bool,
    /// The task wakes up (`ENQUEUE_WAKEUP`).
    pub(crate) wakeup: bool,
}

/// Flags of a dequeue (`DEQUEUE_*`).
#[derive(Clone, Copy, Default)]
pub(crate) struct Dequeue {
    /// The task blocks (`DEQUEUE_SLEEP`).
    pub(crate) sleep: bool,
    /// The dequeue must not be delayed (`DEQUEUE_SPECIAL`).
    pub(crate) special: bool,
    /// The group is out of runtime (`DEQUEUE_THROTTLE`): no level is delayed.
    pub(crate) throttle: bool,
    /// The end of a delayed dequeue (`DEQUEUE_DELAYED`).
    pub(crate) last: bool,
    /// The entity returns to its queue at once (`DEQUEUE_SAVE` without `DEQUEUE_MOVE`); for CFS.
    pub(crate) saves: bool,
}

impl Dequeue {
    /// Whether an entity that is not eligible is delayed.
    #[inline]
    pub(crate) const fn may_stay(&self) -> bool {
        self.sleep && !self.special && !self.throttle && !self.last
    }
}

/// The change of one task to the counters of each level above it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) queued: u32,
    pub(crate) runnable: u32,
    pub(crate) idle: u32,
}

/// Flags of the dequeue that completes a delayed one.
pub(crate) const FINAL: Dequeue = Dequeue {
    sleep: true,
    special: false,
    throttle: false,
    last: true,
    saves: false,
};

impl Sched {
    /// The change of the counters by an enqueue.
    pub(crate) fn enqueue_count(&self, task: Ent, flags: Enqueue) -> Count {
        let ent = &self.tree[task];
        let runnable = flags.wakeup || !ent.delayed();
        Count {
            queued: 1,
            runnable: u32::from(runnable),
            idle: u32::from(ent.policy() == Policy::Idle),
        }
    }

    /// `enqueue_task_fair`.
    #[inline(never)]
    pub(crate) fn enqueue_task(&mut self, task: Ent, flags: Enqueue) {
        self.enqueue_task_inline(task, flags);
    }

    /// [`Self::enqueue_task`], compiled into its caller: for wakeups and migrations.
    #[inline(always)]
    pub(crate) fn enqueue_task_inline(&mut self, task: Ent, flags: Enqueue) {
        let ent = &self.tree[task];
        let (rq, q) = (ent.rq(), ent.queue());
        if self.is_flat(rq) {
            flat::enqueue(self, task, flags);
        } else {
            let mut count = self.enqueue_count(task, flags);
            self.enqueue_entity::<false>(q, task, flags, &mut count);
            let parent = self.tree[q].owner();
            if parent.is_some() {
                self.enqueue_above(q, parent, count);
            }
        }
        deadline::hrtick_update(self, rq);
    }

    /// `enqueue_task_fair` from group entity `e` up, after an enqueue on its queue `below`.
    #[inline(never)]
    fn enqueue_above(&mut self, below: Que, mut e: Ent, mut count: Count) {
        let wakeup = Enqueue {
            initial: false,
            wakeup: true,
        };
        let mut slice = self.tree.min_slice(below);
        while let Some(ent) = self.tree.get(e) {
            if ent.on_rq() {
                if ent.delayed() {
                    place::requeue_delayed(self, e);
                }
                break;
            }
            let q = ent.queue();
            self.tree[e].follow_slice(slice as u32);
            self.enqueue_entity::<true>(q, e, wakeup, &mut count);
            slice = self.tree.min_slice(q);
            e = self.tree[q].owner();
        }
        // From the first queued group up only weights, slices and counters change.
        while e.is_some() {
            let q = self.tree[e].queue();
            self.update_cfs_group(e);
            self.tree.set_queued_slice(e, slice);
            slice = self.tree.min_slice(q);
            e = self.count_up(q, &mut count);
        }
    }

    /// `dequeue_entities`, for a task or a delayed group: false if a task stays, delayed.
    #[inline(never)]
    pub(crate) fn dequeue_task(&mut self, entity: Ent, flags: Dequeue) -> bool {
        self.dequeue_task_inline(entity, flags)
    }

    /// [`Self::dequeue_task`], compiled into its caller: for sleepers and migrations.
    #[inline(always)]
    pub(crate) fn dequeue_task_inline(&mut self, entity: Ent, flags: Dequeue) -> bool {
        let ent = &self.tree[entity];
        let (q, task) = (ent.queue(), ent.is_task());
        if self.is_flat(ent.rq()) {
            return flat::dequeue(self, entity, flags);
        }
        let mut count = self.dequeue_count(entity, flags);
        let remaining = self.dequeue_entity(q, entity, flags, &mut count);
        if remaining.is_none() && task {
            return false;
        }
        if self.tree[q].owner().is_some() {
            self.dequeue_above(q, entity, remaining, flags, count);
        }
        true
    }

    /// `dequeue_entities` above `e`, for which [`Self::dequeue_entity`] from `q` has returned
    /// `remaining`.
    #[inline(never)]
    fn dequeue_above(
        &mut self,
        mut q: Que,
        mut e: Ent,
        mut remaining: Option<u64>,
        flags: Dequeue,
        mut count: Count,
    ) {
        let level = Dequeue {
            sleep: true,
            special: false,
            throttle: flags.throttle,
            last: false,
            saves: flags.saves,
        };
        let mut slice = loop {
            let Some(load) = remaining else {
                // The kernel's second walk starts at the delayed group itself.
                break self.tree.min_slice(q);
            };
            e = self.tree.parent(e);
            if e.is_none() {
                return;
            }
            let ent = &self.tree[e];
            // A group with members stays queued, and so do its ancestors.
            if load != 0 {
                let slice = self.tree.min_slice(q);
                if flags.sleep {
                    self.tree.set_next_buddy(e);
                }
                break slice;
            }
            q = ent.queue();
            remaining = self.dequeue_entity(q, e, level, &mut count);
        };
        while let Some(ent) = self.tree.get(e) {
            let q = ent.queue();
            self.update_cfs_group(e);
            self.tree.set_queued_slice(e, slice);
            slice = self.tree.min_slice(q);
            e = self.count_down(q, &mut count);
        }
    }

    /// The change of the counters by a dequeue: none by a delayed group, because its tasks have
    /// left.
    pub(crate) fn dequeue_count(&self, e: Ent, flags: Dequeue) -> Count {
        let ent = &self.tree[e];
        if !ent.is_task() {
            return Count::default();
        }
        let runnable = flags.sleep || flags.last || !ent.delayed();
        Count {
            queued: 1,
            runnable: u32::from(runnable),
            idle: u32::from(ent.policy() == Policy::Idle),
        }
    }

    /// `pick_next_entity`, in a queue with members.
    #[inline(always)]
    pub(crate) fn pick_next_entity(&self, q: Que, protect: bool) -> Ent {
        let queue = &self.tree[q];
        debug_assert!(queue.members() > 0, "a pick in an empty queue");
        let curr = self.tree.get(queue.curr()).filter(|c| c.on_rq());
        if queue.members() == 1 {
            return if curr.is_some() {
                queue.curr()
            } else {
                self.tree.first(q).unwrap_or(Ent::NONE)
            };
        }
        self.pick_entity(q, curr, protect)
    }

    /// `pick_task_fair`: the next task. Delayed entities that are picked are dequeued first.
    ///
    /// Also returns the lowest queue with entities of both chains, the previous task's and the next
    /// one's. It is the first on the way down where the pick is not the current entity.
    #[inline(always)]
    fn pick_task(&mut self, rq: RqId) -> (Ent, Que) {
        // Under flat picking the root's tree has tasks only, so that the walk ends there.
        let root = self.rqs[rq].root();
        'again: loop {
            let (mut q, mut shared) = (root, Que::NONE);
            if self.tree[q].members() == 0 {
                return (Ent::NONE, Que::NONE);
            }
            loop {
                let curr = self.tree[q].curr();
                let ran = |c: &SchedEntity| c.on_rq() && self.now > c.exec_start();
                if self.tree.get(curr).is_some_and(ran) {
                    self.charge(q, curr);
                }
                let e = self.pick_next_entity(q, true);
                let ent = &self.tree[e];
                if ent.delayed() {
                    self.dequeue_task(e, FINAL);
                    compact::delayed_left(self, e, rq);
                    continue 'again;
                }
                if e != curr && !shared.is_some() {
                    shared = q;
                }
                if ent.is_task() {
                    return (e, shared);
                }
                q = ent.my_q();
            }
        }
    }

    /// Picks the next task and switches to it (`__schedule`). Returns it, and whether the CPU has
    /// switched.
    #[inline(always)]
    pub(crate) fn schedule(&mut self, rq: RqId) -> (Ent, bool) {
        let prev = self.rqs[rq].curr();
        let (next, shared) = self.pick_task(rq);
        let switched = prev != next;
        if switched {
            if prev.is_none() {
                self.set_next(next, true);
            } else if next.is_none() || !self.switch_siblings(prev, next) {
                debug_assert!(self.is_flat(rq) || shared == self.shared_queue(prev, next));
                self.put_prev(prev, shared);
                if next.is_some() {
                    self.set_next(next, true);
                }
            }
        }
        self.rqs[rq].picked(next);
        if prev.is_some() && switched && self.tree[prev].state() == TaskState::Exiting {
            self.free_task(prev);
        }
        (next, switched)
    }

    /// [`Self::put_prev`] and [`Self::set_next`] in one step for tasks of one queue, which the pick
    /// has charged. False, without a change, if they are in different queues.
    #[inline(always)]
    fn switch_siblings(&mut self, prev: Ent, next: Ent) -> bool {
        let (p, n) = (&self.tree[prev], &self.tree[next]);
        let (q, rq) = (p.queue(), p.rq());
        if q != n.queue() || !p.on_rq() || self.is_flat(rq) {
            return false;
        }
        self.clear_buddies(q, next);
        let (queue, ent) = self.tree.level(q).switch(prev, next, self.now);
        self.cfg.class_set_next(queue, ent, true);
        if self.cfg.features.has(Feature::Hrtick) {
            deadline::hrtick_start_fair(self, rq, next);
        }
        true
    }

    /// `put_prev_task_fair`: returns the entities of `prev` to their trees, up to the queue `shared`
    /// with the next task, or all of them.
    pub(crate) fn put_prev(&mut self, prev: Ent, shared: Que) {
        if self.is_flat(self.tree[prev].rq()) {
            flat::put_prev(self, prev);
            return;
        }
        let mut e = prev;
        while let Some(ent) = self.tree.get(e) {
            let q = ent.queue();
            debug_assert_eq!(self.tree[q].curr(), e, "the chain of the current task");
            if ent.on_rq() && self.now > ent.exec_start() {
                self.charge(q, e);
            }
            let owner = self.tree.level(q).put_curr(e);
            if q == shared {
                return;
            }
            e = owner;
        }
    }

    /// The lowest queue with an entity of both chains.
    fn shared_queue(&self, a: Ent, b: Ent) -> Que {
        if b.is_none() {
            return Que::NONE;
        }
        let (a, _) = self.tree.find_matching_se(a, b);
        self.tree[a].queue()
    }

    /// `set_next_task_fair`: makes the entities of `next` the current ones, up to the first queue
    /// that has a current entity. With `first` their protected slices start.
    pub(crate) fn set_next(&mut self, next: Ent, first: bool) {
        let rq = self.tree[next].rq();
        if self.is_flat(rq) {
            flat::set_next(self, next, first);
        } else {
            let mut e = next;
            while let Some(ent) = self.tree.get(e) {
                let q = ent.queue();
                if self.tree[q].curr().is_some() {
                    break;
                }
                e = self.set_next_entity(q, e, first);
            }
        }
        if first && self.cfg.features.has(Feature::Hrtick) {
            deadline::hrtick_start_fair(self, rq, next);
        }
    }

    /// `set_next_entity`. Returns the entity that owns `q`.
    #[inline(always)]
    pub(crate) fn set_next_entity(&mut self, q: Que, e: Ent, first: bool) -> Ent {
        self.clear_buddies(q, e);
        let (queue, ent) = self.tree.level(q).set_curr(e, self.now);
        self.cfg.class_set_next(queue, ent, first);
        queue.owner()
    }
}

//! Joining and leaving, level by level (`enqueue_task_fair`, `dequeue_entities`).

use super::Fair;
use super::entity::{Marks, Policy};
use super::features::Feature;
use super::ids::{Ent, Que};
use super::queue::{Queue, Running};

/// Why a task is enqueued (`ENQUEUE_*`).
#[derive(Clone, Copy, Default)]
pub(crate) struct Enqueue {
    /// Its first time.
    pub(crate) initial: bool,
    /// It wakes up.
    pub(crate) wakeup: bool,
}

/// Why an entity is dequeued (`DEQUEUE_*`).
#[derive(Clone, Copy, Default)]
pub(crate) struct Dequeue {
    /// It blocks.
    pub(crate) sleep: bool,
    /// It must not be delayed.
    pub(crate) special: bool,
    /// Its group has no runtime left: no level is delayed.
    pub(crate) throttle: bool,
    /// It was delayed and goes for good (`DEQUEUE_DELAYED`).
    pub(crate) last: bool,
    /// It comes back at once, to where it was (`DEQUEUE_SAVE` without `DEQUEUE_MOVE`); for CFS.
    pub(crate) saves: bool,
}

impl Dequeue {
    /// Whether an entity that is not eligible is delayed.
    #[inline]
    pub(crate) const fn may_stay(&self) -> bool {
        self.sleep && !self.special && !self.throttle && !self.last
    }
}

/// What one task adds to or takes from the counters of each level above it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) queued: u32,
    pub(crate) runnable: u32,
    pub(crate) idle: u32,
}

impl Queue {
    /// Counts here; above an idle group all are idle.
    #[inline]
    fn count_up(&mut self, count: &mut Count) {
        self.h_nr_queued += count.queued;
        self.h_nr_runnable += count.runnable;
        self.add_idle(count.idle as i32);
        if self.is_idle() {
            count.idle = count.queued;
        }
    }

    /// Uncounts here.
    #[inline]
    fn count_down(&mut self, count: &mut Count) {
        self.h_nr_queued -= count.queued;
        self.h_nr_runnable -= count.runnable;
        self.add_idle(-(count.idle as i32));
        if self.is_idle() {
            count.idle = count.queued;
        }
    }
}

impl Fair {
    /// Counts on `q` and for its group.
    #[inline]
    pub(crate) fn count_up(&mut self, q: Que, count: &mut Count) {
        self.que[q].count_up(count);
        self.group_runnable(q, count.runnable as i32);
    }

    /// Uncounts on `q` and for its group.
    #[inline]
    pub(crate) fn count_down(&mut self, q: Que, count: &mut Count) {
        self.que[q].count_down(count);
        self.group_runnable(q, -(count.runnable as i32));
    }

    /// What a task counts for when it joins.
    pub(crate) fn enqueue_count(&self, task: Ent, flags: Enqueue) -> Count {
        let ent = &self.ent[task];
        let runnable = flags.wakeup || !ent.delayed;
        Count {
            queued: 1,
            runnable: u32::from(runnable),
            idle: u32::from(ent.policy() == Policy::Idle),
        }
    }

    /// `account_entity_enqueue` and its group's total.
    #[inline]
    pub(crate) fn account_load(&mut self, q: Que, e: Ent) {
        let load = self.load(e);
        self.count_level(q, load as i64, 1);
        self.group_load(q, load as i64);
    }

    /// `account_entity_dequeue`.
    #[inline]
    pub(crate) fn unaccount_load(&mut self, q: Que, e: Ent) {
        let load = self.load(e);
        self.count_level(q, -(load as i64), -1);
        self.group_load(q, -(load as i64));
    }

    /// `enqueue_task_fair`.
    #[inline(never)]
    pub(crate) fn enqueue_task(&mut self, task: Ent, flags: Enqueue) {
        self.enqueue_here(task, flags);
    }

    /// [`Self::enqueue_task`], compiled into its caller: for wakeups and migrations.
    #[inline(always)]
    pub(crate) fn enqueue_here(&mut self, task: Ent, flags: Enqueue) {
        let ent = &self.ent[task];
        let (rq, q) = (ent.rq, ent.queue);
        if self.is_flat(rq) {
            self.flat_enqueue(task, flags);
        } else {
            let mut count = self.enqueue_count(task, flags);
            self.enqueue_entity::<false>(q, task, flags, &mut count);
            let parent = self.que[q].owner;
            if parent.is_some() {
                self.enqueue_above(q, parent, count);
            }
        }
        self.hrtick_update(rq);
    }

    /// The levels from group entity `e` up, above the queue `below` that was joined.
    #[inline(never)]
    fn enqueue_above(&mut self, below: Que, mut e: Ent, mut count: Count) {
        let wakeup = Enqueue {
            initial: false,
            wakeup: true,
        };
        let mut slice = self.min_slice(below);
        while let Some(ent) = self.ent.at(e) {
            if ent.on_rq {
                if ent.delayed {
                    self.requeue_delayed(e);
                }
                break;
            }
            let q = ent.queue;
            let ent = &mut self.ent[e];
            ent.slice = slice as u32;
            ent.marks.set(Marks::CUSTOM_SLICE, true);
            self.enqueue_entity::<true>(q, e, wakeup, &mut count);
            slice = self.min_slice(q);
            e = self.que[q].owner;
        }
        while e.is_some() {
            let q = self.ent[e].queue;
            self.refresh_weight(e);
            self.set_queued_slice(e, slice);
            slice = self.min_slice(q);
            self.count_up(q, &mut count);
            e = self.que[q].owner;
        }
    }

    /// `enqueue_entity` of a group's entity or a task's, and the counters of `q`.
    #[inline(always)]
    fn enqueue_entity<const GROUP: bool>(
        &mut self,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    ) {
        if self.cfg.cfs.is_some() {
            self.cfs_enqueue(q, e, flags, count);
            return;
        }
        let initial = flags.initial;
        let running = self.que[q].curr;
        if running == e {
            self.enqueue_running(q, e, initial, count);
            return;
        }
        // Most that join find the running one charged, by what made them join.
        let mut curr = match self.ent.at(running) {
            Some(c) if self.now > c.exec_start => {
                self.charge(q, running);
                self.que[q].running(&self.ent)
            }
            Some(c) if c.on_rq => Some(Running::of(c)),
            _ => None,
        };
        if GROUP {
            self.refresh_weight(e);
            curr = self.que[q].running(&self.ent);
        }
        let load = self.load(e);
        let (queue, ent) = (&mut self.que[q], &mut self.ent[e]);
        queue.place(curr, ent, &self.cfg, initial);
        ent.on_rq = true;
        queue.members += 1;
        queue.tree_insert(&mut self.pool, &self.ent, e);
        queue.count_up(count);
        let owner = queue.owner;
        self.count_level(q, load as i64, 1);
        if owner.is_some() {
            self.group_changed(owner, load as i64, count.runnable as i32);
        }
    }

    /// [`Self::enqueue_entity`] for one that still is the running entity: it is not in the tree.
    #[cold]
    #[inline(never)]
    fn enqueue_running(&mut self, q: Que, e: Ent, initial: bool, count: &mut Count) {
        self.place(q, e, initial);
        self.update_curr(q);
        self.refresh_weight(e);
        self.account_load(q, e);
        self.que[q].members += 1;
        self.ent[e].on_rq = true;
        self.count_up(q, count);
    }

    /// `dequeue_entity`, and the counters of `q`: the weight that is left there, or `None` if the
    /// entity stays, delayed.
    #[inline(always)]
    fn dequeue_entity(&mut self, q: Que, e: Ent, flags: Dequeue, count: &mut Count) -> Option<u64> {
        if self.cfg.cfs.is_some() {
            return Some(self.cfs_dequeue(q, e, flags, count));
        }
        self.update_curr(q);
        self.clear_buddies(q, e);
        let may_stay = flags.may_stay() && self.cfg.features.has(Feature::DelayDequeue);
        let load = self.load(e);
        let queue = &mut self.que[q];
        let curr = queue.running(&self.ent);
        let ent = &mut self.ent[e];
        let stays = may_stay && !queue.eligible(curr, ent.vruntime);
        queue.update_lag(curr, ent, &self.cfg);
        if stays {
            self.set_delayed(e);
            return None;
        }
        if !flags.sleep && self.cfg.features.has(Feature::PlaceRelDeadline) {
            ent.deadline = ent.deadline.wrapping_sub(ent.vruntime);
            ent.rel_deadline = true;
        }
        if queue.curr != e {
            queue.tree_remove(&mut self.pool, e, ent);
        }
        ent.on_rq = false;
        queue.members -= 1;
        self.count_level(q, -(load as i64), -1);
        if flags.last {
            self.group_load(q, -(load as i64));
            self.clear_delayed(e);
            self.count_down(q, count);
            return Some(self.level_load(q));
        }
        let queue = &mut self.que[q];
        queue.count_down(count);
        let owner = queue.owner;
        if owner.is_some() {
            self.group_changed(owner, -(load as i64), -(count.runnable as i32));
        }
        Some(self.level_load(q))
    }

    /// `dequeue_entities` for a task, or for a group that was delayed: false if a task stays.
    #[inline(never)]
    pub(crate) fn dequeue_task(&mut self, entity: Ent, flags: Dequeue) -> bool {
        self.dequeue_here(entity, flags)
    }

    /// [`Self::dequeue_task`], compiled into its caller: for sleepers and migrations.
    #[inline(always)]
    pub(crate) fn dequeue_here(&mut self, entity: Ent, flags: Dequeue) -> bool {
        let ent = &self.ent[entity];
        let (q, task) = (ent.queue, ent.is_task());
        if self.is_flat(ent.rq) {
            return self.flat_dequeue(entity, flags);
        }
        let mut count = self.dequeue_count(entity, flags);
        let left = self.dequeue_entity(q, entity, flags, &mut count);
        if left.is_none() && task {
            return false;
        }
        if self.que[q].owner.is_some() {
            self.dequeue_above(q, entity, left, flags, count);
        }
        true
    }

    /// The levels above `e`, for which [`Self::dequeue_entity`] from `q` gave `left`.
    #[inline(never)]
    fn dequeue_above(
        &mut self,
        mut q: Que,
        mut e: Ent,
        mut left: Option<u64>,
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
            let Some(load) = left else {
                // The kernel's second walk starts at this group itself.
                break self.min_slice(q);
            };
            e = self.parent(e);
            let Some(ent) = self.ent.at(e) else {
                return;
            };
            if load != 0 {
                let slice = self.min_slice(q);
                if flags.sleep {
                    self.set_next_buddy(e);
                }
                break slice;
            }
            q = ent.queue;
            left = self.dequeue_entity(q, e, level, &mut count);
        };
        while let Some(ent) = self.ent.at(e) {
            let q = ent.queue;
            self.refresh_weight(e);
            self.set_queued_slice(e, slice);
            slice = self.min_slice(q);
            self.count_down(q, &mut count);
            e = self.que[q].owner;
        }
    }

    /// What an entity counts for when it leaves; a delayed group's tasks are uncounted already.
    pub(crate) fn dequeue_count(&self, e: Ent, flags: Dequeue) -> Count {
        let ent = &self.ent[e];
        if !ent.is_task() {
            return Count::default();
        }
        let runnable = flags.sleep || flags.last || !ent.delayed;
        Count {
            queued: 1,
            runnable: u32::from(runnable),
            idle: u32::from(ent.policy() == Policy::Idle),
        }
    }
}

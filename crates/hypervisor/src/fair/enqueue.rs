//! Joining and leaving, level by level (`enqueue_task_fair`, `dequeue_entities`).

use super::Fair;
use super::entity::{Marks, Policy};
use super::ids::{Ent, Que};
use super::queue::Queue;

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

impl Queue {
    /// Adds to the counters. Above an idle group all tasks count as idle.
    #[inline]
    pub(super) fn count_up(&mut self, count: &mut Count) {
        self.h_nr_queued += count.queued;
        self.h_nr_runnable += count.runnable;
        self.add_idle(count.idle as i32);
        if self.is_idle() {
            count.idle = count.queued;
        }
    }

    /// Subtracts from the counters.
    #[inline]
    pub(super) fn count_down(&mut self, count: &mut Count) {
        debug_assert!(self.h_nr_queued >= count.queued && self.h_nr_runnable >= count.runnable);
        self.h_nr_queued -= count.queued;
        self.h_nr_runnable -= count.runnable;
        self.add_idle(-(count.idle as i32));
        if self.is_idle() {
            count.idle = count.queued;
        }
    }
}

impl Fair {
    /// Adds to the counters of `q` and its group.
    #[inline]
    pub(crate) fn count_up(&mut self, q: Que, count: &mut Count) {
        self.que[q].count_up(count);
        self.group_runnable(q, count.runnable as i32);
    }

    /// Subtracts from the counters of `q` and its group.
    #[inline]
    pub(crate) fn count_down(&mut self, q: Que, count: &mut Count) {
        self.que[q].count_down(count);
        self.group_runnable(q, -(count.runnable as i32));
    }

    /// The change of the counters by an enqueue.
    pub(crate) fn enqueue_count(&self, task: Ent, flags: Enqueue) -> Count {
        let ent = &self.ent[task];
        let runnable = flags.wakeup || !ent.delayed;
        Count {
            queued: 1,
            runnable: u32::from(runnable),
            idle: u32::from(ent.policy() == Policy::Idle),
        }
    }

    /// `account_entity_enqueue`, and the group's total.
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
        self.enqueue_task_inline(task, flags);
    }

    /// [`Self::enqueue_task`], compiled into its caller: for wakeups and migrations.
    #[inline(always)]
    pub(crate) fn enqueue_task_inline(&mut self, task: Ent, flags: Enqueue) {
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

    /// `enqueue_task_fair` from group entity `e` up, after an enqueue on its queue `below`.
    #[inline(never)]
    fn enqueue_above(&mut self, below: Que, mut e: Ent, mut count: Count) {
        let wakeup = Enqueue {
            initial: false,
            wakeup: true,
        };
        let mut slice = self.min_slice(below);
        while let Some(ent) = self.ent.get(e) {
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
        // From the first queued group up only weights, slices and counters change.
        while e.is_some() {
            let q = self.ent[e].queue;
            self.refresh_weight(e);
            self.set_queued_slice(e, slice);
            slice = self.min_slice(q);
            self.count_up(q, &mut count);
            e = self.que[q].owner;
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
        let ent = &self.ent[entity];
        let (q, task) = (ent.queue, ent.is_task());
        if self.is_flat(ent.rq) {
            return self.flat_dequeue(entity, flags);
        }
        let mut count = self.dequeue_count(entity, flags);
        let remaining = self.dequeue_entity(q, entity, flags, &mut count);
        if remaining.is_none() && task {
            return false;
        }
        if self.que[q].owner.is_some() {
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
                break self.min_slice(q);
            };
            e = self.parent(e);
            if e.is_none() {
                return;
            }
            let ent = &self.ent[e];
            // A group with members stays queued, and so do its ancestors.
            if load != 0 {
                let slice = self.min_slice(q);
                if flags.sleep {
                    self.set_next_buddy(e);
                }
                break slice;
            }
            q = ent.queue;
            remaining = self.dequeue_entity(q, e, level, &mut count);
        };
        while let Some(ent) = self.ent.get(e) {
            let q = ent.queue;
            self.refresh_weight(e);
            self.set_queued_slice(e, slice);
            slice = self.min_slice(q);
            self.count_down(q, &mut count);
            e = self.que[q].owner;
        }
    }

    /// The change of the counters by a dequeue: none by a delayed group, because its tasks have
    /// left.
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

//! Joining and leaving, level by level (`enqueue_task_fair`, `dequeue_entities`).

use super::Fair;
use super::features::Feature;
use super::ids::{Ent, Que};

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
    /// It was delayed and goes for good (`DEQUEUE_DELAYED`).
    pub(crate) last: bool,
}

/// What one task adds to or takes from the counters of each level above it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Count {
    pub(crate) queued: u32,
    pub(crate) runnable: u32,
    pub(crate) idle: u32,
}

impl Fair {
    /// Counts on `q`; above an idle group all are idle.
    #[inline]
    pub(crate) fn count_up(&mut self, q: Que, count: &mut Count) {
        let queue = &mut self.que[q];
        queue.h_nr_queued += count.queued;
        queue.h_nr_runnable += count.runnable;
        queue.h_nr_idle += count.idle;
        if queue.idle {
            count.idle = count.queued;
        }
        self.group_runnable(q, count.runnable as i32);
    }

    /// Uncounts on `q`.
    #[inline]
    pub(crate) fn count_down(&mut self, q: Que, count: &mut Count) {
        let queue = &mut self.que[q];
        queue.h_nr_queued -= count.queued;
        queue.h_nr_runnable -= count.runnable;
        queue.h_nr_idle -= count.idle;
        if queue.idle {
            count.idle = count.queued;
        }
        self.group_runnable(q, -(count.runnable as i32));
    }

    /// What a task counts for when it joins.
    pub(crate) fn enqueue_count(&self, task: Ent, flags: Enqueue) -> Count {
        let ent = &self.ent[task];
        let runnable = flags.wakeup || !ent.delayed;
        Count {
            queued: 1,
            runnable: u32::from(runnable),
            idle: u32::from(self.is_idle(task)),
        }
    }

    /// `account_entity_enqueue` and its group's total.
    #[inline]
    pub(crate) fn account_load(&mut self, q: Que, e: Ent) {
        let load = self.ent[e].load;
        let queue = &mut self.que[q];
        queue.load += load;
        queue.nr_queued += 1;
        self.group_load(q, load as i64);
    }

    /// `account_entity_dequeue`.
    #[inline]
    pub(crate) fn unaccount_load(&mut self, q: Que, e: Ent) {
        let load = self.ent[e].load;
        let queue = &mut self.que[q];
        queue.load -= load;
        queue.nr_queued -= 1;
        self.group_load(q, -(load as i64));
    }

    /// `enqueue_task_fair`.
    pub(crate) fn enqueue_task(&mut self, task: Ent, flags: Enqueue) {
        let rq = self.ent[task].rq;
        if self.is_flat(rq) {
            self.flat_enqueue(task, flags);
        } else {
            self.enqueue_levels(task, flags);
        }
        self.hrtick_update(rq);
    }

    fn enqueue_levels(&mut self, task: Ent, flags: Enqueue) {
        let mut count = self.enqueue_count(task, flags);
        let mut slice = None;
        let mut initial = flags.initial;
        let mut e = task;
        while e.is_some() {
            if self.ent[e].on_rq {
                if self.ent[e].delayed {
                    self.requeue_delayed(e);
                }
                break;
            }
            if let Some(slice) = slice {
                self.ent[e].slice = slice;
                self.ent[e].custom_slice = true;
            }
            let q = self.ent[e].queue;
            self.enqueue_entity(q, e, initial);
            self.count_up(q, &mut count);
            initial = false;
            e = self.ent[e].parent;
            if e.is_some() {
                slice = Some(self.min_slice(q));
            }
        }
        while e.is_some() {
            let q = self.ent[e].queue;
            self.refresh_weight(e);
            if let Some(slice) = slice {
                self.set_queued_slice(e, slice);
            }
            slice = Some(self.min_slice(q));
            self.count_up(q, &mut count);
            e = self.ent[e].parent;
        }
    }

    /// `enqueue_entity`.
    #[inline]
    fn enqueue_entity(&mut self, q: Que, e: Ent, initial: bool) {
        let curr = self.que[q].curr == e;
        if curr {
            self.place(q, e, initial);
        }
        self.update_curr(q);
        self.refresh_weight(e);
        if !curr {
            self.place(q, e, initial);
        }
        self.account_load(q, e);
        self.que[q].members += 1;
        if !curr {
            self.tree_insert(q, e);
        }
        self.ent[e].on_rq = true;
    }

    /// `dequeue_entity`: false if it stays, delayed.
    #[inline]
    fn dequeue_entity(&mut self, q: Que, e: Ent, flags: Dequeue) -> bool {
        self.update_curr(q);
        self.clear_buddies(q, e);
        let may_stay = flags.sleep && !flags.special && !flags.last;
        let may_stay = may_stay && self.cfg.features.has(Feature::DelayDequeue);
        if may_stay && !self.eligible(q, e) {
            self.update_lag(q, e);
            self.set_delayed(e);
            return false;
        }
        self.update_lag(q, e);
        if !flags.sleep && self.cfg.features.has(Feature::PlaceRelDeadline) {
            let ent = &mut self.ent[e];
            ent.deadline = ent.deadline.wrapping_sub(ent.vruntime);
            ent.rel_deadline = true;
        }
        if self.que[q].curr != e {
            self.tree_remove(q, e);
        }
        self.ent[e].on_rq = false;
        self.unaccount_load(q, e);
        self.que[q].members -= 1;
        if flags.last {
            self.clear_delayed(e);
        }
        true
    }

    /// `dequeue_entities` for a task, or for a group that was delayed: false if a task stays.
    pub(crate) fn dequeue_task(&mut self, entity: Ent, flags: Dequeue) -> bool {
        if self.is_flat(self.ent[entity].rq) {
            return self.flat_dequeue(entity, flags);
        }
        let mut count = self.dequeue_count(entity, flags);
        let mut level = flags;
        let mut slice = 0;
        let mut e = entity;
        while e.is_some() {
            let q = self.ent[e].queue;
            if !self.dequeue_entity(q, e, level) {
                if self.ent[e].is_task() {
                    return false;
                }
                // The kernel's second walk starts at this group itself.
                slice = self.min_slice(q);
                break;
            }
            self.count_down(q, &mut count);
            e = self.ent[e].parent;
            if self.que[q].load != 0 {
                if e.is_some() {
                    slice = self.min_slice(q);
                    if flags.sleep {
                        self.set_next_buddy(e);
                    }
                }
                break;
            }
            level = Dequeue {
                sleep: true,
                special: false,
                last: false,
            };
        }
        while e.is_some() {
            let q = self.ent[e].queue;
            self.refresh_weight(e);
            self.set_queued_slice(e, slice);
            slice = self.min_slice(q);
            self.count_down(q, &mut count);
            e = self.ent[e].parent;
        }
        true
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
            idle: u32::from(self.is_idle(e)),
        }
    }
}

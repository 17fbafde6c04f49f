//! The boundary between what the fair classes share and the policy of each.
//!
//! Shared: entities and their states, timelines, weighted sums, groups and their shares, counters
//! of each level, requests to reschedule, clocks. A class decides placement, pick, wakeup
//! preemption, the cost of run time, and the price of a yield. These are the functions of
//! [`Class`], called at the kernel's points of the same names.
//!
//! The class is a branch on the configuration, which every operation of one `Fair` predicts. EEVDF
//! is compiled into its callers; CFS is out of their line.

use super::{Count, Dequeue, Enqueue, Sched};
use crate::fair::cfs::CfsClass;
use crate::fair::cfs_rq::CfsRq;
use crate::fair::config::Config;
use crate::fair::eevdf::Eevdf;
use crate::fair::ids::{Ent, Que, RqId};
use crate::fair::sched_entity::SchedEntity;
use crate::fair::task::Arrival;

/// What the kernels of the two classes do differently outside the class.
pub(crate) struct Rules {
    /// `sched_setattr` sets a task's slice (`sched_runtime`).
    pub(crate) custom_slices: bool,
    /// A timer ends the current task's slice (`HRTICK`).
    pub(crate) hrtick: bool,
    /// `set_user_nice` checks for a preemption also if the priority stays the same.
    pub(crate) set_nice_always_checks: bool,
    /// `sched_move_task` of a waiting task ends with a preemption check.
    pub(crate) move_checks_preempt: bool,
    /// `update_cfs_group` reweights also to an equal weight, which charges the current entity.
    pub(crate) reweights_to_same: bool,
    /// Weight of a group's entity while its queue is empty; `None`: it stays.
    pub(crate) empty_group_weight: Option<u64>,
}

/// The policy of a fair class.
pub(crate) trait Class: Copy {
    const RULES: Rules;

    /// Extends the class's tables by the queue that was added last.
    fn new_queue(self, sched: &mut Sched);

    /// `update_curr` of `curr`, the current entity of `q`, for a time above 0.
    fn charge(self, sched: &mut Sched, q: Que, curr: Ent);

    /// `enqueue_entity` on one level, and the counters of `q`. With `GROUP` the entity is a
    /// group's, and its weight is refreshed.
    fn enqueue_entity<const GROUP: bool>(
        self,
        sched: &mut Sched,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    );

    /// `dequeue_entity` on one level, and the counters of `q`: the weight that remains there, or
    /// `None` if the entity stays, delayed.
    fn dequeue_entity(
        self,
        sched: &mut Sched,
        q: Que,
        e: Ent,
        flags: Dequeue,
        count: &mut Count,
    ) -> Option<u64>;

    /// `pick_next_entity` of a queue with at least two members; `curr` is its current entity if
    /// that is a member. Without `protect`, buddies and protected slices have no effect.
    fn pick_entity(self, sched: &Sched, q: Que, curr: Option<&SchedEntity>, protect: bool) -> Ent;

    /// The class's part of `set_next_entity`. `first` is false where the current task is put back
    /// after a change of its attributes.
    fn set_next(self, queue: &CfsRq, ent: &mut SchedEntity, cfg: &Config, first: bool);

    /// `clear_buddies`.
    fn clear_buddies(self, sched: &mut Sched, q: Que, e: Ent);

    /// `check_preempt_wakeup`: task `p` is queued on `rq`, where `curr` is the current task.
    fn check_preempt(self, sched: &mut Sched, rq: RqId, curr: Ent, p: Ent, arrival: Arrival);

    /// What `entity_tick` does beyond accounting.
    fn entity_tick(self, sched: &mut Sched, q: Que, curr: Ent);

    /// `yield_task_fair` of the current task, where others wait.
    fn yield_task(self, sched: &mut Sched, curr: Ent);

    /// `reweight_entity`.
    fn reweight_entity(self, sched: &mut Sched, e: Ent, weight: u64);

    /// `rescale_entity`: converts the entity's virtual times to its new weight. `protected`: it is
    /// the current entity, within its protected slice.
    fn rescale_entity(self, ent: &mut SchedEntity, weight: u64, protected: bool);

    /// `migrate_task_rq_fair`: a task leaves the queue that it was on last.
    fn migrate_task_rq(self, sched: &mut Sched, e: Ent);

    /// `detach_task_cfs_rq` of a task that changes its group. True for a sleeper, which
    /// [`Self::attach_sleeper`] must see in its new queue.
    fn detach_sleeper(self, sched: &mut Sched, e: Ent) -> bool;

    /// `attach_task_cfs_rq` of a sleeper in its new queue.
    fn attach_sleeper(self, sched: &mut Sched, e: Ent);

    /// A group's entity has been restored after [`crate::fair::Fair::compact_group`].
    fn restored(self, ent: &mut SchedEntity);
}

/// Calls a function of the configured class, named `$class`.
macro_rules! dispatch {
    ($sched:expr, $class:ident => $call:expr) => {
        match $sched.cfg.cfs {
            None => {
                let $class = Eevdf;
                $call
            }
            Some(_) => {
                let $class = CfsClass;
                $call
            }
        }
    };
}

impl Config {
    /// [`Class::set_next`].
    #[inline(always)]
    pub(crate) fn class_set_next(&self, queue: &CfsRq, ent: &mut SchedEntity, first: bool) {
        match self.cfs {
            None => Eevdf.set_next(queue, ent, self, first),
            Some(_) => CfsClass.set_next(queue, ent, self, first),
        }
    }

    /// The rules of the configured class.
    #[inline]
    pub(crate) fn rules(&self) -> &'static Rules {
        match self.cfs {
            None => &Eevdf::RULES,
            Some(_) => &CfsClass::RULES,
        }
    }
}

/// The functions of [`Class`], for the configured class.
impl Sched {
    pub(crate) fn class_new_queue(&mut self) {
        dispatch!(self, class => class.new_queue(self));
    }

    #[inline(never)]
    pub(crate) fn charge(&mut self, q: Que, curr: Ent) {
        debug_assert!(
            self.tree[q].curr() == curr,
            "only the current entity is charged"
        );
        dispatch!(self, class => class.charge(self, q, curr));
    }

    #[inline(always)]
    pub(crate) fn enqueue_entity<const GROUP: bool>(
        &mut self,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    ) {
        debug_assert!(!self.tree[e].on_rq(), "queued twice");
        debug_assert!(GROUP != self.tree[e].is_task());
        dispatch!(self, class => class.enqueue_entity::<GROUP>(self, q, e, flags, count));
        debug_assert!(self.tree[e].on_rq(), "not queued");
    }

    #[inline(always)]
    pub(crate) fn dequeue_entity(
        &mut self,
        q: Que,
        e: Ent,
        flags: Dequeue,
        count: &mut Count,
    ) -> Option<u64> {
        debug_assert!(self.tree[e].on_rq(), "dequeued twice");
        let load = dispatch!(self, class => class.dequeue_entity(self, q, e, flags, count));
        debug_assert_eq!(
            load.is_none(),
            self.tree[e].on_rq(),
            "only a delayed entity stays"
        );
        load
    }

    #[inline(always)]
    pub(crate) fn pick_entity(&self, q: Que, curr: Option<&SchedEntity>, protect: bool) -> Ent {
        dispatch!(self, class => class.pick_entity(self, q, curr, protect))
    }

    #[inline(always)]
    pub(crate) fn clear_buddies(&mut self, q: Que, e: Ent) {
        dispatch!(self, class => class.clear_buddies(self, q, e));
    }

    #[inline(always)]
    pub(crate) fn class_check_preempt(&mut self, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
        debug_assert!(curr != p && self.tree[p].on_rq());
        dispatch!(self, class => class.check_preempt(self, rq, curr, p, arrival));
    }

    #[inline]
    pub(crate) fn class_entity_tick(&mut self, q: Que, curr: Ent) {
        dispatch!(self, class => class.entity_tick(self, q, curr));
    }

    pub(crate) fn class_yield_task(&mut self, curr: Ent) {
        dispatch!(self, class => class.yield_task(self, curr));
    }

    pub(crate) fn reweight_entity(&mut self, e: Ent, weight: u64) {
        debug_assert!(weight > 0, "virtual time divides by the weight");
        dispatch!(self, class => class.reweight_entity(self, e, weight));
        debug_assert_eq!(self.tree[e].weight(), weight);
    }

    pub(crate) fn rescale_entity(&mut self, e: Ent, weight: u64, protected: bool) {
        let ent = &mut self.tree[e];
        dispatch!(self, class => class.rescale_entity(ent, weight, protected));
    }

    #[inline]
    pub(crate) fn migrate_task_rq(&mut self, e: Ent) {
        dispatch!(self, class => class.migrate_task_rq(self, e));
    }

    pub(crate) fn detach_sleeper(&mut self, e: Ent) -> bool {
        dispatch!(self, class => class.detach_sleeper(self, e))
    }

    pub(crate) fn attach_sleeper(&mut self, e: Ent) {
        dispatch!(self, class => class.attach_sleeper(self, e));
    }

    pub(crate) fn class_restored(&mut self, e: Ent) {
        let ent = &mut self.tree[e];
        dispatch!(self, class => class.restored(ent));
    }
}

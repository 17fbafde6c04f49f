//! EEVDF, the fair class of Linux 7.2: lag, eligibility, and the earliest virtual deadline first.

pub(crate) mod deadline;
pub(crate) mod flat;
pub(crate) mod lag;
mod pick;
pub(crate) mod place;
mod preempt;

use super::cfs_rq::{CfsRq, Running};
use super::config::Config;
use super::features::Feature;
use super::ids::{Ent, Que, RqId};
use super::rq::Resched;
use super::sched::{Class, Count, Dequeue, Enqueue, Rules, Sched};
use super::sched_entity::{Policy, SchedEntity};
use super::task::Arrival;

/// The class; its state is in the entities and queues themselves.
#[derive(Clone, Copy)]
pub(crate) struct Eevdf;

impl Class for Eevdf {
    const RULES: Rules = Rules {
        custom_slices: true,
        hrtick: true,
        set_nice_always_checks: false,
        move_checks_preempt: true,
        reweights_to_same: false,
        empty_group_weight: None,
    };

    fn new_queue(self, _: &mut Sched) {}

    #[inline(always)]
    fn charge(self, sched: &mut Sched, q: Que, curr: Ent) {
        let c = &mut sched.tree[curr];
        c.charge(sched.now);
        let (rq, protected) = (c.rq(), c.protected());
        let expired = c.update_deadline(sched.cfg.base_slice_ns);
        if protected && !expired {
            return;
        }
        if expired {
            sched.tree.avg_vruntime(q);
        }
        if sched.tree[q].members() != 1 {
            sched.resched_curr(rq, Resched::Lazy);
            sched.tree.clear_next_buddy(q, curr);
        }
    }

    #[inline(always)]
    fn enqueue_entity<const GROUP: bool>(
        self,
        sched: &mut Sched,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    ) {
        let initial = flags.initial;
        let running = sched.tree[q].curr();
        if running == e {
            enqueue_running(sched, q, e, initial, count);
            return;
        }
        // The current entity is mostly charged already, by the operation that enqueues `e`.
        let mut curr = match sched.tree.get(running) {
            Some(c) if sched.now > c.exec_start() => {
                sched.charge(q, running);
                sched.tree.running(q)
            }
            Some(c) if c.on_rq() => Some(Running::of(c)),
            _ => None,
        };
        if GROUP {
            sched.update_cfs_group(e);
            curr = sched.tree.running(q);
        }
        let load = sched.tree.load(e);
        let mut level = sched.tree.level(q);
        let (queue, ent) = level.pair(e);
        place::place_entity(queue, curr, ent, &sched.cfg, initial);
        let queue = level.join(e);
        queue.count_up(count);
        let owner = queue.owner();
        sched.tree.count_level(q, load as i64, 1);
        if owner.is_some() {
            sched.group_changed(owner, load as i64, count.runnable as i32);
        }
    }

    #[inline(always)]
    fn dequeue_entity(
        self,
        sched: &mut Sched,
        q: Que,
        e: Ent,
        flags: Dequeue,
        count: &mut Count,
    ) -> Option<u64> {
        sched.update_curr(q);
        sched.tree.clear_next_buddy(q, e);
        let may_stay = flags.may_stay() && sched.cfg.features.has(Feature::DelayDequeue);
        let load = sched.tree.load(e);
        let mut level = sched.tree.level(q);
        let curr = level.running();
        let (queue, ent) = level.pair(e);
        // Before the removal: the average must include the entity.
        let stays = may_stay && !queue.eligible(curr, ent.vruntime());
        lag::update_entity_lag(queue, curr, ent, &sched.cfg);
        if stays {
            place::set_delayed(sched, e);
            return None;
        }
        if !flags.sleep && sched.cfg.features.has(Feature::PlaceRelDeadline) {
            ent.make_deadline_relative();
        }
        let queue = level.leave(e);
        if flags.last {
            sched.tree.count_level(q, -(load as i64), -1);
            sched.group_load(q, -(load as i64));
            place::clear_delayed(sched, e);
            sched.count_down(q, count);
            return Some(sched.tree.level_load(q));
        }
        queue.count_down(count);
        let owner = queue.owner();
        sched.tree.count_level(q, -(load as i64), -1);
        if owner.is_some() {
            sched.group_changed(owner, -(load as i64), -(count.runnable as i32));
        }
        Some(sched.tree.level_load(q))
    }

    #[inline(always)]
    fn pick_entity(self, sched: &Sched, q: Que, curr: Option<&SchedEntity>, protect: bool) -> Ent {
        pick::pick_eevdf(sched, q, curr, protect)
    }

    #[inline(always)]
    fn set_next(self, queue: &CfsRq, ent: &mut SchedEntity, cfg: &Config, first: bool) {
        if first {
            pick::set_protect_slice(queue, ent, cfg);
        }
    }

    #[inline(always)]
    fn clear_buddies(self, sched: &mut Sched, q: Que, e: Ent) {
        sched.tree.clear_next_buddy(q, e);
    }

    #[inline(always)]
    fn check_preempt(self, sched: &mut Sched, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
        if sched.rqs[rq].resched() == Resched::Now {
            return;
        }
        if !sched.cfg.features.has(Feature::WakeupPreemption) {
            return;
        }
        let (q, c, pe) = (
            sched.tree.pick_queue(curr),
            &sched.tree[curr],
            &sched.tree[p],
        );
        // Always the case under flat picking, where tasks compete in one queue. The enqueue has
        // charged the queue.
        if q == sched.tree.pick_queue(p) {
            let (curr_idle, policy) = (c.policy() == Policy::Idle, pe.policy());
            if curr_idle && policy != Policy::Idle {
                preempt::preempt_short(sched, rq, q, curr);
            } else if policy == Policy::Normal {
                preempt::compare(sched, rq, q, curr, p, arrival);
            }
            return;
        }
        preempt::check_cousins(sched, rq, curr, p, arrival);
    }

    /// Nothing: [`Class::charge`] has compared with the deadline.
    #[inline(always)]
    fn entity_tick(self, _: &mut Sched, _: Que, _: Ent) {}

    /// The current task, if eligible, forfeits the rest of its request.
    fn yield_task(self, sched: &mut Sched, curr: Ent) {
        let q = sched.tree.pick_queue(curr);
        sched.tree.clear_next_buddy(q, curr);
        sched.update_curr(q);
        deadline::forfeit(sched, q, curr);
    }

    /// The entity's lag, deadline and protection stay the same in real time.
    fn reweight_entity(self, sched: &mut Sched, e: Ent, weight: u64) {
        let q = sched.tree.pick_queue(e);
        if !sched.tree[e].on_rq() {
            sched.set_level_load(e, weight);
            sched.rescale_entity(e, weight, false);
            return;
        }
        sched.update_curr(q);
        sched.set_level_load(e, weight);
        place::reweight_queued(sched, q, e, weight);
    }

    fn rescale_entity(self, ent: &mut SchedEntity, weight: u64, protected: bool) {
        ent.rescale(weight, protected);
    }

    /// Nothing: lag and distance to the deadline are relative.
    #[inline]
    fn migrate_task_rq(self, _: &mut Sched, _: Ent) {}

    fn detach_sleeper(self, _: &mut Sched, _: Ent) -> bool {
        false
    }

    fn attach_sleeper(self, _: &mut Sched, _: Ent) {}

    /// Nothing: placement sets its virtual runtime.
    fn restored(self, _: &mut SchedEntity) {}
}

/// [`Class::enqueue_entity`] for the current entity of the queue, which is not in the tree.
#[cold]
#[inline(never)]
fn enqueue_running(sched: &mut Sched, q: Que, e: Ent, initial: bool, count: &mut Count) {
    place::place(sched, q, e, initial);
    sched.update_curr(q);
    sched.update_cfs_group(e);
    sched.account_load(q, e);
    sched.tree.level(q).join(e);
    sched.count_up(q, count);
}

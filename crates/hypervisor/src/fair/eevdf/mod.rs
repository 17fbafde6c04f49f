//! EEVDF, the fair class of Linux 7.2: lag, eligibility, and the earliest virtual deadline first.

mod deadline;
pub(crate) mod flat;
pub(crate) mod lag;
mod pick;
mod place;
mod preempt;

use super::Fair;
use super::class::{Class, Rules};
use super::config::Config;
use super::enqueue::{Count, Dequeue, Enqueue};
use super::entity::{Entity, Policy};
use super::features::Feature;
use super::ids::{Ent, Que, RqId};
use super::queue::{Queue, Resched, Running};
use super::task::Arrival;
use super::weights::{before, mul_div};

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

    fn new_queue(self, _: &mut Fair) {}

    #[inline(always)]
    fn charge(self, fair: &mut Fair, q: Que, curr: Ent) {
        let c = &mut fair.ent[curr];
        let (delta, rq) = (fair.now - c.exec_start, c.rq);
        c.exec_start = fair.now;
        c.vruntime = c.vruntime.wrapping_add(c.vtime(delta));
        let (within_request, protected) = (before(c.vruntime, c.deadline), c.protected());
        let expired = !within_request && fair.update_deadline(q, curr);
        let queue = &fair.que[q];
        if queue.members != 1 && (expired || !protected) {
            fair.resched_curr(rq, Resched::Lazy);
            fair.clear_next_buddy(q, curr);
        }
    }

    #[inline(always)]
    fn enqueue_entity<const GROUP: bool>(
        self,
        fair: &mut Fair,
        q: Que,
        e: Ent,
        flags: Enqueue,
        count: &mut Count,
    ) {
        let initial = flags.initial;
        let running = fair.que[q].curr;
        if running == e {
            enqueue_running(fair, q, e, initial, count);
            return;
        }
        // The current entity is mostly charged already, by the operation that enqueues `e`.
        let mut curr = match fair.ent.get(running) {
            Some(c) if fair.now > c.exec_start => {
                fair.charge(q, running);
                fair.que[q].running(&fair.ent)
            }
            Some(c) if c.on_rq => Some(Running::of(c)),
            _ => None,
        };
        if GROUP {
            fair.refresh_weight(e);
            curr = fair.que[q].running(&fair.ent);
        }
        let load = fair.load(e);
        let (queue, ent) = (&mut fair.que[q], &mut fair.ent[e]);
        queue.place_entity(curr, ent, &fair.cfg, initial);
        ent.on_rq = true;
        queue.members += 1;
        queue.tree_insert(&mut fair.pool, &fair.ent, e);
        queue.count_up(count);
        let owner = queue.owner;
        fair.count_level(q, load as i64, 1);
        if owner.is_some() {
            fair.group_changed(owner, load as i64, count.runnable as i32);
        }
    }

    #[inline(always)]
    fn dequeue_entity(
        self,
        fair: &mut Fair,
        q: Que,
        e: Ent,
        flags: Dequeue,
        count: &mut Count,
    ) -> Option<u64> {
        fair.update_curr(q);
        fair.clear_next_buddy(q, e);
        let may_stay = flags.may_stay() && fair.cfg.features.has(Feature::DelayDequeue);
        let load = fair.load(e);
        let queue = &mut fair.que[q];
        let curr = queue.running(&fair.ent);
        let ent = &mut fair.ent[e];
        // Before the removal: the average must include the entity.
        let stays = may_stay && !queue.eligible(curr, ent.vruntime);
        queue.update_entity_lag(curr, ent, &fair.cfg);
        if stays {
            fair.set_delayed(e);
            return None;
        }
        if !flags.sleep && fair.cfg.features.has(Feature::PlaceRelDeadline) {
            ent.make_deadline_relative();
        }
        if queue.curr != e {
            queue.tree_remove(&mut fair.pool, e, ent);
        }
        ent.on_rq = false;
        queue.members -= 1;
        fair.count_level(q, -(load as i64), -1);
        if flags.last {
            fair.group_load(q, -(load as i64));
            fair.clear_delayed(e);
            fair.count_down(q, count);
            return Some(fair.level_load(q));
        }
        let queue = &mut fair.que[q];
        queue.count_down(count);
        let owner = queue.owner;
        if owner.is_some() {
            fair.group_changed(owner, -(load as i64), -(count.runnable as i32));
        }
        Some(fair.level_load(q))
    }

    #[inline(always)]
    fn pick_entity(self, fair: &Fair, q: Que, curr: Option<&Entity>, protect: bool) -> Ent {
        pick::pick_eevdf(fair, q, curr, protect)
    }

    #[inline(always)]
    fn set_next(self, queue: &Queue, ent: &mut Entity, cfg: &Config, first: bool) {
        if first {
            queue.set_protect_slice(ent, cfg);
        }
    }

    #[inline(always)]
    fn clear_buddies(self, fair: &mut Fair, q: Que, e: Ent) {
        fair.clear_next_buddy(q, e);
    }

    #[inline(always)]
    fn check_preempt(self, fair: &mut Fair, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
        if fair.rqs[rq].resched == Resched::Now {
            return;
        }
        if !fair.cfg.features.has(Feature::WakeupPreemption) {
            return;
        }
        let (q, c, pe) = (fair.pick_queue(curr), &fair.ent[curr], &fair.ent[p]);
        // Always the case under flat picking, where tasks compete in one queue. The enqueue has
        // charged the queue.
        if q == fair.pick_queue(p) {
            let (curr_idle, policy) = (c.policy() == Policy::Idle, pe.policy());
            if curr_idle && policy != Policy::Idle {
                preempt::preempt_short(fair, rq, q, curr);
            } else if policy == Policy::Normal {
                preempt::compare(fair, rq, q, curr, p, arrival);
            }
            return;
        }
        preempt::check_cousins(fair, rq, curr, p, arrival);
    }

    /// Nothing: [`Class::charge`] has compared with the deadline.
    #[inline(always)]
    fn entity_tick(self, _: &mut Fair, _: Que, _: Ent) {}

    /// The current task, if eligible, forfeits the rest of its request.
    fn yield_task(self, fair: &mut Fair, curr: Ent) {
        let q = fair.pick_queue(curr);
        fair.clear_next_buddy(q, curr);
        fair.update_curr(q);
        deadline::forfeit(fair, q, curr);
    }

    /// The entity's lag, deadline and protection stay the same in real time.
    fn reweight_entity(self, fair: &mut Fair, e: Ent, weight: u64) {
        let q = fair.pick_queue(e);
        if !fair.ent[e].on_rq {
            fair.set_level_load(e, weight);
            fair.rescale_entity(e, weight, false);
            return;
        }
        fair.update_curr(q);
        fair.set_level_load(e, weight);
        place::reweight_queued(fair, q, e, weight);
    }

    fn rescale_entity(self, ent: &mut Entity, weight: u64, protected: bool) {
        let old = ent.weight;
        ent.vlag = mul_div(ent.vlag, old, weight);
        if ent.on_rq || ent.rel_deadline {
            ent.deadline = mul_div(ent.deadline as i64, old, weight) as u64;
        }
        if protected {
            ent.vprot = mul_div(ent.vprot as i64, old, weight) as u64;
        }
        ent.weight = weight;
    }

    /// Nothing: lag and distance to the deadline are relative.
    #[inline]
    fn migrate_task_rq(self, _: &mut Fair, _: Ent) {}

    fn detach_sleeper(self, _: &mut Fair, _: Ent) -> bool {
        false
    }

    fn attach_sleeper(self, _: &mut Fair, _: Ent) {}

    /// Nothing: placement sets its virtual runtime.
    fn restored(self, _: &mut Entity) {}
}

/// [`Class::enqueue_entity`] for the current entity of the queue, which is not in the tree.
#[cold]
#[inline(never)]
fn enqueue_running(fair: &mut Fair, q: Que, e: Ent, initial: bool, count: &mut Count) {
    fair.place_entity(q, e, initial);
    fair.update_curr(q);
    fair.refresh_weight(e);
    fair.account_load(q, e);
    fair.que[q].members += 1;
    fair.ent[e].on_rq = true;
    fair.count_up(q, count);
}

//! Wakeup preemption: whether a task that became runnable preempts the current one
//! (`wakeup_preempt_fair`).

use crate::fair::Fair;
use crate::fair::entity::Policy;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que, RqId};
use crate::fair::queue::Resched;
use crate::fair::schedule::FINAL;
use crate::fair::task::Arrival;
use crate::fair::weights::before;

/// For tasks in different groups: their ancestors in a common queue compete.
#[inline(never)]
pub(super) fn check_cousins(fair: &mut Fair, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
    let (se, pse) = fair.find_matching_se(curr, p);
    let (se_idle, pse_idle) = (fair.is_idle(se), fair.is_idle(pse));
    if se_idle && !pse_idle {
        // The kernel clears the buddy of the current task's queue here, not of `se`'s.
        let buddy_queue = fair.pick_queue(curr);
        preempt_short(fair, rq, buddy_queue, se);
        return;
    }
    if se_idle != pse_idle || fair.ent[p].policy() != Policy::Normal {
        return;
    }
    let q = fair.pick_queue(se);
    fair.update_curr(q);
    compare(fair, rq, q, se, pse, arrival);
}

/// Requests a reschedule if `pse` would be picked in `q`. Its current entity `se` is charged.
#[inline(always)]
pub(super) fn compare(fair: &mut Fair, rq: RqId, q: Que, se: Ent, pse: Ent, arrival: Arrival) {
    let (slice, pe) = (fair.ent[se].slice, &fair.ent[pse]);
    let short = pe.slice < slice && fair.cfg.features.has(Feature::PreemptShort);
    if !short && (arrival.is_fork() || pe.delayed) {
        return;
    }
    if !short
        && fair.cfg.features.has(Feature::NextBuddy)
        && set_preempt_buddy(fair, q, se, pse, arrival)
    {
        return;
    }
    if pick_settled(fair, q, !short) != pse {
        if fair.cfg.features.has(Feature::RunToParity) {
            fair.update_protect_slice(q, se);
        }
    } else if short {
        preempt_short(fair, rq, q, se);
    } else {
        fair.resched_curr(rq, Resched::Lazy);
    }
}

/// `set_preempt_buddy` and `preempt_sync`: nominates `pse`, unless the current buddy has an
/// earlier deadline. True for a synchronous wakeup, for which only the time that the waker has run
/// decides.
///
/// The kernel compares just after it has charged the waker, when that time is 0. A synchronous
/// wakeup therefore preempts only at a migration cost of 0.
#[inline(never)]
fn set_preempt_buddy(fair: &mut Fair, q: Que, se: Ent, pse: Ent, arrival: Arrival) -> bool {
    let deadline = fair.ent[pse].deadline;
    let buddy = fair.ent.get(fair.que[q].next);
    if buddy.is_some_and(|b| before(b.deadline, deadline)) {
        return false;
    }
    fair.nominate(pse);
    if !arrival.is_sync() {
        return false;
    }
    // `preempt_sync`: a quarter of the cost where the woken task could have run on another CPU.
    let shift = if arrival.is_rq_selected() { 2 } else { 0 };
    let (se, rq) = (&fair.ent[se], fair.ent[pse].rq);
    let ran_ns = fair.now.saturating_sub(se.exec_start);
    if before(deadline, se.deadline) && ran_ns >= fair.cfg.migration_cost_ns >> shift {
        fair.resched_curr(rq, Resched::Lazy);
    }
    true
}

/// Picks in `q` and dequeues delayed entities until the pick is runnable.
#[inline(always)]
fn pick_settled(fair: &mut Fair, q: Que, protect: bool) -> Ent {
    loop {
        let e = fair.pick_next_entity(q, protect);
        if !fair.ent[e].delayed {
            return e;
        }
        fair.dequeue_task(e, FINAL);
        debug_assert!(!fair.ent[e].on_rq, "a final dequeue is not delayed");
        if fair.que[q].members == 0 {
            return Ent::NONE;
        }
    }
}

/// Preempts `se` within its protected slice.
#[inline(never)]
pub(super) fn preempt_short(fair: &mut Fair, rq: RqId, buddy_queue: Que, se: Ent) {
    fair.ent[se].cancel_protect_slice();
    fair.clear_next_buddy(buddy_queue, se);
    fair.resched_curr(rq, Resched::Lazy);
}

//! Wakeup preemption: whether a task that became runnable preempts the current one
//! (`wakeup_preempt_fair`).

use super::pick::update_protect_slice;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que, RqId};
use crate::fair::rq::Resched;
use crate::fair::sched::FINAL;
use crate::fair::sched::Sched;
use crate::fair::sched_entity::Policy;
use crate::fair::task::Arrival;
use crate::fair::weights::before;

/// For tasks in different groups: their ancestors in a common queue compete.
#[inline(never)]
pub(super) fn check_cousins(sched: &mut Sched, rq: RqId, curr: Ent, p: Ent, arrival: Arrival) {
    let (se, pse) = sched.tree.find_matching_se(curr, p);
    let (se_idle, pse_idle) = (sched.tree.is_idle(se), sched.tree.is_idle(pse));
    if se_idle && !pse_idle {
        // The kernel clears the buddy of the current task's queue here, not of `se`'s.
        let buddy_queue = sched.tree.pick_queue(curr);
        preempt_short(sched, rq, buddy_queue, se);
        return;
    }
    if se_idle != pse_idle || sched.tree[p].policy() != Policy::Normal {
        return;
    }
    let q = sched.tree.pick_queue(se);
    sched.update_curr(q);
    compare(sched, rq, q, se, pse, arrival);
}

/// Requests a reschedule if `pse` would be picked in `q`. Its current entity `se` is charged.
#[inline(always)]
pub(super) fn compare(sched: &mut Sched, rq: RqId, q: Que, se: Ent, pse: Ent, arrival: Arrival) {
    let (slice, pe) = (sched.tree[se].slice(), &sched.tree[pse]);
    let short = pe.slice() < slice && sched.cfg.features.has(Feature::PreemptShort);
    if !short && (arrival.is_fork() || pe.delayed()) {
        return;
    }
    if !short
        && sched.cfg.features.has(Feature::NextBuddy)
        && set_preempt_buddy(sched, q, se, pse, arrival)
    {
        return;
    }
    if pick_settled(sched, q, !short) != pse {
        if sched.cfg.features.has(Feature::RunToParity) {
            update_protect_slice(sched, q, se);
        }
    } else if short {
        preempt_short(sched, rq, q, se);
    } else {
        sched.resched_curr(rq, Resched::Lazy);
    }
}

/// `set_preempt_buddy` and `preempt_sync`: nominates `pse`, unless the current buddy has an
/// earlier deadline. True for a synchronous wakeup, for which only the time that the waker has run
/// decides.
///
/// The kernel compares just after it has charged the waker, when that time is 0. A synchronous
/// wakeup therefore preempts only at a migration cost of 0.
#[inline(never)]
fn set_preempt_buddy(sched: &mut Sched, q: Que, se: Ent, pse: Ent, arrival: Arrival) -> bool {
    let deadline = sched.tree[pse].deadline();
    let buddy = sched.tree.get(sched.tree[q].next());
    if buddy.is_some_and(|b| before(b.deadline(), deadline)) {
        return false;
    }
    sched.nominate(pse);
    if !arrival.is_sync() {
        return false;
    }
    // `preempt_sync`: a quarter of the cost where the woken task could have run on another CPU.
    let shift = if arrival.is_rq_selected() { 2 } else { 0 };
    let (se, rq) = (&sched.tree[se], sched.tree[pse].rq());
    let ran_ns = sched.now.saturating_sub(se.exec_start());
    if before(deadline, se.deadline()) && ran_ns >= sched.cfg.migration_cost_ns >> shift {
        sched.resched_curr(rq, Resched::Lazy);
    }
    true
}

/// Picks in `q` and dequeues delayed entities until the pick is runnable.
#[inline(always)]
fn pick_settled(sched: &mut Sched, q: Que, protect: bool) -> Ent {
    loop {
        let e = sched.pick_next_entity(q, protect);
        if !sched.tree[e].delayed() {
            return e;
        }
        sched.dequeue_task(e, FINAL);
        debug_assert!(!sched.tree[e].on_rq(), "a final dequeue is not delayed");
        if sched.tree[q].members() == 0 {
            return Ent::NONE;
        }
    }
}

/// Preempts `se` within its protected slice.
#[inline(never)]
pub(super) fn preempt_short(sched: &mut Sched, rq: RqId, buddy_queue: Que, se: Ent) {
    sched.tree[se].cancel_protect_slice();
    sched.tree.clear_next_buddy(buddy_queue, se);
    sched.resched_curr(rq, Resched::Lazy);
}

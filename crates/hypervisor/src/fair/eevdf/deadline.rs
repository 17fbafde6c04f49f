//! Requests and their virtual deadlines: renewal, forfeit, and the timer at the end of a slice.

use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que, RqId};
use crate::fair::rq::Resched;
use crate::fair::sched::Sched;

/// `yield_task_fair`: moves an eligible entity to the end of its request. An entity that is not
/// eligible stays. Up to 6.18 the deadline of any entity moves by a slice instead.
pub(super) fn forfeit(sched: &mut Sched, q: Que, e: Ent) {
    let base_slice_ns = sched.cfg.base_slice_ns;
    if !sched.cfg.yield_forfeits {
        sched.tree[e].postpone_deadline();
    } else if sched.tree.eligible(q, e) {
        let ent = &mut sched.tree[e];
        ent.forfeit_request();
        if ent.update_deadline(base_slice_ns) {
            sched.tree.avg_vruntime(q);
        }
    }
}

/// `hrtick_start_fair` for task entity `e`.
pub(crate) fn hrtick_start_fair(sched: &mut Sched, rq: RqId, e: Ent) {
    if sched.nr_queued(rq) < 2 || !sched.cfg.rules().hrtick {
        return;
    }
    let ent = &sched.tree[e];
    let ahead = ent.deadline().wrapping_sub(ent.vruntime()) as i64;
    if ahead < 0 {
        // Late after a change of weight. During a pick `e` is not the current task yet.
        if sched.rqs[rq].curr() == e {
            sched.resched_curr(rq, Resched::Now);
        }
        return;
    }
    let delay_ns = (u128::from(ent.weight()) * ahead as u128) >> 20;
    sched.rqs[rq].start_hrtick(u64::try_from(delay_ns).unwrap_or(u64::MAX));
}

/// `hrtick_update`: an enqueue arms the timer for the current task, unless it is armed.
#[inline]
pub(crate) fn hrtick_update(sched: &mut Sched, rq: RqId) {
    if !sched.cfg.features.has(Feature::Hrtick) {
        return;
    }
    let r = &sched.rqs[rq];
    if r.hrtick().is_none() && r.curr().is_some() {
        hrtick_start_fair(sched, rq, r.curr());
    }
}

//! Directed yield (`yield_to`, `yield_to_task_fair`).

use super::error::Error;
use super::features::Feature;
use super::ids::{Ent, RqId};
use super::rq::Resched;
use super::sched::{Dequeue, Enqueue, Sched};
use super::sched_entity::TaskState;
use crate::lag_credit::{Credited, credit_yield};

/// The effect of a directed yield: see [`super::YieldTo`].
pub(super) enum Outcome {
    OnlyOne,
    Refused,
    Yielded {
        kicked: Option<RqId>,
        pulled: Option<RqId>,
        credit: Credited,
    },
}

/// The current task of `rq` yields to `p`, which may be pulled from another run queue if it
/// `may_run_here`.
pub(super) fn yield_to(
    sched: &mut Sched,
    rq: RqId,
    p: Ent,
    may_run_here: bool,
    now_ns: u64,
) -> Result<Outcome, Error> {
    let (queued, p_rq) = (sched.tree[p].on_rq(), sched.tree[p].rq());
    if queued && p_rq != rq {
        sched.check_clock(p_rq, now_ns)?;
    }
    sched.set_clock(rq, now_ns);
    // `task_rq` of a sleeper is its last run queue; a task without one counts for `rq`.
    let target_rq = if sched.tree[p].is_new() { rq } else { p_rq };
    if sched.nr_queued(rq) == 1 && sched.nr_queued(target_rq) == 1 {
        return Ok(Outcome::OnlyOne);
    }
    if !queued || sched.is_running(p) || sched.tree[p].state() != TaskState::Runnable {
        return Ok(Outcome::Refused);
    }
    sched.set_clock(p_rq, now_ns);
    let credited = sched.cfg.features.has(Feature::YieldToLagCredit);
    let pull = credited && sched.cfg.lag_credit.across_run_queues && may_run_here && p_rq != rq;
    let pulled = if pull { pull_task(sched, p, rq)? } else { None };
    sched.nominate(p);
    let mut credit = Credited::default();
    if credited {
        credit = credit_yield(sched, rq, p);
    } else {
        sched.yield_step(rq);
    }
    debug_assert!(sched.tree[p].on_rq(), "a yield dequeues no target");
    let target_rq = sched.tree[p].rq();
    let kicked = (target_rq != rq).then_some(target_rq);
    if let Some(kicked) = kicked {
        sched.resched_curr(kicked, Resched::Now);
    }
    Ok(Outcome::Yielded {
        kicked,
        pulled,
        credit,
    })
}

/// Moves a queued task to `rq`, if its group has a part there, and returns its old run queue.
fn pull_task(sched: &mut Sched, p: Ent, rq: RqId) -> Result<Option<RqId>, Error> {
    let source = sched.tree[p].rq();
    if sched.group_cfs_rq(sched.tree[p].group(), rq).is_err() {
        return Ok(None);
    }
    sched.dequeue_task(p, Dequeue::default());
    sched.set_task_rq(p, rq)?;
    sched.enqueue_task(p, Enqueue::default());
    Ok(Some(source))
}

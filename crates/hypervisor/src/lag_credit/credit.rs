//! The credit: one level, and the walk along the nominated chain.

use super::arithmetic::{credit_shift, full_margin};
use super::config::{CreditFault, LagCredit, Method};
use super::debooster::deboost;
use super::force::force_resched;
use super::guard::CreditRequest;
use crate::fair::{Ent, Que, RqId, Sched, lag_bound, requeue_entity};

/// The effect of a directed yield beyond the nomination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Credited {
    /// Levels of the target's chain that were not eligible and have been credited.
    pub levels: u32,
    /// The yielder was moved back (versions 1 and 2).
    pub deboosted: bool,
    /// Slice protection has ended and a reschedule is forced.
    pub forced: bool,
}

/// The lag of `e` after a credit on `q`; none for the only member.
///
/// `margin * (n - 1)`, at most the bound of `entity_lag`. It is virtual time: a group with an
/// eighth of a task's weight on this CPU receives an eighth of a task's service.
pub(crate) fn credit_target(sched: &Sched, q: Que, e: Ent, margin_ns: u64) -> Option<i64> {
    let margin = full_margin(u64::from(sched.tree[q].members()), margin_ns)?;
    if sched.credits.fault() == CreditFault::Unbounded {
        return Some(margin);
    }
    Some(margin.min(lag_bound(sched, q, e)))
}

/// `eevdf_credit_entity_vlag`: makes `e` eligible in `q` with the lag of a credit. False if it
/// is eligible already, the only member, or refused by the guard.
fn credit_level(sched: &mut Sched, q: Que, e: Ent, margin_ns: u64, keep_request: bool) -> bool {
    sched.update_curr(q);
    if sched.tree.eligible(q, e) {
        return false;
    }
    let Some(aim) = credit_target(sched, q, e, margin_ns) else {
        return false;
    };
    let Some(target) = guarded(sched, q, e, aim) else {
        return false;
    };
    debug_assert!(target >= 0, "a credit that leaves the entity ineligible");
    if sched.tree[q].curr() == e {
        return credit_running(sched, q, e, target);
    }
    if sched.credits.fault() == CreditFault::InPlace {
        let average = sched.tree.average(q);
        sched.tree[e].corrupt(average, target);
        return true;
    }
    sched.tree[e].credit_lag(target, keep_request);
    requeue_entity(sched, q, e);
    // Without PLACE_REL_DEADLINE placement has set an absolute deadline, but not this flag.
    sched.tree[e].set_deadline_absolute();
    true
}

/// The lag up to `target` that the guard grants; all of it without a guard.
fn guarded(sched: &mut Sched, q: Que, e: Ent, target: i64) -> Option<i64> {
    let Some(guard) = sched.cfg.lag_credit.guard else {
        return Some(target);
    };
    let ent = &sched.tree[e];
    let request = CreditRequest {
        vlag: sched.tree.average(q).wrapping_sub(ent.vruntime()) as i64,
        target,
        weight: ent.weight(),
    };
    let now_ns = sched.rqs[ent.rq()].clock();
    sched.credits.spend(q, guard, now_ns, request)
}

/// Shifts the current entity of `q` back, with its deadline and protection.
fn credit_running(sched: &mut Sched, q: Que, e: Ent, target: i64) -> bool {
    let (total, weight) = (sched.tree.weight(q), sched.tree[e].weight());
    let lag = sched.tree.average(q).wrapping_sub(sched.tree[e].vruntime()) as i64;
    let Some(shift) = credit_shift(lag, target, weight, total) else {
        return false;
    };
    let ent = &mut sched.tree[e];
    ent.shift_back(shift);
    // The base of the sums moves to the average. A heavy entity among light ones moves far: its
    // key from the old base, times its weight, would exceed 64 bits.
    let v = ent.vruntime().wrapping_add(target as u64);
    sched.tree[q].set_zero(v);
    true
}

/// Credits each nominated level of `p`'s chain that is not eligible.
fn credit_chain(sched: &mut Sched, p: Ent, margin_ns: u64, keep_request: bool) -> u32 {
    let flat = sched.is_flat(sched.tree[p].rq());
    let mut levels = 0;
    let mut e = p;
    while e.is_some() && sched.tree[e].on_rq() && !sched.tree.is_idle(e) {
        let q = sched.tree.pick_queue(e);
        levels += u32::from(credit_level(sched, q, e, margin_ns, keep_request));
        e = if flat {
            Ent::NONE
        } else {
            sched.tree.parent(e)
        };
    }
    levels
}

#[cfg(test)]
pub(super) fn credit_one(sched: &mut Sched, q: Que, e: Ent) -> bool {
    match sched.cfg.lag_credit.method {
        Method::Credit {
            margin_ns,
            keep_request,
        } => credit_level(sched, q, e, margin_ns, keep_request),
        Method::Debooster => false,
    }
}

/// The rest of `yield_to_task_fair` with the feature on: `p`, on `rq`, is nominated.
pub(crate) fn credit_yield(sched: &mut Sched, rq: RqId, p: Ent) -> Credited {
    let LagCredit {
        method, rate_limit, ..
    } = sched.cfg.lag_credit;
    let mut credited = Credited::default();
    let (local, now_ns) = (sched.tree[p].rq() == rq, sched.rqs[rq].clock());
    match method {
        Method::Credit {
            margin_ns,
            keep_request,
        } if local => {
            sched.credits.record_yield(rq, now_ns);
            credited.levels = credit_chain(sched, p, margin_ns, keep_request);
            // `update_curr` of a shared ancestor may have cleared its nomination.
            sched.nominate(p);
            sched.yield_step(rq);
            credited.forced = sched.credits.may_force(rq, now_ns, rate_limit);
        }
        Method::Credit { .. } => sched.yield_step(rq),
        Method::Debooster => {
            sched.credits.record_yield(rq, now_ns);
            // As `yield_deboost_validate_tasks`: the limit comes before the comparison of run
            // queues, so that a yield to another run queue uses it up.
            if sched.credits.may_force(rq, now_ns, rate_limit) && local {
                credited.deboosted = deboost(sched, rq, p);
            }
            sched.yield_step(rq);
        }
    }
    if credited.forced {
        force_resched(sched, rq);
    }
    credited
}

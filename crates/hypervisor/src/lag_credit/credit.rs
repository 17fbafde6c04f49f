//! The credit: one level, and the walk along the nominated chain.

use super::config::{CreditFault, LagCredit, Method};
use super::guard::CreditRequest;
use crate::fair::{Ent, Fair, Que, RqId};

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

impl Fair {
    /// The lag of `e` after a credit on `q`; none for the only member.
    ///
    /// `margin * (n - 1)`, at most the bound of `entity_lag`. It is virtual time: a group with an
    /// eighth of a task's weight on this CPU receives an eighth of a task's service.
    pub(crate) fn credit_target(&self, q: Que, e: Ent, margin_ns: u64) -> Option<i64> {
        let n = u128::from(self.que[q].members);
        if n <= 1 {
            return None;
        }
        let margin = u128::from(margin_ns) * (n - 1);
        let margin = i64::try_from(margin).unwrap_or(i64::MAX);
        if self.credit_fault == CreditFault::Unbounded {
            return Some(margin);
        }
        Some(margin.min(self.lag_bound(q, e)))
    }

    /// `eevdf_credit_entity_vlag`: makes `e` eligible in `q` with the lag of a credit. False if it
    /// is eligible already, the only member, or refused by the guard.
    fn credit_level(&mut self, q: Que, e: Ent, margin_ns: u64, keep_request: bool) -> bool {
        self.update_curr(q);
        if self.eligible(q, e) {
            return false;
        }
        let Some(aim) = self.credit_target(q, e, margin_ns) else {
            return false;
        };
        let Some(target) = self.guarded(q, e, aim) else {
            return false;
        };
        debug_assert!(target >= 0, "a credit that leaves the entity ineligible");
        if self.que[q].curr == e {
            return self.credit_running(q, e, target);
        }
        if self.credit_fault == CreditFault::InPlace {
            let average = self.average(q);
            self.ent[e].vlag = target;
            self.ent[e].vruntime = average.wrapping_sub(target as u64);
            return true;
        }
        let ent = &mut self.ent[e];
        ent.vlag = target;
        if keep_request {
            ent.deadline = ent.deadline.wrapping_sub(ent.vruntime);
            ent.rel_deadline = true;
        }
        self.requeue_entity(q, e);
        // Without PLACE_REL_DEADLINE placement has set an absolute deadline, but not this flag.
        self.ent[e].rel_deadline = false;
        true
    }

    /// The lag up to `target` that the guard grants; all of it without a guard.
    fn guarded(&mut self, q: Que, e: Ent, target: i64) -> Option<i64> {
        let Some(guard) = self.cfg.lag_credit.guard else {
            return Some(target);
        };
        let ent = &self.ent[e];
        let request = CreditRequest {
            vlag: self.average(q).wrapping_sub(ent.vruntime) as i64,
            target,
            weight: ent.weight,
        };
        let now_ns = self.rqs[ent.rq].clock;
        self.tokens[q].spend(guard, now_ns, request)
    }

    /// Shifts the current entity of `q` back, with its deadline and protection.
    ///
    /// It is part of the average: moving it by d moves the average by d * w / W. For the lag to
    /// become `target` it moves by `(target - lag) * W / (W - w)`.
    fn credit_running(&mut self, q: Que, e: Ent, target: i64) -> bool {
        let weight = self.weight(q);
        let tree_weight = weight - self.ent[e].weight;
        if tree_weight == 0 {
            return false;
        }
        let lag = self.average(q).wrapping_sub(self.ent[e].vruntime) as i64;
        let shift = i128::from(target - lag) * i128::from(weight) / i128::from(tree_weight);
        let shift = shift.clamp(0, i128::from(i64::MAX)) as u64;
        let ent = &mut self.ent[e];
        let protected = ent.protected();
        ent.vruntime = ent.vruntime.wrapping_sub(shift);
        ent.deadline = ent.deadline.wrapping_sub(shift);
        if protected {
            ent.vprot = ent.vprot.wrapping_sub(shift);
        }
        // The base of the sums moves to the average. A heavy entity among light ones moves far: its
        // key from the old base, times its weight, would exceed 64 bits.
        let v = ent.vruntime.wrapping_add(target as u64);
        self.que[q].set_zero(v);
        true
    }

    /// Credits each nominated level of `p`'s chain that is not eligible.
    fn credit_chain(&mut self, p: Ent, margin_ns: u64, keep_request: bool) -> u32 {
        let flat = self.is_flat(self.ent[p].rq);
        let mut levels = 0;
        let mut e = p;
        while e.is_some() && self.ent[e].on_rq && !self.is_idle(e) {
            let q = self.pick_queue(e);
            levels += u32::from(self.credit_level(q, e, margin_ns, keep_request));
            e = if flat { Ent::NONE } else { self.parent(e) };
        }
        levels
    }

    #[cfg(test)]
    pub(super) fn credit_one(&mut self, q: Que, e: Ent) -> bool {
        match self.cfg.lag_credit.method {
            Method::Credit {
                margin_ns,
                keep_request,
            } => self.credit_level(q, e, margin_ns, keep_request),
            Method::Debooster => false,
        }
    }

    /// The rest of `yield_to_task_fair` with the feature on: `p`, on `rq`, is nominated.
    pub(crate) fn credit_yield(&mut self, rq: RqId, p: Ent) -> Credited {
        let LagCredit {
            method, rate_limit, ..
        } = self.cfg.lag_credit;
        let mut credited = Credited::default();
        let local = self.ent[p].rq == rq;
        match method {
            Method::Credit {
                margin_ns,
                keep_request,
            } if local => {
                self.record_yield(rq);
                credited.levels = self.credit_chain(p, margin_ns, keep_request);
                // `update_curr` of a shared ancestor may have cleared its nomination.
                self.nominate(p);
                self.yield_step(rq);
                credited.forced = self.may_force(rq, rate_limit);
            }
            Method::Credit { .. } => self.yield_step(rq),
            Method::Debooster => {
                self.record_yield(rq);
                // As `yield_deboost_validate_tasks`: the limit comes before the comparison of run
                // queues, so that a yield to another run queue uses it up.
                if self.may_force(rq, rate_limit) && local {
                    credited.deboosted = self.deboost(rq, p);
                }
                self.yield_step(rq);
            }
        }
        if credited.forced {
            self.force_resched(rq);
        }
        credited
    }
}

//! The history of credits, by run queue, and the tokens of each queue.

use alloc::boxed::Box;

use super::config::{CreditFault, Guard, RateLimit};
use super::force::{averaged, interval_ns, is_due};
use super::guard::{CreditRequest, Tokens};
use crate::fair::{Arena, Ent, Que, RqId};

/// The history of a run queue's directed yields.
#[derive(Clone, Debug, Default, Hash)]
struct CreditState {
    /// Time in ns of the last forced reschedule, or with [`RateLimit::Quiet`] the last request.
    forced_ns: Option<u64>,
    /// Time of the last directed yield, in ns.
    yielded_ns: Option<u64>,
    /// Average time between directed yields, in ns; none before the second.
    gap_ns: Option<u64>,
    pair: Option<DeboostedPair>,
}

/// The last yielder that was moved back, and its target.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct DeboostedPair {
    pub(super) yielder: Ent,
    pub(super) target: Ent,
    /// Time of the yield, in ns.
    pub(super) time_ns: u64,
}

/// The state of the lag credits of a host.
#[derive(Clone, Debug, Default, Hash)]
struct Tables {
    /// By run queue; empty without `YIELD_TO_LAG_CREDIT`.
    states: Arena<CreditState>,
    /// By queue; empty without a guard.
    tokens: Arena<Tokens>,
    fault: CreditFault,
}

/// That state, in a box: a guest's scheduler, of which a host has many, has no credits.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct LagCredits(Option<Box<Tables>>);

impl LagCredits {
    fn tables(&mut self) -> &mut Tables {
        self.0.get_or_insert_default()
    }

    /// Adds the history of the run queue that was added last.
    pub(crate) fn push_rq(&mut self) {
        self.tables().states.push(false, CreditState::default());
    }

    /// Adds the tokens of the queue that was added last.
    pub(crate) fn push_queue(&mut self, lean: bool) {
        self.tables().tokens.push(lean, Tokens::default());
    }

    /// Injects a fault, for a checker to find.
    pub(crate) fn set_fault(&mut self, fault: CreditFault) {
        self.tables().fault = fault;
    }

    pub(super) fn fault(&self) -> CreditFault {
        let tables = self.0.as_ref();
        tables.map_or(CreditFault::None, |tables| tables.fault)
    }

    /// Whether no credit has been paid in `q`.
    pub(crate) fn is_unspent(&self, q: Que) -> bool {
        let tokens = self.0.as_ref().and_then(|tables| tables.tokens.get(q));
        tokens.is_none_or(|tokens| *tokens == Tokens::default())
    }

    /// The bucket of `q`.
    #[cfg(test)]
    pub(super) fn bucket(&mut self, q: Que) -> &mut Tokens {
        &mut self.tables().tokens[q]
    }

    /// [`Tokens::spend`] in `q`.
    pub(super) fn spend(
        &mut self,
        q: Que,
        guard: Guard,
        now_ns: u64,
        request: CreditRequest,
    ) -> Option<i64> {
        self.tables().tokens[q].spend(guard, now_ns, request)
    }

    /// Updates the run queue's average gap by a directed yield at `now_ns`.
    pub(super) fn record_yield(&mut self, rq: RqId, now_ns: u64) {
        let credit = &mut self.tables().states[rq];
        if let Some(last) = credit.yielded_ns {
            credit.gap_ns = Some(averaged(credit.gap_ns, now_ns - last));
        }
        credit.yielded_ns = Some(now_ns);
    }

    /// Whether the limit lets a reschedule be forced at `now_ns`, or the yielder be moved back.
    /// Records it as done.
    pub(super) fn may_force(&mut self, rq: RqId, now_ns: u64, limit: RateLimit) -> bool {
        let fault = self.fault();
        let credit = &mut self.tables().states[rq];
        let interval = interval_ns(limit, credit.gap_ns);
        let last = credit.forced_ns.filter(|_| fault != CreditFault::Unlimited);
        let due = is_due(last, interval, now_ns);
        // Version 1 of the series renews its time stamp with each yield.
        if due || matches!(limit, RateLimit::Quiet { .. }) {
            credit.forced_ns = Some(now_ns);
        }
        due
    }

    /// The last yielder that was moved back on `rq`.
    pub(super) fn last_deboosted(&self, rq: RqId) -> Option<DeboostedPair> {
        self.0.as_ref()?.states[rq].pair
    }

    pub(super) fn set_deboosted(&mut self, rq: RqId, pair: DeboostedPair) {
        self.tables().states[rq].pair = Some(pair);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forced_reschedules_are_rarer_where_yields_are_frequent() {
        let limit = RateLimit::Adaptive {
            interval_ns: 1_000,
            gap_ns: 100,
            min_ns: 10,
            max_ns: 100_000,
        };
        let (mut credits, rq) = (LagCredits::default(), RqId(0));
        credits.push_rq();
        assert!(credits.may_force(rq, 0, limit));
        assert!(credits.may_force(rq, 10, limit), "no gap is known");
        credits.record_yield(rq, 50);
        credits.record_yield(rq, 100);
        // A gap of 50 ns doubles the interval.
        assert!(!credits.may_force(rq, 10 + 1_999, limit));
        assert!(credits.may_force(rq, 10 + 2_000, limit));
        assert!(!credits.may_force(rq, 10 + 2_001, limit));
        credits.set_fault(CreditFault::Unlimited);
        assert!(
            credits.may_force(rq, 10 + 2_001, limit),
            "an injected fault"
        );
    }

    #[test]
    fn a_queue_is_unspent_until_it_pays() {
        let mut credits = LagCredits::default();
        let [paying, other] = [0, 1].map(Que);
        credits.push_queue(false);
        credits.push_queue(false);
        let guard = Guard {
            per_mille: 125,
            burst_ns: 1_000,
        };
        let request = CreditRequest {
            vlag: -10,
            target: 10,
            weight: 1 << 20,
        };
        assert!(credits.is_unspent(paying));
        assert_eq!(credits.spend(paying, guard, 0, request), Some(10));
        assert!(!credits.is_unspent(paying));
        assert!(credits.is_unspent(other));
        assert!(credits.is_unspent(Que(2)), "a queue without tokens");
    }
}

//! The forced reschedule of the yielder's CPU, and its rate limit.

use super::config::{CreditFault, RateLimit};
use crate::fair::{Ent, Fair, Resched, RqId};

/// Weight of one yield in the average gap: an eighth.
const GAP_SHIFT: u32 = 3;

/// The history of a run queue's directed yields.
#[derive(Clone, Debug, Default, Hash)]
pub(crate) struct CreditState {
    /// Time in ns of the last forced reschedule, or with [`RateLimit::Quiet`] the last request.
    forced_ns: Option<u64>,
    /// Time of the last directed yield, in ns.
    yielded_ns: Option<u64>,
    /// Average time between directed yields, in ns; none before the second.
    gap_ns: Option<u64>,
    pub(super) pair: Option<DeboostedPair>,
}

/// The last yielder that was moved back, and its target.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct DeboostedPair {
    pub(super) yielder: Ent,
    pub(super) target: Ent,
    /// Time of the yield, in ns.
    pub(super) time_ns: u64,
}

/// Average after one more gap.
fn averaged(average: Option<u64>, gap: u64) -> u64 {
    match average {
        None => gap,
        Some(a) if gap >= a => a + ((gap - a) >> GAP_SHIFT),
        Some(a) => a - ((a - gap) >> GAP_SHIFT),
    }
}

/// Shortest time between two forced reschedules at an average gap between yields.
fn interval_ns(limit: RateLimit, gap: Option<u64>) -> u64 {
    match limit {
        RateLimit::Fixed { interval_ns } | RateLimit::Quiet { interval_ns } => interval_ns,
        RateLimit::Adaptive {
            interval_ns,
            gap_ns,
            min_ns,
            max_ns,
        } => match gap {
            None => min_ns,
            Some(gap) => {
                let scaled = u128::from(interval_ns) * u128::from(gap_ns) / u128::from(gap.max(1));
                u64::try_from(scaled)
                    .unwrap_or(u64::MAX)
                    .max(min_ns)
                    .min(max_ns)
            }
        },
    }
}

impl Fair {
    /// Updates the run queue's average gap by a directed yield.
    pub(super) fn record_yield(&mut self, rq: RqId) {
        let (now, credit) = (self.rqs[rq].clock, &mut self.credits[rq]);
        if let Some(last) = credit.yielded_ns {
            credit.gap_ns = Some(averaged(credit.gap_ns, now - last));
        }
        credit.yielded_ns = Some(now);
    }

    /// Whether the limit lets a reschedule be forced now, or the yielder be moved back. Records
    /// it as done.
    pub(super) fn may_force(&mut self, rq: RqId, limit: RateLimit) -> bool {
        let (now, credit) = (self.rqs[rq].clock, &mut self.credits[rq]);
        let interval = interval_ns(limit, credit.gap_ns);
        let last = credit
            .forced_ns
            .filter(|_| self.credit_fault != CreditFault::Unlimited);
        let due = last.is_none_or(|last_ns| now - last_ns >= interval);
        // Version 1 of the series renews its time stamp with each yield.
        if due || matches!(limit, RateLimit::Quiet { .. }) {
            credit.forced_ns = Some(now);
        }
        due
    }

    /// `yield_to_local_force_resched`: ends slice protection along the yielder's chain, and
    /// requests a reschedule.
    ///
    /// A shared ancestor that is itself the buddy keeps its protection. Without it `update_curr`
    /// would clear the nomination that the reschedule is to enforce.
    pub(super) fn force_resched(&mut self, rq: RqId) {
        let flat = self.is_flat(rq);
        let mut e = self.rqs[rq].curr;
        while e.is_some() {
            let q = self.pick_queue(e);
            if self.que[q].next != e {
                self.ent[e].cancel_protect_slice();
            }
            e = if flat { Ent::NONE } else { self.parent(e) };
        }
        self.resched_curr(rq, Resched::Now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_yields_force_less_often() {
        let limit = RateLimit::Adaptive {
            interval_ns: 6_000_000,
            gap_ns: 100_000,
            min_ns: 1_000_000,
            max_ns: 24_000_000,
        };
        assert_eq!(interval_ns(limit, None), 1_000_000);
        assert_eq!(interval_ns(limit, Some(100_000)), 6_000_000);
        assert_eq!(interval_ns(limit, Some(50_000)), 12_000_000);
        assert_eq!(interval_ns(limit, Some(1_000)), 24_000_000);
        assert_eq!(interval_ns(limit, Some(10_000_000)), 1_000_000);
        assert_eq!(interval_ns(RateLimit::Fixed { interval_ns: 7 }, Some(1)), 7);
    }

    #[test]
    fn gaps_average_over_eight() {
        assert_eq!(averaged(None, 800), 800);
        assert_eq!(averaged(Some(800), 1_600), 900);
        assert_eq!(averaged(Some(800), 0), 700);
    }
}

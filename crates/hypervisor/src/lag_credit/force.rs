//! The forced reschedule of the yielder's CPU, and its rate limit.

use super::config::RateLimit;
use crate::fair::{Ent, Resched, RqId, Sched};
use crate::wide;

/// Weight of one yield in the average gap: an eighth.
const GAP_SHIFT: u32 = 3;

/// Average after one more gap.
#[must_use]
pub fn averaged(average: Option<u64>, gap: u64) -> u64 {
    match average {
        None => gap,
        Some(a) if gap >= a => a + ((gap - a) >> GAP_SHIFT),
        Some(a) => a - ((a - gap) >> GAP_SHIFT),
    }
}

/// Shortest time between two forced reschedules at an average gap between yields.
#[must_use]
pub fn interval_ns(limit: RateLimit, gap: Option<u64>) -> u64 {
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
                let scaled = wide::div(u128::from(interval_ns) * u128::from(gap_ns), gap.max(1));
                u64::try_from(scaled)
                    .unwrap_or(u64::MAX)
                    .max(min_ns)
                    .min(max_ns)
            }
        },
    }
}

/// Whether the limit of once per `interval_ns` allows another at `now_ns`.
#[must_use]
pub fn is_due(last_ns: Option<u64>, interval_ns: u64, now_ns: u64) -> bool {
    last_ns.is_none_or(|last_ns| now_ns - last_ns >= interval_ns)
}

/// `yield_to_local_force_resched`: ends slice protection along the yielder's chain, and
/// requests a reschedule.
///
/// A shared ancestor that is itself the buddy keeps its protection. Without it `update_curr`
/// would clear the nomination that the reschedule is to enforce.
pub(super) fn force_resched(sched: &mut Sched, rq: RqId) {
    let flat = sched.is_flat(rq);
    let mut e = sched.rqs[rq].curr();
    while e.is_some() {
        let q = sched.tree.pick_queue(e);
        if sched.tree[q].next() != e {
            sched.tree[e].cancel_protect_slice();
        }
        e = if flat {
            Ent::NONE
        } else {
            sched.tree.parent(e)
        };
    }
    sched.resched_curr(rq, Resched::Now);
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

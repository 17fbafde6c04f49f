//! Versions 1 and 2 of the series, for comparison: the yielder is moved back instead.
//!
//! No reschedule is forced and no protection ends. The virtual time of the
//! yielder lacks its run time since the last account: `yield_to_deboost` calls `update_curr` only
//! for an entity that is not current.

use super::state::DeboostedPair;
use crate::fair::{Ent, RqId, Sched};
use crate::wide;

/// A yield back to the last yielder within this time pays less.
const REVERSE_PAIR_NS: u64 = 600_000;

/// Largest penalty, in tenths of a slice, by the tasks on the queue.
///
/// | tasks | slices |
/// |---|---|
/// | 2 | 6 |
/// | 3 | 4 |
/// | 4 to 6 | 2.5 |
/// | 7 to 8 | 2 |
/// | 9 to 12 | 1.5 |
/// | more | 1 |
fn cap_tenths(tasks: u32) -> u64 {
    match tasks {
        0..=2 => 60,
        3 => 40,
        4..=6 => 25,
        7..=8 => 20,
        9..=12 => 15,
        _ => 10,
    }
}

/// The penalty of the yielder in its virtual ns, within one slice and the cap. It is one slice
/// (`gran`) plus 1.1 times the yielder's distance behind the target (`need`). Tasks that yield to
/// each other (`reverse`) pay less.
fn penalty(gran: u64, need: u64, reverse: bool, tasks: u32) -> u64 {
    let full = gran.saturating_add(need).saturating_add(need / 10);
    let full = if reverse {
        full.min(need.max(gran))
    } else {
        full
    };
    let cap = wide::div(u128::from(gran) * u128::from(cap_tenths(tasks)), 10);
    full.min(u64::try_from(cap).unwrap_or(u64::MAX)).max(gran)
}

/// `yield_to_deboost`: moves the yielder back in the queue where its chain and the target's
/// meet. False if no other task is queued there.
pub(super) fn deboost(sched: &mut Sched, rq: RqId, p: Ent) -> bool {
    let (curr, now) = (sched.rqs[rq].curr(), sched.rqs[rq].clock());
    let (y, t) = if sched.is_flat(rq) {
        (curr, p)
    } else {
        sched.tree.find_matching_se(curr, p)
    };
    let q = sched.tree.pick_queue(y);
    let tasks = sched.tree[q].h_nr_queued();
    if tasks <= 1 {
        return false;
    }
    let lead = sched.tree[t]
        .vruntime()
        .wrapping_sub(sched.tree[y].vruntime()) as i64;
    let need = lead.max(0) as u64;
    let last = sched.credits.last_deboosted(rq);
    let last = last.filter(|pair| now - pair.time_ns <= REVERSE_PAIR_NS);
    let reverse = last.is_some_and(|pair| pair.yielder == p && pair.target == curr);
    let gran = sched.tree[y].vtime(sched.cfg.base_slice_ns);
    let paid = penalty(gran, need, reverse, tasks);
    sched.tree[y].penalize(paid);
    let pair = DeboostedPair {
        yielder: curr,
        target: p,
        time_ns: now,
    };
    sched.credits.set_deboosted(rq, pair);
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn penalty_is_between_a_slice_and_the_cap() {
        assert_eq!(penalty(1_000, 0, false, 2), 1_000);
        assert_eq!(penalty(1_000, 1_000, false, 2), 2_100);
        assert_eq!(penalty(1_000, 1_000, true, 2), 1_000);
        assert_eq!(penalty(1_000, 50_000, false, 2), 6_000);
        assert_eq!(penalty(1_000, 50_000, false, 3), 4_000);
        assert_eq!(penalty(1_000, 50_000, false, 5), 2_500);
        assert_eq!(penalty(1_000, 50_000, false, 8), 2_000);
        assert_eq!(penalty(1_000, 50_000, false, 12), 1_500);
        assert_eq!(penalty(1_000, 50_000, false, 100), 1_000);
    }
}

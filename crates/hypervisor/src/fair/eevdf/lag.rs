//! Lag: the distance of an entity from the weighted average of its queue, and eligibility.

use crate::fair::cfs_rq::{CfsRq, Running};
use crate::fair::config::Config;
use crate::fair::ids::{Ent, Que};
use crate::fair::sched::Sched;
use crate::fair::sched_entity::SchedEntity;
use crate::fair::weights::calc_delta_fair;

/// Sums over the members of a queue, which decide eligibility.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightedSum {
    /// Sum of `(vruntime - zero) * weight`.
    pub w_vruntime: i64,
    /// Sum of the weights.
    pub weight: u64,
}

impl WeightedSum {
    /// `vruntime_eligible`, for a vruntime that is `key` after `zero`:
    /// `w_vruntime >= key * weight`, exactly.
    #[inline]
    pub(in crate::fair) fn is_eligible(self, key: i64) -> bool {
        is_eligible(self.w_vruntime, self.weight, key)
    }
}

/// `vruntime_eligible`: `sum >= key * weight`, exactly.
#[inline]
pub(crate) fn is_eligible(sum: i64, weight: u64, key: i64) -> bool {
    match key.checked_mul(weight as i64) {
        Some(right) => sum >= right,
        // The kernel's product wraps here.
        None => i128::from(sum) >= i128::from(key) * i128::from(weight),
    }
}

/// `floor(a / b)` for a positive `b`.
#[inline]
pub(crate) fn floor_div(a: i64, b: i64) -> i64 {
    debug_assert!(b > 0, "a sum of weights");
    // The weight of two or four tasks of nice 0 is a power of two, and a shift floors.
    if b & (b - 1) == 0 {
        return a >> b.trailing_zeros();
    }
    // The floor of a negative quotient is the complement of that of the complement. An unsigned division is
    // no slower, and needs no branch here. Bochs 3.1 divides signed words of 64 bits wrongly.
    let sign = a >> 63;
    ((a ^ sign) as u64 / b as u64) as i64 ^ sign
}

/// The average of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Average {
    /// Average virtual runtime, weighted.
    pub(crate) vruntime: u64,
    /// Weight of all members.
    pub(crate) weight: u64,
}

/// `update_entity_lag`: stores the lag of a queued entity. True if the lag was clamped.
#[inline(always)]
pub(super) fn update_entity_lag(
    cfs_rq: &mut CfsRq,
    curr: Option<Running>,
    ent: &mut SchedEntity,
    cfg: &Config,
) -> bool {
    let mut longest = u64::from(cfs_rq.timeline().longest());
    if let Some(c) = curr {
        longest = longest.max(c.slice);
    }
    let v = cfs_rq.avg_vruntime(curr).vruntime;
    ent.update_lag(v, longest + cfg.tick_ns, cfg.features)
}

/// [`update_entity_lag`] of `e` in `q`.
pub(super) fn update_queued_lag(sched: &mut Sched, q: Que, e: Ent) -> bool {
    let mut level = sched.tree.level(q);
    let curr = level.running();
    let (cfs_rq, ent) = level.pair(e);
    update_entity_lag(cfs_rq, curr, ent, &sched.cfg)
}

/// Largest lag of an entity, in virtual ns (the bound in `entity_lag`).
#[inline]
pub(crate) fn lag_bound(sched: &Sched, q: Que, e: Ent) -> i64 {
    let real = sched.tree.max_slice(q) + sched.cfg.tick_ns;
    calc_delta_fair(real, sched.tree[e].weight()).min(i64::MAX as u64) as i64
}

/// `entity_lag` against an average of `v`.
#[inline]
pub(super) fn entity_lag(sched: &Sched, q: Que, e: Ent, v: u64) -> i64 {
    let bound_ns = sched.tree.max_slice(q) + sched.cfg.tick_ns;
    sched.tree[e].lag_against(v, bound_ns)
}

#[cfg(test)]
mod tests {
    use super::floor_div;

    #[test]
    fn floors_toward_minus_infinity() {
        assert_eq!(floor_div(7, 2), 3);
        assert_eq!(floor_div(-7, 2), -4);
        assert_eq!(floor_div(-8, 2), -4);
        assert_eq!(floor_div(0, 5), 0);
        for a in [
            i64::MIN,
            -1025,
            -1024,
            -1023,
            -1,
            0,
            1,
            1023,
            1024,
            i64::MAX,
        ] {
            for b in [1, 2, 1024, 1 << 62] {
                assert_eq!(floor_div(a, b), a.div_euclid(b), "{a} {b}");
            }
        }
    }
}

//! Lag: the distance of an entity from the weighted average of its queue, and eligibility.

use crate::fair::Fair;
use crate::fair::config::Config;
use crate::fair::entity::Entity;
use crate::fair::features::Feature;
use crate::fair::ids::{Ent, Que};
use crate::fair::queue::{Queue, Running};
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
    let q = a / b;
    if a % b < 0 { q - 1 } else { q }
}

/// The average of a queue.
#[derive(Clone, Copy)]
pub(crate) struct Average {
    /// Average virtual runtime, weighted.
    pub(crate) vruntime: u64,
    /// Weight of all members.
    pub(crate) weight: u64,
}

impl Entity {
    /// `entity_lag` against an average of `v`. `bound_ns` is the longest slice plus a tick.
    #[inline]
    pub(crate) fn lag_against(&self, v: u64, bound_ns: u64) -> i64 {
        let bound = self.vtime(bound_ns).min(i64::MAX as u64) as i64;
        (v.wrapping_sub(self.vruntime) as i64).clamp(-bound, bound)
    }
}

impl Queue {
    /// `entity_eligible`.
    #[inline]
    pub(crate) fn eligible(&self, curr: Option<Running>, vruntime: u64) -> bool {
        self.sums(curr).is_eligible(self.key(vruntime))
    }

    /// `avg_vruntime`: the average, which becomes the base.
    #[inline]
    pub(crate) fn avg_vruntime(&mut self, curr: Option<Running>) -> Average {
        let WeightedSum { w_vruntime, weight } = self.sums(curr);
        if self.sum_weight == 0 {
            // An empty tree has no sum that must move with its base.
            if let Some(curr) = curr {
                self.zero_vruntime = curr.vruntime;
            }
        } else {
            let delta = floor_div(w_vruntime, weight as i64);
            self.set_zero(self.zero_vruntime.wrapping_add(delta as u64));
        }
        Average {
            vruntime: self.zero_vruntime,
            weight,
        }
    }

    /// `update_entity_lag`: stores the lag of a queued entity. True if the lag was clamped, so that
    /// `V - vlag` differs from its vruntime.
    ///
    /// A delayed entity keeps the part of its debt that it has paid, and with `DELAY_ZERO` never
    /// exceeds zero.
    #[inline(always)]
    pub(crate) fn update_entity_lag(
        &mut self,
        curr: Option<Running>,
        ent: &mut Entity,
        cfg: &Config,
    ) -> bool {
        let mut longest = u64::from(self.timeline.longest());
        if let Some(c) = curr {
            longest = longest.max(c.slice);
        }
        let v = self.avg_vruntime(curr).vruntime;
        let mut vlag = ent.lag_against(v, longest + cfg.tick_ns);
        if ent.delayed {
            vlag = vlag.max(ent.vlag);
            if cfg.features.has(Feature::DelayZero) {
                vlag = vlag.min(0);
            }
        }
        ent.vlag = vlag;
        v.wrapping_sub(vlag as u64) != ent.vruntime
    }
}

impl Fair {
    /// `entity_eligible`.
    #[inline]
    pub(crate) fn eligible(&self, q: Que, e: Ent) -> bool {
        let queue = &self.que[q];
        queue.eligible(queue.running(&self.ent), self.ent[e].vruntime)
    }

    /// `avg_vruntime` without moving the base.
    #[inline]
    pub(crate) fn average(&self, q: Que) -> u64 {
        let queue = &self.que[q];
        let WeightedSum { w_vruntime, weight } = self.sums(q);
        if queue.sum_weight != 0 {
            let delta = floor_div(w_vruntime, weight as i64);
            return queue.zero_vruntime.wrapping_add(delta as u64);
        }
        if weight == 0 {
            queue.zero_vruntime
        } else {
            self.ent[queue.curr].vruntime
        }
    }

    /// [`Queue::avg_vruntime`].
    #[inline]
    pub(crate) fn avg_vruntime(&mut self, q: Que) -> Average {
        let queue = &mut self.que[q];
        queue.avg_vruntime(queue.running(&self.ent))
    }

    /// Largest lag of an entity, in virtual ns (the bound in `entity_lag`).
    #[inline]
    pub(crate) fn lag_bound(&self, q: Que, e: Ent) -> i64 {
        let real = self.max_slice(q) + self.cfg.tick_ns;
        calc_delta_fair(real, self.ent[e].weight).min(i64::MAX as u64) as i64
    }

    /// `entity_lag` against an average of `v`.
    #[inline]
    pub(crate) fn entity_lag(&self, q: Que, e: Ent, v: u64) -> i64 {
        self.ent[e].lag_against(v, self.max_slice(q) + self.cfg.tick_ns)
    }

    /// [`Queue::update_entity_lag`].
    pub(crate) fn update_entity_lag(&mut self, q: Que, e: Ent) -> bool {
        let queue = &mut self.que[q];
        let curr = queue.running(&self.ent);
        queue.update_entity_lag(curr, &mut self.ent[e], &self.cfg)
    }
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

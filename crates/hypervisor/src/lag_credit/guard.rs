//! The limit on what credits take from the others of a queue: a token bucket.

use super::config::Guard;
use crate::eevdf::weights::NICE_0_LOAD;

/// What may still be taken, in ns of nice-0 service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tokens {
    ns: u64,
    /// When it was last filled up, in ns; [`NEVER`] before the first credit, which finds it full.
    at: u64,
}

const NEVER: u64 = u64::MAX;

impl Default for Tokens {
    fn default() -> Self {
        Self { ns: 0, at: NEVER }
    }
}

impl Tokens {
    /// Adds what the time since the last call has brought.
    fn fill(&mut self, guard: Guard, now: u64) {
        self.ns = match self.at {
            NEVER => guard.burst_ns,
            at => {
                let earned = u128::from(now - at) * u128::from(guard.per_mille) / 1000;
                let earned = u64::try_from(earned).unwrap_or(u64::MAX);
                self.ns.saturating_add(earned).min(guard.burst_ns)
            }
        };
        self.at = now;
    }

    /// The lag to credit to, of `aim`, for an entity of weight `weight` that has `lag`, and pays.
    /// None if what is left would not make it eligible.
    pub(super) fn spend(
        &mut self,
        guard: Guard,
        now: u64,
        (lag, aim): (i64, i64),
        weight: u64,
    ) -> Option<i64> {
        self.fill(guard, now);
        let weight = i128::from(weight.max(1));
        let affordable = i128::from(self.ns) * i128::from(NICE_0_LOAD) / weight;
        let wanted = i128::from(aim) - i128::from(lag);
        let gain = wanted.min(affordable);
        let reached = i64::try_from(i128::from(lag) + gain).ok()?;
        if reached < 0 {
            return None;
        }
        // Rounded up: many small credits must not be free.
        let cost = (gain * weight + i128::from(NICE_0_LOAD) - 1) / i128::from(NICE_0_LOAD);
        self.ns = self
            .ns
            .saturating_sub(u64::try_from(cost).unwrap_or(u64::MAX));
        Some(reached)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUARD: Guard = Guard {
        per_mille: 125,
        burst_ns: 1_000,
    };

    /// Each rounding is against the credit: a part of a token is neither earned, nor lent, nor free.
    #[test]
    fn parts_of_a_token_are_not_given_away() {
        // 7 ns bring 7/8 of a token, 8 bring one.
        let mut tokens = Tokens::default();
        assert_eq!(tokens.spend(GUARD, 0, (-1_000, 0), NICE_0_LOAD), Some(0));
        assert_eq!(tokens.spend(GUARD, 7, (-1, 0), NICE_0_LOAD), None);
        assert_eq!(tokens.spend(GUARD, 15, (-1, 0), NICE_0_LOAD), Some(0));
        // 1000 tokens move three times the weight by 333, for 999 of them.
        let mut tokens = Tokens::default();
        let thrice = 3 * NICE_0_LOAD;
        assert_eq!(tokens.spend(GUARD, 0, (-334, 0), thrice), None);
        assert_eq!(tokens.spend(GUARD, 0, (-333, 0), thrice), Some(0));
        assert_eq!(tokens.ns, 1);
        // The least weight: each unit of lag costs 3/1024 of a token, and is paid with a whole one.
        let mut tokens = Tokens::default();
        for left in (0..1_000).rev() {
            assert_eq!(tokens.spend(GUARD, 0, (-1, 0), 3), Some(0));
            assert_eq!(tokens.ns, left);
        }
        assert_eq!(tokens.spend(GUARD, 0, (-1, 0), 3), None);
        // What costs a whole token exactly does not cost two.
        let mut tokens = Tokens::default();
        assert_eq!(tokens.spend(GUARD, 0, (-1, 0), NICE_0_LOAD), Some(0));
        assert_eq!(tokens.ns, 999);
    }

    #[test]
    fn credits_cost_what_they_move() {
        let mut tokens = Tokens::default();
        assert_eq!(tokens.spend(GUARD, 0, (-500, 100), NICE_0_LOAD), Some(100));
        // 400 are left: enough for eligibility, not for all of the margin.
        assert_eq!(tokens.spend(GUARD, 0, (-300, 500), NICE_0_LOAD), Some(100));
        assert_eq!(tokens.spend(GUARD, 0, (-1, 500), NICE_0_LOAD), None);
        // 80 ns bring 10, which are 5 for twice the weight.
        assert_eq!(tokens.spend(GUARD, 80, (-5, 500), 2 * NICE_0_LOAD), Some(0));
        assert_eq!(
            tokens.spend(GUARD, 1_000_000, (-1_001, 0), NICE_0_LOAD),
            None
        );
        assert_eq!(
            tokens.spend(GUARD, 1_000_000, (-1_000, 0), NICE_0_LOAD),
            Some(0)
        );
    }
}

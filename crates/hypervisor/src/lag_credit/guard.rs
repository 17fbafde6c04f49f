//! The limit on the service that credits move between entities of a queue: a token bucket.

use super::config::Guard;
use crate::fair::weights::NICE_0_LOAD;
use crate::wide;

/// The service in ns at nice 0 that credits may still move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tokens {
    ns: u64,
    /// Time of the last fill in ns; [`NEVER`] before the first credit, which finds a full bucket.
    filled_ns: u64,
}

const NEVER: u64 = u64::MAX;

impl Default for Tokens {
    fn default() -> Self {
        Self {
            ns: 0,
            filled_ns: NEVER,
        }
    }
}

/// A credit that the guard is to grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CreditRequest {
    /// The entity's lag, in virtual ns.
    pub vlag: i64,
    /// The lag that the credit is to reach, in virtual ns.
    pub target: i64,
    /// The entity's weight, which converts lag to service.
    pub weight: u64,
}

impl Tokens {
    /// The service in ns at nice 0 that credits may still move.
    #[must_use]
    pub const fn left_ns(&self) -> u64 {
        self.ns
    }

    /// A bucket with `ns` left at its last fill.
    #[cfg(test)]
    pub(super) const fn filled_at(ns: u64, filled_ns: u64) -> Self {
        Self { ns, filled_ns }
    }

    /// Adds the tokens of the time since the last call.
    fn fill(&mut self, guard: Guard, now_ns: u64) {
        self.ns = match self.filled_ns {
            NEVER => guard.burst_ns,
            filled_ns => {
                let elapsed_ns = u128::from(now_ns - filled_ns);
                let earned = wide::div(elapsed_ns * u128::from(guard.per_mille), 1000);
                let earned = u64::try_from(earned).unwrap_or(u64::MAX);
                self.ns.saturating_add(earned).min(guard.burst_ns)
            }
        };
        self.filled_ns = now_ns;
    }

    /// Pays for a credit and returns the lag that it reaches, at most the target. `None`, and
    /// nothing paid, if the remaining tokens would not make the entity eligible.
    pub fn spend(&mut self, guard: Guard, now_ns: u64, request: CreditRequest) -> Option<i64> {
        self.fill(guard, now_ns);
        debug_assert!(self.ns <= guard.burst_ns);
        let weight = request.weight.max(1);
        let affordable = wide::div(u128::from(self.ns) * u128::from(NICE_0_LOAD), weight) as i128;
        let wanted = i128::from(request.target) - i128::from(request.vlag);
        let gain = wanted.min(affordable);
        let reached = i64::try_from(i128::from(request.vlag) + gain).ok()?;
        if reached < 0 {
            return None;
        }
        // Rounded up, so that many small credits are not free.
        let service = gain * i128::from(weight) + i128::from(NICE_0_LOAD) - 1;
        let cost = wide::div_signed(service, NICE_0_LOAD);
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

    fn spend(tokens: &mut Tokens, now_ns: u64, vlag: i64, target: i64, weight: u64) -> Option<i64> {
        let request = CreditRequest {
            vlag,
            target,
            weight,
        };
        tokens.spend(GUARD, now_ns, request)
    }

    /// Each rounding is against the credit: a part of a token is neither earned, nor lent, nor free.
    #[test]
    fn parts_of_a_token_are_not_given_away() {
        // 7 ns bring 7/8 of a token, 8 bring one.
        let mut tokens = Tokens::default();
        assert_eq!(spend(&mut tokens, 0, -1_000, 0, NICE_0_LOAD), Some(0));
        assert_eq!(spend(&mut tokens, 7, -1, 0, NICE_0_LOAD), None);
        assert_eq!(spend(&mut tokens, 15, -1, 0, NICE_0_LOAD), Some(0));
        // 1000 tokens move three times the weight by 333, for 999 of them.
        let mut tokens = Tokens::default();
        let thrice = 3 * NICE_0_LOAD;
        assert_eq!(spend(&mut tokens, 0, -334, 0, thrice), None);
        assert_eq!(spend(&mut tokens, 0, -333, 0, thrice), Some(0));
        assert_eq!(tokens.ns, 1);
        // The least weight: each unit of lag costs 3/1024 of a token, and is paid with a whole one.
        let mut tokens = Tokens::default();
        for left in (0..1_000).rev() {
            assert_eq!(spend(&mut tokens, 0, -1, 0, 3), Some(0));
            assert_eq!(tokens.ns, left);
        }
        assert_eq!(spend(&mut tokens, 0, -1, 0, 3), None);
        // What costs a whole token exactly does not cost two.
        let mut tokens = Tokens::default();
        assert_eq!(spend(&mut tokens, 0, -1, 0, NICE_0_LOAD), Some(0));
        assert_eq!(tokens.ns, 999);
    }

    #[test]
    fn credits_cost_what_they_move() {
        let mut tokens = Tokens::default();
        assert_eq!(spend(&mut tokens, 0, -500, 100, NICE_0_LOAD), Some(100));
        // 400 are left: enough for eligibility, not for all of the margin.
        assert_eq!(spend(&mut tokens, 0, -300, 500, NICE_0_LOAD), Some(100));
        assert_eq!(spend(&mut tokens, 0, -1, 500, NICE_0_LOAD), None);
        // 80 ns bring 10, which are 5 for twice the weight.
        assert_eq!(spend(&mut tokens, 80, -5, 500, 2 * NICE_0_LOAD), Some(0));
        assert_eq!(spend(&mut tokens, 1_000_000, -1_001, 0, NICE_0_LOAD), None);
        assert_eq!(
            spend(&mut tokens, 1_000_000, -1_000, 0, NICE_0_LOAD),
            Some(0)
        );
    }
}

//! Other values for what a recording does not tell, so that it shows how much hangs on it.

use stealtime_simulator::script::{Step, Until};

/// Times of waits that nothing in the recording explains move by up to so much, in ns.
const UNKNOWN_NS: u64 = 500_000;
/// Timers move by up to so much, in ns: what their interrupts' latencies vary by.
const TIMER_NS: u64 = 50_000;

/// SplitMix64.
#[derive(Clone, Debug)]
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `ns` more or less by up to `most`.
    fn near(&mut self, ns: u64, most: u64) -> u64 {
        if ns == u64::MAX {
            return ns;
        }
        let width = 2 * most.min(ns) + 1;
        let by = ((u128::from(self.next()) * u128::from(width)) >> 64) as u64;
        ns.saturating_add(by).saturating_sub(width / 2)
    }
}

/// The steps with their unknowns moved by chance; seed 0 moves nothing.
pub(crate) fn jittered(steps: &[Step], seed: u64, task: i32) -> Vec<Step> {
    let mut draws = Draws(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ task as u64);
    let until = |until: Until, draws: &mut Draws| match until {
        Until::Time(at) => Until::Time(draws.near(at, UNKNOWN_NS)),
        Until::Armed(ns) => Until::Armed(draws.near(ns, TIMER_NS)),
        other => other,
    };
    let step = |&step: &Step| match step {
        Step::Sleep(end) => Step::Sleep(until(end, &mut draws)),
        Step::Halt(end) => Step::Halt(until(end, &mut draws)),
        other => other,
    };
    steps.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moves_are_bounded_and_depend_on_the_seed_alone() {
        let at = |steps: &[Step]| match steps {
            [Step::Sleep(Until::Time(at))] => *at,
            other => panic!("{other:?}"),
        };
        let steps = [Step::Sleep(Until::Time(10_000_000))];
        let mut seen = std::collections::BTreeSet::new();
        for seed in 1..200 {
            let moved = jittered(&steps, seed, 7);
            assert_eq!(moved, jittered(&steps, seed, 7));
            assert!(at(&moved).abs_diff(10_000_000) <= UNKNOWN_NS);
            seen.insert(at(&moved));
        }
        assert!(seen.len() > 150);
        assert!(at(&jittered(&[Step::Sleep(Until::Time(3))], 5, 7)) <= 6);
    }
}

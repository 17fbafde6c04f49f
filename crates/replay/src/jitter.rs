//! Other values for what a recording does not tell, so that it shows how much hangs on it.

use stealtime_simulator::script::{Step, Until};

/// Times of waits that nothing in the recording explains move by up to so much, in ns.
const UNKNOWN_NS: u64 = 500_000;
/// Timers move by up to so much, in ns: what their interrupts' latencies vary by.
const TIMER_NS: u64 = 50_000;
/// Computing takes up to one in so many more or less, and no more than [`COMPUTE_NS`], in ns: caches and what
/// a switch costs leave as much open. In sum it is nothing; but slices and waits that have fallen into step
/// with each other stay in it for ever where every replay computes to the same ns, and the recording's host
/// may as well be out of it the next time.
const ONE_IN_COMPUTE: u64 = 100;
const COMPUTE_NS: u64 = 100;

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
        Step::Alarm(end) => Step::Alarm(until(end, &mut draws)),
        Step::Run { ns, spent } => {
            let most = COMPUTE_NS.min(ns / ONE_IN_COMPUTE);
            let ns = draws.near(ns, most);
            Step::Run { ns, spent }
        }
        other => other,
    };
    steps.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use stealtime_simulator::script::Spent;

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

    #[test]
    fn computing_moves_a_little_and_in_sum_not() {
        let run = |ns| Step::Run {
            ns,
            spent: Spent::Guest,
        };
        let ns_of = |step: &Step| match step {
            Step::Run { ns, .. } => *ns,
            other => panic!("{other:?}"),
        };
        let steps = vec![run(40_000); 10_000];
        let moved: Vec<u64> = jittered(&steps, 1, 7).iter().map(ns_of).collect();
        assert!(moved.iter().all(|ns| ns.abs_diff(40_000) <= COMPUTE_NS));
        assert!(moved.iter().any(|ns| ns.abs_diff(40_000) > COMPUTE_NS / 2));
        // Four deviations of the sum of ten thousand.
        assert!(moved.iter().sum::<u64>().abs_diff(400_000_000) < 4 * 58 * 100);
        assert_eq!(ns_of(&jittered(&[run(99)], 1, 7)[0]), 99);
        assert!(ns_of(&jittered(&[run(1_000)], 1, 7)[0]).abs_diff(1_000) <= 10);
    }
}

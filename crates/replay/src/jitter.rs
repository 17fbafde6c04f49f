//! Other values for what a recording does not tell, so that it shows how much hangs on it.

use stealtime_simulator::script::{Step, Until};

/// Times of waits that nothing in the recording explains move by up to so much, in ns.
const UNKNOWN_NS: u64 = 500_000;
/// Timers move by up to so much, in ns: what their interrupts' latencies vary by.
const TIMER_NS: u64 = 50_000;
/// Computing takes up to one in so many more or less, and no more than [`COMPUTE_NS`], in ns. Caches and the
/// cost of a switch vary by as much, and the sum stays. Without it slices and waits that lock into each other
/// stay so in every replay. The recorded host may leave such a pattern at any time.
const ONE_IN_COMPUTE: u64 = 100;
const COMPUTE_NS: u64 = 100;

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Draws(pub(crate) u64);

impl Draws {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// `ns` more or less by up to `limit_ns`.
    fn near(&mut self, ns: u64, limit_ns: u64) -> u64 {
        if ns == u64::MAX {
            return ns;
        }
        let width = 2 * limit_ns.min(ns) + 1;
        let offset = ((u128::from(self.next()) * u128::from(width)) >> 64) as u64;
        ns.saturating_add(offset).saturating_sub(width / 2)
    }
}

/// The steps with their unknowns moved by chance; seed 0 moves nothing.
pub(crate) fn jittered(steps: &[Step], seed: u64, task: i32) -> Vec<Step> {
    let mut draws = Draws(seed.wrapping_mul(0x2545_f491_4f6c_dd1d) ^ task as u64);
    let moved = |end: Until, draws: &mut Draws| match end {
        Until::Time(time) => Until::Time(draws.near(time, UNKNOWN_NS)),
        Until::Called { time_ns, waker } => Until::Called {
            time_ns: draws.near(time_ns, UNKNOWN_NS),
            waker,
        },
        Until::Armed { ns, exit_us } => Until::Armed {
            ns: draws.near(ns, TIMER_NS),
            exit_us,
        },
        known => known,
    };
    let step = |&step: &Step| match step {
        Step::Sleep(end) => Step::Sleep(moved(end, &mut draws)),
        Step::Halt(end) => Step::Halt(moved(end, &mut draws)),
        Step::Alarm(end) => Step::Alarm(moved(end, &mut draws)),
        Step::Run { ns, spent } => {
            let ns = draws.near(ns, COMPUTE_NS.min(ns / ONE_IN_COMPUTE));
            Step::Run { ns, spent }
        }
        step => step,
    };
    steps.iter().map(step).collect()
}

#[cfg(test)]
mod tests {
    use stealtime_simulator::script::Spent;

    use super::*;

    #[test]
    fn moves_are_bounded_and_depend_on_the_seed_alone() {
        let slept = |steps: &[Step]| match steps {
            [Step::Sleep(Until::Time(time))] => *time,
            steps => panic!("{steps:?}"),
        };
        let steps = [Step::Sleep(Until::Time(10_000_000))];
        let mut times = std::collections::BTreeSet::new();
        for seed in 1..200 {
            let moved = jittered(&steps, seed, 7);
            assert_eq!(moved, jittered(&steps, seed, 7));
            assert!(slept(&moved).abs_diff(10_000_000) <= UNKNOWN_NS);
            times.insert(slept(&moved));
        }
        assert!(times.len() > 150);
        assert!(slept(&jittered(&[Step::Sleep(Until::Time(3))], 5, 7)) <= 6);
    }

    #[test]
    fn computing_moves_a_little_and_in_sum_not() {
        let run = |ns| Step::Run {
            ns,
            spent: Spent::Guest,
        };
        let ns_of = |step: &Step| match step {
            Step::Run { ns, .. } => *ns,
            step => panic!("{step:?}"),
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

    /// The first outputs of the reference implementation from 0.
    #[test]
    fn draws_are_those_of_splitmix64() {
        let mut draws = Draws(0);
        let first = [(); 3].map(|()| draws.next());
        let reference = [
            0xe220_a839_7b1d_cdaf,
            0x6e78_9e6a_a1b9_65f4,
            0x06c4_5d18_8009_454f,
        ];
        assert_eq!(first, reference);
    }
}

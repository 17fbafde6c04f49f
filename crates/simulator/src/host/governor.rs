//! The idle governor, as `menu` does it: how long will the CPU be idle, and which state pays.

use crate::scale::mul_div;

/// How many of the last idle times the governor remembers.
const INTERVALS: usize = 8;
/// Correction factors are in units of this.
const UNITY: u64 = 1024;
/// A correction forgets an eighth of itself with each idle time.
const DECAY: u64 = 8;
/// Longer idle times are all alike, in ns.
const MOST_NS: u64 = 50_000_000;
/// Below this the last idle times alone decide, in ns.
const SHORT_NS: u64 = 15_000;
/// Idle times that spread less are one cluster, in ns.
const CLOSE_NS: u64 = 20_000;

/// What a CPU's governor has learned.
#[derive(Clone, Debug)]
pub(crate) struct Governor {
    last_ns: [u32; INTERVALS],
    next: u8,
    /// By the magnitude of the time to the next timer: what part of it the CPU was idle.
    corrections: [u16; 6],
    bucket: u8,
    next_timer_ns: u64,
}

impl Default for Governor {
    fn default() -> Self {
        Self {
            last_ns: [0; INTERVALS],
            next: 0,
            corrections: [(UNITY * DECAY) as u16; 6],
            bucket: 0,
            next_timer_ns: u64::MAX,
        }
    }
}

/// Up to 10 us, 100 us, 1 ms, 10 ms, 100 ms, more.
fn bucket_of(ns: u64) -> u8 {
    [10_000, 100_000, 1_000_000, 10_000_000, 100_000_000]
        .iter()
        .position(|&limit| ns < limit)
        .unwrap_or(5) as u8
}

impl Governor {
    /// How long the CPU will be idle, if its next timer is due in `timer_ns`.
    pub(crate) fn predict(&mut self, timer_ns: u64) -> u64 {
        let typical = self.typical_ns();
        if typical <= SHORT_NS {
            self.next_timer_ns = u64::MAX;
            self.bucket = 5;
            return typical;
        }
        self.next_timer_ns = timer_ns;
        self.bucket = bucket_of(timer_ns);
        let factor = u64::from(self.corrections[usize::from(self.bucket)]);
        typical.min(mul_div(timer_ns, factor, UNITY * DECAY))
    }

    /// The CPU was idle for `ns`, or until the tick came that had not been stopped.
    pub(crate) fn learn(&mut self, ns: u64, by_tick: bool, tick_ns: u64) {
        // The tick says nothing about how long the CPU would have been idle without it.
        let measured = if by_tick && self.next_timer_ns > tick_ns {
            MOST_NS * 9 / 10
        } else {
            ns.min(self.next_timer_ns)
        };
        let factor = &mut self.corrections[usize::from(self.bucket)];
        let retained = u64::from(*factor) - u64::from(*factor) / DECAY;
        let known = self.next_timer_ns > 0 && measured < MOST_NS;
        let part = if known {
            mul_div(UNITY, measured, self.next_timer_ns)
        } else {
            UNITY
        };
        *factor = (retained + part).max(1) as u16;
        self.last_ns[usize::from(self.next)] = measured.min(MOST_NS) as u32;
        self.next = (self.next + 1) % INTERVALS as u8;
    }

    /// What the last idle times have in common, without those that stand out at either end
    /// (`get_typical_interval`); no bound if they have nothing in common.
    fn typical_ns(&self) -> u64 {
        let (mut above, mut below) = (0, u64::MAX);
        loop {
            let samples = self.last_ns.iter().map(|&ns| u64::from(ns));
            let usable = samples.filter(|&ns| (ns > above || above == 0) && ns < below);
            let (mut sum, mut n, mut maximum, mut least) = (0u64, 0u64, 0u64, u64::MAX);
            for ns in usable.clone() {
                (sum, n) = (sum + ns, n + 1);
                (maximum, least) = (maximum.max(ns), least.min(ns));
            }
            if maximum == 0 {
                return u64::MAX;
            }
            let mean = sum / n;
            let square = |ns: u64| u128::from(ns.abs_diff(mean)).pow(2);
            let variance = usable.map(square).sum::<u128>() / u128::from(n);
            let deviates_little = u128::from(mean).pow(2) > variance * 36;
            let close = variance <= u128::from(CLOSE_NS).pow(2);
            if (deviates_little && n * 4 >= INTERVALS as u64 * 3) || close {
                return mean;
            }
            if n * 4 <= INTERVALS as u64 * 3 {
                return if n * 2 >= INTERVALS as u64 {
                    maximum
                } else {
                    u64::MAX
                };
            }
            if mean - least > maximum - mean {
                above = least.max(1);
            } else {
                below = maximum;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steady_idle_times_are_expected_again() {
        let mut governor = Governor::default();
        for _ in 0..INTERVALS {
            governor.predict(u64::MAX);
            governor.learn(300_000, false, 4_000_000);
        }
        assert_eq!(governor.predict(3_000_000_000), 300_000);
        // One that stands out does not count.
        governor.learn(40_000_000, false, 4_000_000);
        assert_eq!(governor.predict(3_000_000_000), 300_000);
    }

    #[test]
    fn timers_that_come_true_are_believed() {
        let mut governor = Governor::default();
        for n in 1..100u64 {
            let timer = n * 450_000;
            governor.predict(timer);
            governor.learn(timer, false, 4_000_000);
        }
        let predicted = governor.predict(30_000_000);
        assert!(
            (29_000_000..=30_000_000).contains(&predicted),
            "{predicted}"
        );
        // Interrupts that come before them make it cautious.
        for n in 1..60u64 {
            governor.predict(30_000_000 + n);
            governor.learn(3_000_000 + n % 7 * 2_000_000, false, 4_000_000);
        }
        let predicted = governor.predict(30_000_000);
        assert!(predicted < 12_000_000, "{predicted}");
    }

    #[test]
    fn ticks_do_not_teach_short_times() {
        let mut governor = Governor::default();
        for _ in 0..INTERVALS {
            governor.predict(u64::MAX);
            governor.learn(50_000, false, 4_000_000);
        }
        assert!(governor.predict(u64::MAX) < 100_000);
        for _ in 0..5 {
            governor.predict(u64::MAX);
            governor.learn(4_000_000, true, 4_000_000);
        }
        assert!(governor.predict(u64::MAX) > 4_000_000);
    }
}

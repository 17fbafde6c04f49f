//! How often a CPU that runs out of tasks looks for one that waits elsewhere (`NI_RANDOM`, `NI_RATE`).
//!
//! Chance decides, for each CPU and level. A look is as likely as looks find a task. It is the likelier the
//! fewer chances a second has: looks that are seldom cost little.

use crate::script::Looks;

/// A ratio of 1024 always looks (`sd->newidle_ratio`).
const ALWAYS: u32 = 1024;
/// Linux sets the ratio anew after 512 chances, by these and by those before, which count half.
const WINDOW: u32 = 1024;
/// The first such number of a run. It doubles up to [`WINDOW`]: a host that has run with its VMs for long has
/// learned what a run of seconds cannot show otherwise.
const FIRST_WINDOW: u32 = 8;
/// The same where the host is known to have learned. Half of it counts as passed.
const KNOWN_WINDOW: u32 = 128;
/// The ratio that a kernel begins with (`sd_init`).
const FIRST_RATIO: u32 = ALWAYS / 2;
/// The shift from ns that 512 chances took to what they add to the ratio: 4 s are all of it.
const RATE_SHIFT: u32 = 22;

/// What a CPU has learned of looks at one level.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Learned {
    ratio: u32,
    /// Chances that count (`sd->newidle_call`), and how many of them would have found a task
    /// (`sd->newidle_success`).
    chances: u32,
    found: u32,
    /// When the ratio was set, in ns.
    set_ns: u64,
    window: u32,
}

impl Learned {
    /// `None` if chance decides nothing.
    pub(crate) fn new(looks: Looks) -> Option<Self> {
        let (ratio, window) = match looks {
            Looks::Each | Looks::Never => return None,
            Looks::Learned(None) => (FIRST_RATIO, FIRST_WINDOW),
            Looks::Learned(Some(permille)) => {
                let ratio = u32::from(permille.min(1000)) * ALWAYS / 1000;
                (ratio, KNOWN_WINDOW)
            }
        };
        Some(Self {
            ratio,
            chances: window / 2,
            found: window / 2 * ratio / ALWAYS,
            set_ns: 0,
            window,
        })
    }

    /// For how many chances a look counts that this draw has; `None` if it has none.
    pub(crate) const fn drawn(&self, draw: u64) -> Option<u32> {
        if self.ratio >= ALWAYS {
            return Some(1);
        }
        let weight = 1 + self.ratio;
        if draw % ALWAYS as u64 > weight as u64 {
            return None;
        }
        Some((ALWAYS + weight / 2) / weight)
    }

    /// A chance has passed. `found`: for how many chances the task counts that it found.
    pub(crate) fn pass(&mut self, found: u32, now_ns: u64) {
        self.chances += 1;
        self.found = self.found.saturating_add(found);
        if self.chances < self.window {
            return;
        }
        let parts = u64::from(WINDOW / self.window);
        let passed_ns = now_ns.saturating_sub(self.set_ns);
        let by_rate = passed_ns.saturating_mul(parts) >> RATE_SHIFT;
        let by_found = u64::from(self.found) * parts;
        self.ratio = by_rate.saturating_add(by_found).min(u64::from(ALWAYS)) as u32;
        self.set_ns = now_ns;
        if self.window < WINDOW {
            // What counts now is half of twice as many. A single task that a look found at small odds counts
            // for no more than all chances so far.
            self.found = self.found.min(self.chances);
            self.window *= 2;
        } else {
            self.chances /= 2;
            self.found /= 2;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// The ratio after 4000 chances, of which each `nth` look finds a task.
    fn learned(permille: Option<u16>, interval_ns: u64, nth: u64) -> u32 {
        let mut looks = Learned::new(Looks::Learned(permille)).expect("it learns");
        let (mut draw, mut taken) = (1u64, 0);
        for chance in 1..=4_000 {
            draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let weight = looks.drawn(draw >> 33);
            taken += u64::from(weight.is_some());
            let finds = weight.filter(|_| taken % nth == 0);
            looks.pass(finds.unwrap_or(0), chance * interval_ns);
        }
        looks.ratio
    }

    #[test]
    fn a_look_is_as_likely_as_it_finds_a_task() {
        for permille in [None, Some(0), Some(500), Some(1000)] {
            // 10,000 chances a second: the rate adds 13. From a ratio of 682 on a look counts for one chance.
            assert!(learned(permille, MS / 10, 1) >= 650);
            // A look counts for two chances, from ratios of 410 to 682 on.
            let half = learned(permille, MS / 10, 2);
            assert!((380..=700).contains(&half), "{permille:?}: {half}");
            let seldom = learned(permille, MS / 10, 16);
            assert!((20..=200).contains(&seldom), "{permille:?}: {seldom}");
        }
    }

    #[test]
    fn looks_that_are_seldom_are_all_taken() {
        // 128 chances a second, without a task.
        assert!(learned(None, 8 * MS, u64::MAX) >= 970);
        // 1024 of them.
        let often = learned(Some(1000), MS, u64::MAX);
        assert!((110..=130).contains(&often), "{often}");
    }
}

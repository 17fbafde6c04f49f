//! What of the rings is not given yet, in the order of time.

/// A record in a ring, or an event that no record has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Due {
    /// In ns.
    pub(super) time: u64,
    /// The number of the ring.
    pub(super) ring: u32,
    /// Low bits of the position in the ring, or the number of the event.
    pub(super) position: u32,
}

/// Bits of the time that one pass sorts by. The counts take 32 KiB. A round of 50 ms takes two passes.
const BITS: u32 = 13;
/// Longer times than four passes have, 52 days, come from no clock: they are sorted by comparisons.
const PASSES: u32 = 4;
/// Fewer are sorted by comparisons: the counts alone take longer.
const FEW: usize = 1000;

/// Sorts by time. Those of equal time keep their order. It takes a third of the time of comparisons.
#[derive(Debug, Default)]
pub(super) struct Sorter {
    spare: Vec<Due>,
    counts: Vec<u32>,
}

impl Sorter {
    pub(super) fn sort(&mut self, due: &mut Vec<Due>) {
        let first = due.iter().map(|due| due.time).min().unwrap_or(0);
        let last = due.iter().map(|due| due.time).max().unwrap_or(0);
        let passes = (u64::BITS - (last - first).leading_zeros()).div_ceil(BITS);
        if due.len() < FEW || passes > PASSES {
            due.sort_by_key(|due| due.time);
            return;
        }
        self.spare.clone_from(due);
        for pass in 0..passes {
            self.pass(due, |time| ((time - first) >> (pass * BITS)) as usize);
        }
    }

    /// Sorts by the low bits of a digit.
    fn pass(&mut self, due: &mut Vec<Due>, digit: impl Fn(u64) -> usize) {
        const MASK: usize = (1 << BITS) - 1;
        self.counts.clear();
        self.counts.resize(1 << BITS, 0);
        for due in &*due {
            self.counts[digit(due.time) & MASK] += 1;
        }
        let mut begin = 0;
        for count in &mut self.counts {
            begin += std::mem::replace(count, begin);
        }
        for due in &*due {
            let place = &mut self.counts[digit(due.time) & MASK];
            if let Some(slot) = self.spare.get_mut(*place as usize) {
                *slot = *due;
            }
            *place += 1;
        }
        std::mem::swap(due, &mut self.spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_comparisons() {
        let mut sorter = Sorter::default();
        let mut chance = 0x5eed_u64;
        for (len, spread) in [
            (0, 1),
            (999, 1 << 20),
            (3000, 1),
            (5000, 50_000_000),
            (4000, u64::MAX),
            (2000, 1 << 52),
        ] {
            let due = |position| {
                chance ^= chance << 13;
                chance ^= chance >> 7;
                chance ^= chance << 17;
                let time = u64::MAX / 2 + chance % spread / 2;
                let ring = position % 7;
                Due {
                    time,
                    ring,
                    position,
                }
            };
            let mut sorted: Vec<Due> = (0..len).map(due).collect();
            let mut expected = sorted.clone();
            expected.sort_by_key(|due| due.time);
            sorter.sort(&mut sorted);
            assert!(sorted == expected, "{len} in {spread}");
        }
    }
}

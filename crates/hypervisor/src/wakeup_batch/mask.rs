//! A set of CPUs in storage of the caller's choice: an array in a kernel, a `Vec` in a simulator.
//!
//! ```
//! use stealtime_hypervisor::wakeup_batch::mask::CpuMask;
//!
//! let mut cpus = CpuMask::empty([0u64; 2]);
//! assert!(cpus.insert(3) && cpus.insert(100) && !cpus.insert(128));
//! assert_eq!(cpus.iter().collect::<Vec<_>>(), [3, 100]);
//! assert!(cpus.take(3) && !cpus.take(3));
//! assert_eq!((cpus.count(), cpus.highest()), (1, Some(100)));
//! ```

/// What holds the bits, 64 CPUs a word.
pub trait MaskStorage: AsRef<[u64]> + AsMut<[u64]> + Clone {}

impl<S: AsRef<[u64]> + AsMut<[u64]> + Clone> MaskStorage for S {}

/// As many words as CPU numbers of 32 bits can name; storage beyond is not used.
const MOST_WORDS: usize = 1 << 26;

/// A set of CPU numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuMask<S>(S);

impl<S: MaskStorage> CpuMask<S> {
    /// The empty set; whatever `storage` held is cleared. It can hold 64 CPUs for each word.
    #[must_use]
    pub fn empty(mut storage: S) -> Self {
        storage.as_mut().fill(0);
        Self(storage)
    }

    /// How many CPUs it can hold.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.0.as_ref().len().saturating_mul(64)
    }

    /// Adds a CPU; false if it is beyond the storage.
    pub fn insert(&mut self, cpu: u32) -> bool {
        let word = self.0.as_mut().get_mut(cpu as usize / 64);
        word.map(|word| *word |= 1 << (cpu % 64)).is_some()
    }

    /// Removes a CPU.
    pub fn remove(&mut self, cpu: u32) {
        self.take(cpu);
    }

    /// Removes a CPU; whether it was in the set.
    pub fn take(&mut self, cpu: u32) -> bool {
        let Some(word) = self.0.as_mut().get_mut(cpu as usize / 64) else {
            return false;
        };
        let bit = 1 << (cpu % 64);
        let present = *word & bit != 0;
        *word &= !bit;
        present
    }

    /// Whether a CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        let word = self.0.as_ref().get(cpu as usize / 64);
        word.is_some_and(|word| word >> (cpu % 64) & 1 != 0)
    }

    /// Whether no CPU is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.as_ref().iter().all(|&word| word == 0)
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.0.as_ref().iter().map(|word| word.count_ones()).sum()
    }

    /// The highest CPU in the set.
    #[must_use]
    pub fn highest(&self) -> Option<u32> {
        let words = self.0.as_ref().iter().take(MOST_WORDS);
        let words = words.zip((0u32..).step_by(64));
        let last = words.filter(|&(&word, _)| word != 0).last();
        last.map(|(word, first)| first + word.ilog2())
    }

    /// Removes all CPUs.
    pub fn clear(&mut self) {
        self.0.as_mut().fill(0);
    }

    /// The CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.0.as_ref().iter().take(MOST_WORDS);
        let words = words.zip((0u32..).step_by(64));
        words.flat_map(|(&word, first)| Bits(word).map(move |bit| first + bit))
    }

    /// Keeps the CPUs for which `keep` holds, asked in ascending order.
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let words = self.0.as_mut().iter_mut().take(MOST_WORDS);
        for (word, first) in words.zip((0u32..).step_by(64)) {
            for bit in Bits(*word) {
                if !keep(first + bit) {
                    *word &= !(1 << bit);
                }
            }
        }
    }
}

/// Takes CPUs out of a set. Most of them share a word, which is kept in a register: a removal does
/// not wait for the store of the last one.
pub(super) struct Taking<'a> {
    words: &'a mut [u64],
    index: usize,
    word: u64,
}

impl<'a> Taking<'a> {
    pub(super) fn from<S: MaskStorage>(mask: &'a mut CpuMask<S>) -> Self {
        let words = mask.0.as_mut();
        Self {
            word: words.first().copied().unwrap_or(0),
            index: 0,
            words,
        }
    }

    fn put_back(&mut self) {
        if let Some(word) = self.words.get_mut(self.index) {
            *word = self.word;
        }
    }

    fn turn_to(&mut self, index: usize) {
        if index != self.index {
            self.put_back();
            self.index = index;
            self.word = self.words.get(index).copied().unwrap_or(0);
        }
    }

    /// The lowest CPU of the set that is not below `cpu`.
    pub(super) fn next_from(&mut self, cpu: u32) -> Option<u32> {
        let mut index = cpu as usize / 64;
        let mut wanted = u64::MAX << (cpu % 64);
        while index < self.words.len().min(MOST_WORDS) {
            self.turn_to(index);
            let word = self.word & wanted;
            if word != 0 {
                return Some((index * 64) as u32 + word.trailing_zeros());
            }
            (index, wanted) = (index + 1, u64::MAX);
        }
        None
    }

    /// Removes a CPU; whether it was in the set.
    pub(super) fn take(&mut self, cpu: u32) -> bool {
        self.turn_to(cpu as usize / 64);
        let bit = 1 << (cpu % 64);
        let present = self.word & bit != 0;
        self.word &= !bit;
        present
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        self.put_back();
    }
}

/// The set bits of a word, ascending.
struct Bits(u64);

impl Iterator for Bits {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        if self.0 == 0 {
            return None;
        }
        let bit = self.0.trailing_zeros();
        self.0 &= self.0 - 1;
        Some(bit)
    }
}

#[cfg(test)]
mod tests {
    extern crate std;

    use proptest::prelude::*;
    use std::collections::BTreeSet;
    use std::vec;
    use std::vec::Vec;

    use super::*;

    proptest! {
        /// Each operation does as that of a sorted set, of numbers up to the storage.
        #[test]
        fn a_mask_is_a_set(steps in prop::collection::vec((0u8..6, 0u32..200), 0..150)) {
            let mut mask = CpuMask::empty(vec![u64::MAX; 3]);
            let mut set = BTreeSet::new();
            prop_assert_eq!(mask.capacity(), 192);
            for (step, cpu) in steps {
                match step {
                    0..3 => {
                        prop_assert_eq!(mask.insert(cpu), cpu < 192);
                        if cpu < 192 {
                            set.insert(cpu);
                        }
                    }
                    3 => prop_assert_eq!(mask.take(cpu), set.remove(&cpu)),
                    4 => {
                        mask.remove(cpu);
                        set.remove(&cpu);
                    }
                    _ => {
                        let mut asked = Vec::new();
                        let all: Vec<u32> = set.iter().copied().collect();
                        let keeps = |other: u32| other % 7 != cpu % 7;
                        mask.retain(|other| {
                            asked.push(other);
                            keeps(other)
                        });
                        set.retain(|other| keeps(*other));
                        prop_assert_eq!(asked, all);
                    }
                }
                prop_assert_eq!(mask.contains(cpu), set.contains(&cpu));
                prop_assert!(mask.iter().eq(set.iter().copied()));
                prop_assert_eq!(mask.count() as usize, set.len());
                prop_assert_eq!(mask.highest(), set.last().copied());
                prop_assert_eq!(mask.is_empty(), set.is_empty());
            }
            mask.clear();
            prop_assert!(mask.is_empty());
        }

        /// What is taken out by way of a word in a register is gone from the set, and nothing else.
        #[test]
        fn taking_leaves_the_rest(
            members in prop::collection::btree_set(0u32..192, 0..60),
            steps in prop::collection::vec((any::<bool>(), 0u32..200), 0..60),
        ) {
            let mut mask = CpuMask::empty([0; 3]);
            let mut set = members.clone();
            for cpu in members {
                mask.insert(cpu);
            }
            let mut taking = Taking::from(&mut mask);
            for (takes, cpu) in steps {
                if takes {
                    prop_assert_eq!(taking.take(cpu), set.remove(&cpu));
                } else {
                    prop_assert_eq!(taking.next_from(cpu), set.range(cpu..).next().copied());
                }
            }
            drop(taking);
            prop_assert!(mask.iter().eq(set));
        }
    }
}

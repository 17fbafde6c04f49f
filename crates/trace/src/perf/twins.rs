//! One tracepoint recorded by two events.
//!
//! `perf kvm stat record -e kvm:kvm_msr` opens `kvm_msr` twice. Then each passage of the kernel
//! through the tracepoint gives two samples. It has happened once.

use stealtime_events::CpuId;

/// Passages of a CPU that are remembered: as many as a [`u16`] has bits. The samples of one passage
/// stand next to each other, except for samples of interrupts between them.
const MEMORY: usize = 16;

/// Finds samples that repeat another event's sample of the same passage. Samples of one CPU must
/// come in the order of time.
#[derive(Debug)]
pub(super) struct Twins {
    /// For each attribute: its tracepoint, if another attribute has the same.
    shared: Vec<Option<u16>>,
    /// By CPU.
    recent: Vec<Recent>,
    /// Samples that repeat another.
    pub(super) repeated: u64,
}

/// The latest passages of a CPU, in a ring.
#[derive(Debug, Clone, Default)]
struct Recent {
    /// A mark of each passage.
    marks: [u64; MEMORY],
    /// The attributes with a sample of it.
    attrs: [Vec<u32>; MEMORY],
    /// The index of the oldest.
    oldest: usize,
}

impl Twins {
    /// For attributes with these tracepoints.
    pub(super) fn new(tracepoints: &[Option<u16>]) -> Self {
        let shared = |tracepoint: &Option<u16>| {
            let equal = tracepoints.iter().filter(|peer| *peer == tracepoint);
            tracepoint.filter(|_| equal.count() > 1)
        };
        let shared = if has_twice(tracepoints) {
            tracepoints.iter().map(shared).collect()
        } else {
            Vec::new()
        };
        Self {
            shared,
            recent: Vec::new(),
            repeated: 0,
        }
    }

    /// The tracepoints that are recorded more than once, in ascending order.
    pub(super) fn tracepoints(&self) -> Vec<u16> {
        let mut shared: Vec<u16> = self.shared.iter().copied().flatten().collect();
        shared.sort_unstable();
        shared.dedup();
        shared
    }

    /// The tracepoint, if another attribute has a sample of the same passage.
    #[inline]
    pub(super) fn repeats(&mut self, attr: usize, cpu: CpuId, raw: &[u8]) -> Option<u16> {
        let tracepoint = self.shared.get(attr).copied().flatten()?;
        let attr = u32::try_from(attr).ok()?;
        let number = usize::from(cpu.0);
        if self.recent.len() <= number {
            self.recent.resize(number + 1, Recent::default());
        }
        let recent = self.recent.get_mut(number)?;
        let is_repeated = recent.note(mark(tracepoint, raw), attr);
        self.repeated += u64::from(is_repeated);
        is_repeated.then_some(tracepoint)
    }
}

impl Recent {
    /// Notes a passage. Returns whether it is known from another attribute, but not from this one.
    fn note(&mut self, mark: u64, attr: u32) -> bool {
        // All marks are compared, without a branch for each: most often none is equal. A bit for each
        // equal one, from the oldest to the newest.
        let newest_first = self.marks.iter().rev();
        let bits = newest_first.fold(0_u16, |bits, known| bits << 1 | u16::from(*known == mark));
        let mut equal = bits.rotate_right(self.oldest as u32);
        while equal != 0 {
            let index = (self.oldest + equal.trailing_zeros() as usize) % MEMORY;
            if let Some(attrs) = self.attrs.get_mut(index)
                && !attrs.is_empty()
                && !attrs.contains(&attr)
            {
                attrs.push(attr);
                return true;
            }
            equal &= equal - 1;
        }
        let index = self.oldest;
        self.oldest = (index + 1) % MEMORY;
        if let (Some(known), Some(attrs)) = (self.marks.get_mut(index), self.attrs.get_mut(index)) {
            *known = mark;
            attrs.clear();
            attrs.push(attr);
        }
        false
    }
}

/// A hash of a tracepoint's whole record. Passages with one hash count as one; about 1 in 2^60 pairs
/// of different records collide.
fn mark(tracepoint: u16, raw: &[u8]) -> u64 {
    /// An odd number with bits in no pattern (2^64 divided by the golden ratio).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = u64::from(tracepoint) << 48 ^ raw.len() as u64;
    let (words, rest) = raw.as_chunks();
    let mut last = [0; 8];
    for (byte, value) in last.iter_mut().zip(rest) {
        *byte = *value;
    }
    let mix = |sum: u64, word: &[u8; 8]| {
        let product = u128::from(sum ^ u64::from_le_bytes(*word)) * u128::from(SPREAD);
        ((product >> 64) as u64 ^ product as u64)
            .rotate_left(23)
            .wrapping_add(SPREAD)
    };
    mix(words.iter().fold(start, mix), &last)
}

/// Whether two attributes have one tracepoint.
fn has_twice(tracepoints: &[Option<u16>]) -> bool {
    let mut sorted: Vec<u16> = tracepoints.iter().copied().flatten().collect();
    sorted.sort_unstable();
    sorted
        .windows(2)
        .any(|pair| matches!(pair, [a, b] if a == b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_passage_counts_once() {
        let mut twins = Twins::new(&[Some(5), Some(6), Some(5), None, None]);
        assert_eq!(twins.tracepoints(), [5]);
        let mut repeats = |attr, cpu| twins.repeats(attr, CpuId(cpu), b"x");
        assert_eq!(repeats(0, 1), None);
        assert_eq!(repeats(2, 0), None, "another CPU");
        assert_eq!(repeats(2, 1), Some(5));
        assert_eq!(repeats(0, 1), None, "the same again is another passage");
        assert_eq!(repeats(2, 1), Some(5));
        assert_eq!([repeats(1, 1), repeats(1, 1)], [None; 2]);
        assert_eq!([repeats(3, 1), repeats(4, 1)], [None; 2]);
        assert_eq!(twins.repeated, 2);
    }

    #[test]
    fn a_passage_is_forgotten_after_as_many_others_as_are_kept() {
        let mut twins = Twins::new(&[Some(5), Some(5)]);
        let passages = |count: u8| (0..count).map(|at| [at; 40]);
        for raw in passages(100) {
            assert_eq!(twins.repeats(0, CpuId(0), &raw), None);
        }
        let again: Vec<_> = passages(100)
            .map(|raw| twins.repeats(1, CpuId(0), &raw).is_some())
            .collect();
        // Each one that was forgotten makes another be forgotten.
        assert!(again.iter().all(|found| !found));
        assert_eq!(twins.repeats(0, CpuId(0), &[99; 40]), Some(5));
    }

    #[test]
    fn other_cpus_make_nothing_be_forgotten() {
        let mut twins = Twins::new(&[Some(5), Some(5)]);
        assert_eq!(twins.repeats(0, CpuId(1), b"first"), None);
        for raw in 0..100_u64 {
            assert_eq!(twins.repeats(0, CpuId(0), &raw.to_le_bytes()), None);
        }
        assert_eq!(twins.repeats(1, CpuId(1), b"first"), Some(5));
    }

    #[test]
    fn every_byte_of_a_record_counts() {
        let raw: Vec<u8> = (0..45).collect();
        for at in 0..raw.len() {
            let mut other = raw.clone();
            other[at] ^= 0x10;
            assert_ne!(mark(5, &raw), mark(5, &other), "{at}");
            assert_ne!(mark(5, &raw), mark(5, &raw[..at]), "{at}");
        }
        assert_ne!(mark(5, &raw), mark(6, &raw));
    }

    #[test]
    fn without_twins_nothing_is_kept() {
        let mut twins = Twins::new(&[Some(5), Some(6), None]);
        assert_eq!(twins.repeats(0, CpuId(0), b"x"), None);
        assert!(twins.recent.is_empty() && twins.tracepoints().is_empty());
    }
}

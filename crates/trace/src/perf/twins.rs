//! One tracepoint recorded by two events.
//!
//! `perf kvm stat record -e kvm:kvm_msr` opens `kvm_msr` twice, and then each time the kernel
//! passes it there are two samples. It has happened once.

use stealtime_events::CpuId;

/// How many records are compared with: those of all CPUs that may still wait for their twin.
const MEMORY: usize = 64;

/// Finds samples that repeat another event's sample of the same passage.
#[derive(Debug)]
pub(super) struct Twins {
    /// For each attribute: its tracepoint, if another attribute has the same.
    shared: Vec<Option<u16>>,
    /// A ring: `oldest` is the place of the oldest passage once all places are taken.
    recent: Vec<Passage>,
    oldest: usize,
    /// A mark of each passage, to be compared before the passages themselves.
    marks: [u32; MEMORY],
    /// How many were found.
    pub(super) repeated: u64,
}

#[derive(Debug, Default)]
struct Passage {
    tracepoint: u16,
    cpu: CpuId,
    raw: Vec<u8>,
    /// The attributes that have told of it.
    seen: Vec<usize>,
}

impl Twins {
    /// For attributes with these tracepoints.
    pub(super) fn new(tracepoints: &[Option<u16>]) -> Self {
        let shared = |tracepoint: &Option<u16>| {
            let of = tracepoints
                .iter()
                .filter(|other| *other == tracepoint)
                .count();
            tracepoint.filter(|_| of > 1)
        };
        let any = has_twice(tracepoints);
        let shared = if any {
            tracepoints.iter().map(shared).collect()
        } else {
            Vec::new()
        };
        Self {
            shared,
            recent: Vec::new(),
            oldest: 0,
            marks: [0; MEMORY],
            repeated: 0,
        }
    }

    /// The tracepoints that are recorded more than once, in ascending order.
    pub(super) fn tracepoints(&self) -> Vec<u16> {
        let mut all: Vec<u16> = self.shared.iter().copied().flatten().collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// The tracepoint, if this sample tells of what another attribute's sample told already.
    pub(super) fn repeats(&mut self, attr: usize, cpu: CpuId, raw: &[u8]) -> Option<u16> {
        let tracepoint = self.shared.get(attr).copied().flatten()?;
        let mark = mark(tracepoint, cpu, raw);
        // All marks are compared, without a branch for each: most often none is the same.
        let any = self.marks.iter().fold(false, |any, it| any | (*it == mark));
        if any && self.told_before(mark, (tracepoint, cpu, raw), attr) {
            self.repeated += 1;
            return Some(tracepoint);
        }
        self.remember(mark, (tracepoint, cpu, raw), attr);
        None
    }

    /// Whether a passage is known, though not from this attribute; then from now on it is.
    fn told_before(&mut self, mark: u32, (tracepoint, cpu, raw): Said<'_>, attr: usize) -> bool {
        // From the oldest to the newest.
        for place in (self.oldest..MEMORY).chain(0..self.oldest) {
            if self.marks.get(place) != Some(&mark) {
                continue;
            }
            let same = self.recent.get_mut(place).filter(|it| {
                it.tracepoint == tracepoint
                    && it.cpu == cpu
                    && it.raw == raw
                    && !it.seen.contains(&attr)
            });
            if let Some(passage) = same {
                passage.seen.push(attr);
                return true;
            }
        }
        false
    }

    fn remember(&mut self, mark: u32, (tracepoint, cpu, raw): Said<'_>, attr: usize) {
        let place = if self.recent.len() < MEMORY {
            self.recent.push(Passage::default());
            self.recent.len() - 1
        } else {
            let place = self.oldest;
            self.oldest = (place + 1) % MEMORY;
            place
        };
        if let (Some(passage), Some(known)) =
            (self.recent.get_mut(place), self.marks.get_mut(place))
        {
            *known = mark;
            (passage.tracepoint, passage.cpu) = (tracepoint, cpu);
            passage.raw.clear();
            passage.raw.extend_from_slice(raw);
            passage.seen.clear();
            passage.seen.push(attr);
        }
    }
}

/// A sample's tracepoint, CPU and record.
type Said<'a> = (u16, CpuId, &'a [u8]);

/// A mark that same passages share and different ones seldom do.
fn mark(tracepoint: u16, cpu: CpuId, raw: &[u8]) -> u32 {
    /// An odd number with bits in no pattern (2^64 divided by the golden ratio).
    const SPREAD: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = u64::from(tracepoint) << 48 ^ u64::from(cpu.0) << 32 ^ raw.len() as u64;
    let words = raw.as_chunks().0.iter().take(8);
    let all = words.fold(start, |sum, word| {
        (sum.rotate_left(23) ^ u64::from_le_bytes(*word)).wrapping_mul(SPREAD)
    });
    (all >> 32) as u32
}

/// Whether any tracepoint is there twice.
fn has_twice(tracepoints: &[Option<u16>]) -> bool {
    let mut all: Vec<u16> = tracepoints.iter().copied().flatten().collect();
    all.sort_unstable();
    all.windows(2).any(|pair| matches!(pair, [a, b] if a == b))
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
        let told = |count: u8| (0..count).map(|at| [at; 40]);
        for raw in told(100) {
            assert_eq!(twins.repeats(0, CpuId(0), &raw), None);
        }
        let again: Vec<_> = told(100)
            .map(|raw| twins.repeats(1, CpuId(0), &raw).is_some())
            .collect();
        // Each one that was forgotten makes another be forgotten.
        assert!(again.iter().all(|found| !found));
        let newest = [99; 40];
        assert_eq!(twins.repeats(0, CpuId(0), &newest), Some(5));
        assert_eq!(twins.recent.len(), MEMORY);
    }

    #[test]
    fn without_twins_nothing_is_kept() {
        let mut twins = Twins::new(&[Some(5), Some(6), None]);
        assert_eq!(twins.repeats(0, CpuId(0), b"x"), None);
        assert!(twins.recent.is_empty() && twins.tracepoints().is_empty());
    }
}

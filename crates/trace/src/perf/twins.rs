//! One tracepoint recorded by two events.
//!
//! `perf kvm stat record -e kvm:kvm_msr` opens `kvm_msr` twice, and then each time the kernel
//! passes it there are two samples. It has happened once.

use std::collections::VecDeque;

use stealtime_events::CpuId;

/// How many records are compared with: those of all CPUs that may still wait for their twin.
const MEMORY: usize = 64;

/// Finds samples that repeat another event's sample of the same passage.
#[derive(Debug, Default)]
pub(super) struct Twins {
    /// For each attribute: its tracepoint, if another attribute has the same.
    shared: Vec<Option<u16>>,
    recent: VecDeque<Passage>,
    /// How many were found.
    pub(super) repeated: u64,
}

#[derive(Debug)]
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
            ..Self::default()
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
        let same = self.recent.iter_mut().find(|it| {
            it.tracepoint == tracepoint
                && it.cpu == cpu
                && it.raw == raw
                && !it.seen.contains(&attr)
        });
        if let Some(passage) = same {
            passage.seen.push(attr);
            self.repeated += 1;
            return Some(tracepoint);
        }
        if self.recent.len() >= MEMORY {
            self.recent.pop_front();
        }
        self.recent.push_back(Passage {
            tracepoint,
            cpu,
            raw: raw.to_vec(),
            seen: vec![attr],
        });
        None
    }
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
    fn without_twins_nothing_is_kept() {
        let mut twins = Twins::new(&[Some(5), Some(6), None]);
        assert_eq!(twins.repeats(0, CpuId(0), b"x"), None);
        assert!(twins.recent.is_empty() && twins.tracepoints().is_empty());
    }
}

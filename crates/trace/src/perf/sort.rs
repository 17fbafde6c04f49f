//! Records into the order of time.
//!
//! perf writes what each CPU's buffer holds, CPU after CPU, and then `PERF_RECORD_FINISHED_ROUND`:
//! what comes after the next such record is later than all that came before this one. So records
//! are held back for one round, in chunks that are used again. A recording whose rounds are
//! missing or larger than [`MAX_CHUNKS`] is sorted in windows of that size.

use std::collections::VecDeque;

/// Bytes of a chunk.
const CHUNK: usize = 1 << 20;

/// How many chunks are held at the most.
const MAX_CHUNKS: usize = 96;

/// How many chunks are kept to be used again.
const MAX_FREE: usize = 32;

/// One record that is held.
#[derive(Debug, Clone, Copy)]
pub(super) struct Held {
    /// Its time in ns; 0 for what perf made up at the start of the recording.
    pub(super) time_ns: u64,
    chunk: u32,
    start: u32,
    len: u32,
    /// The attribute's index, plus one; 0: not known.
    attr: u32,
}

impl Held {
    /// The index of the record's attribute.
    pub(super) fn attr(self) -> Option<usize> {
        self.attr.checked_sub(1).map(|index| index as usize)
    }
}

struct Chunk {
    data: Vec<u8>,
    live: u32,
}

/// Holds records back until they can be given in the order of time.
#[derive(Default)]
pub(super) struct Sorter {
    chunks: VecDeque<Chunk>,
    /// The number of the chunk at the front.
    first: u32,
    free: Vec<Vec<u8>>,
    held: Vec<Held>,
    /// Of `held`: given so far, and in order and ready to be given.
    given: usize,
    ready: usize,
    /// The latest time so far, and that at the end of the last round.
    latest_ns: u64,
    round_ns: u64,
    /// The earliest time that is none of perf's own making.
    pub(super) origin_ns: u64,
}

impl Sorter {
    /// Takes a record. Gives `false` if there is no more room: then [`Sorter::window`] makes some.
    pub(super) fn push(&mut self, record: &[u8], time_ns: u64, attr: Option<usize>) -> bool {
        let room = self
            .chunks
            .back()
            .map_or(0, |chunk| CHUNK - chunk.data.len().min(CHUNK));
        if room < record.len() {
            let data = self.free.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
            self.chunks.push_back(Chunk { data, live: 0 });
        }
        let number = self
            .first
            .wrapping_add(self.chunks.len() as u32)
            .wrapping_sub(1);
        if let Some(chunk) = self.chunks.back_mut() {
            let start = chunk.data.len() as u32;
            chunk.data.extend_from_slice(record);
            chunk.live += 1;
            let attr = attr.map_or(0, |index| index as u32 + 1);
            let len = record.len() as u32;
            self.held.push(Held {
                time_ns,
                chunk: number,
                start,
                len,
                attr,
            });
        }
        self.latest_ns = self.latest_ns.max(time_ns);
        self.chunks.len() < MAX_CHUNKS
    }

    /// A round has ended.
    pub(super) fn round(&mut self) {
        let limit = self.round_ns;
        self.round_ns = self.latest_ns;
        if limit > 0 {
            self.sort();
            let later = self.held.partition_point(|held| held.time_ns <= limit);
            self.ready = later;
        }
    }

    /// The first half of what is held is given, though more that belongs there may come.
    pub(super) fn window(&mut self) {
        self.sort();
        self.ready = self.held.len().div_ceil(2);
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self) {
        self.sort();
        self.ready = self.held.len();
    }

    fn sort(&mut self) {
        self.held.drain(..self.given.min(self.held.len()));
        self.given = 0;
        // Stable: what perf has written first is given first. And made of a few runs.
        self.held.sort_by_key(|held| held.time_ns);
        if self.origin_ns == 0 {
            let made = self.held.partition_point(|held| held.time_ns == 0);
            self.origin_ns = self.held.get(made).map_or(0, |held| held.time_ns);
        }
    }

    /// The next record that can be given. It must be given back to [`Sorter::release`].
    pub(super) fn pop(&mut self) -> Option<Held> {
        if self.given >= self.ready {
            return None;
        }
        let held = *self.held.get(self.given)?;
        self.given += 1;
        Some(held)
    }

    /// The bytes of a record.
    pub(super) fn bytes(&self, held: Held) -> &[u8] {
        let index = held.chunk.wrapping_sub(self.first) as usize;
        let chunk = self.chunks.get(index);
        let from = chunk.and_then(|chunk| chunk.data.get(held.start as usize..));
        from.and_then(|from| from.get(..held.len as usize))
            .unwrap_or_default()
    }

    /// The record's bytes are needed no more.
    pub(super) fn release(&mut self, held: Held) {
        let index = held.chunk.wrapping_sub(self.first) as usize;
        if let Some(chunk) = self.chunks.get_mut(index) {
            chunk.live = chunk.live.saturating_sub(1);
        }
        while self.chunks.len() > 1 && self.chunks.front().is_some_and(|chunk| chunk.live == 0) {
            if let Some(mut chunk) = self.chunks.pop_front() {
                chunk.data.clear();
                if self.free.len() < MAX_FREE {
                    self.free.push(chunk.data);
                }
            }
            self.first = self.first.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(sorter: &mut Sorter) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(held) = sorter.pop() {
            assert_eq!(sorter.bytes(held), held.time_ns.to_le_bytes());
            times.push(held.time_ns);
            sorter.release(held);
        }
        times
    }

    fn push(sorter: &mut Sorter, times: &[u64]) {
        for time in times {
            assert!(sorter.push(&time.to_le_bytes(), *time, Some(0)));
        }
    }

    #[test]
    fn rounds_hold_back_what_may_be_overtaken() {
        let mut sorter = Sorter::default();
        push(&mut sorter, &[10, 30, 20, 25]);
        sorter.round();
        assert_eq!(drain(&mut sorter), []);
        push(&mut sorter, &[40, 29]);
        sorter.round();
        assert_eq!(drain(&mut sorter), [10, 20, 25, 29, 30]);
        push(&mut sorter, &[35]);
        sorter.end();
        assert_eq!(drain(&mut sorter), [35, 40]);
        assert_eq!(sorter.origin_ns, 10);
    }

    #[test]
    fn memory_is_bounded_without_rounds() {
        let mut sorter = Sorter::default();
        let record = vec![7; 60_000];
        let mut given = 0;
        for time in 1..10_000 {
            if !sorter.push(&record, time, None) {
                sorter.window();
                while let Some(held) = sorter.pop() {
                    given += 1;
                    assert_eq!(held.time_ns, given);
                    sorter.release(held);
                }
            }
            assert!(sorter.chunks.len() <= MAX_CHUNKS);
        }
        assert!(given > 5_000, "{given}");
    }
}

//! Records into the order of time.
//!
//! perf writes what each CPU's buffer holds, CPU after CPU, and then `PERF_RECORD_FINISHED_ROUND`:
//! what comes after the next such record is later than all that came before this one. So records
//! are held back for one round, in the buffers that they were read into (or, if they were packed,
//! in chunks that they are copied to), which are used again. A recording whose rounds are missing
//! or larger than [`MAX_CHUNKS`] is sorted in windows of that size.

use super::records::BUFFER;

/// Bytes of a chunk.
const CHUNK: usize = BUFFER;

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

#[derive(Default)]
struct Chunk {
    /// Empty as long as it is still being read.
    data: Vec<u8>,
    /// Records that are held.
    live: u32,
}

/// Holds records back until they can be given in the order of time.
pub(super) struct Sorter {
    chunks: Vec<Chunk>,
    /// Those of `chunks` that are not in use.
    unused: Vec<u32>,
    /// The chunk that stands for the buffer that is being read, and the one being copied to.
    reading: u32,
    filling: Option<u32>,
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

impl Default for Sorter {
    fn default() -> Self {
        Self {
            chunks: vec![Chunk::default()],
            unused: Vec::new(),
            reading: 0,
            filling: None,
            free: Vec::new(),
            held: Vec::new(),
            given: 0,
            ready: 0,
            latest_ns: 0,
            round_ns: 0,
            origin_ns: 0,
        }
    }
}

impl Sorter {
    /// Takes a record by copying it. Gives `false` if there is no more room: then
    /// [`Sorter::window`] makes some.
    pub(super) fn push(&mut self, record: &[u8], time_ns: u64, attr: Option<usize>) -> bool {
        let room = |chunk: &Chunk| CHUNK.saturating_sub(chunk.data.len()) >= record.len();
        let filling = self.filling.and_then(|at| self.chunks.get(at as usize));
        if !filling.is_some_and(room) {
            self.seal();
            let mut data = self.spare().unwrap_or_else(|| Vec::with_capacity(CHUNK));
            data.clear();
            self.filling = Some(self.number(data));
        }
        let number = self.filling.unwrap_or(self.reading);
        let chunk = self.chunks.get_mut(number as usize);
        let start = chunk.map_or(0, |chunk| {
            let start = chunk.data.len();
            chunk.data.extend_from_slice(record);
            start
        });
        self.hold_in(number, (start, record.len()), time_ns, attr)
    }

    /// Takes a record that stays where it is in the buffer that is being read: start and length.
    /// What it gives is as with [`Self::push`].
    #[inline]
    pub(super) fn hold(
        &mut self,
        place: (usize, usize),
        time_ns: u64,
        attr: Option<usize>,
    ) -> bool {
        self.hold_in(self.reading, place, time_ns, attr)
    }

    #[inline]
    fn hold_in(
        &mut self,
        number: u32,
        (start, len): (usize, usize),
        time_ns: u64,
        attr: Option<usize>,
    ) -> bool {
        if let Some(chunk) = self.chunks.get_mut(number as usize) {
            chunk.live += 1;
        }
        self.held.push(Held {
            time_ns,
            chunk: number,
            start: start as u32,
            len: len as u32,
            attr: attr.map_or(0, |index| index as u32 + 1),
        });
        self.latest_ns = self.latest_ns.max(time_ns);
        self.chunks.len() - self.unused.len() < MAX_CHUNKS
    }

    /// A number for a chunk with these data.
    fn number(&mut self, data: Vec<u8>) -> u32 {
        let chunk = Chunk { data, live: 0 };
        if let Some(number) = self.unused.pop()
            && let Some(place) = self.chunks.get_mut(number as usize)
        {
            *place = chunk;
            return number;
        }
        self.chunks.push(chunk);
        self.chunks.len() as u32 - 1
    }

    /// The buffer that was being read is full: from now on another is read.
    pub(super) fn full(&mut self, data: Vec<u8>) {
        let number = self.reading;
        if let Some(chunk) = self.chunks.get_mut(number as usize) {
            chunk.data = data;
        }
        self.reading = self.number(Vec::new());
        self.reuse(number);
    }

    /// A buffer that is needed no more.
    pub(super) fn spare(&mut self) -> Option<Vec<u8>> {
        self.free.pop()
    }

    /// Nothing more is copied to the chunk.
    fn seal(&mut self) {
        if let Some(number) = self.filling.take() {
            self.reuse(number);
        }
    }

    /// Takes a chunk back in which nothing is held any more.
    fn reuse(&mut self, number: u32) {
        if number == self.reading || self.filling == Some(number) {
            return;
        }
        let chunk = self.chunks.get_mut(number as usize);
        if let Some(chunk) = chunk.filter(|chunk| chunk.live == 0) {
            let data = std::mem::take(&mut chunk.data);
            if self.free.len() < MAX_FREE {
                self.free.push(data);
            }
            self.unused.push(number);
        }
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

    /// Whether there is a record that can be given.
    pub(super) fn is_ready(&self) -> bool {
        self.given < self.ready
    }

    /// The bytes of a record; `current` is the buffer that is being read.
    #[inline]
    pub(super) fn bytes<'a>(&'a self, held: Held, current: &'a [u8]) -> &'a [u8] {
        let data = if held.chunk == self.reading {
            current
        } else {
            let chunk = self.chunks.get(held.chunk as usize);
            chunk.map_or(&[][..], |chunk| &chunk.data)
        };
        let start = held.start as usize;
        data.get(start..start + held.len as usize)
            .unwrap_or_default()
    }

    /// The record's bytes are needed no more.
    #[inline]
    pub(super) fn release(&mut self, held: Held) {
        if let Some(chunk) = self.chunks.get_mut(held.chunk as usize) {
            chunk.live = chunk.live.saturating_sub(1);
            if chunk.live == 0 {
                self.reuse(held.chunk);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(sorter: &mut Sorter) -> Vec<u64> {
        let mut times = Vec::new();
        while let Some(held) = sorter.pop() {
            assert_eq!(sorter.bytes(held, &[]), held.time_ns.to_le_bytes());
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
    fn records_stay_in_the_buffer_that_they_were_read_into() {
        let mut sorter = Sorter::default();
        let first: Vec<u8> = [3u64, 1].iter().flat_map(|it| it.to_le_bytes()).collect();
        assert!(sorter.hold((0, 8), 3, None) && sorter.hold((8, 8), 1, None));
        sorter.full(first.clone());
        assert!(sorter.hold((0, 8), 2, None));
        push(&mut sorter, &[4]);
        sorter.end();
        let current = 2u64.to_le_bytes();
        for time in 1u64..=4 {
            let held = sorter.pop().expect("four are held");
            assert_eq!(sorter.bytes(held, &current), time.to_le_bytes());
            assert_eq!(sorter.spare(), None);
            sorter.release(held);
            if time == 3 {
                assert_eq!(sorter.spare().as_deref(), Some(&*first));
            }
        }
        // Nothing of the second is needed.
        sorter.full(current.to_vec());
        assert_eq!(sorter.spare().as_deref(), Some(&current[..]));
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

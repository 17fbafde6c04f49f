//! One CPU's trace data: pages after pages, plain or in compressed chunks.

use std::ops::Range;

use stealtime_events::CpuId;

use super::compression::Compression;
use super::input::Source;
use super::options::TscToNs;
use super::page::{PageLayout, Walk};
use super::shift::Shift;
use super::unpacker::Unpacker;
use crate::{ReadError, SourceInfo};

/// The input that the streams of all CPUs read.
pub(super) struct Feed {
    pub(super) source: Source,
    pub(super) compression: Compression,
    /// A chunk before it is unpacked.
    pub(super) packed: Vec<u8>,
    /// Chunks that another thread has unpacked.
    pub(super) unpacker: Option<Unpacker>,
}

/// Converts times of the ring buffer to times of events.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Scale {
    pub(super) ticks: Ticks,
    /// Added afterwards, in ns.
    pub(super) offset: i64,
}

/// The conversion of the clock's units to nanoseconds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) enum Ticks {
    /// None: they are nanoseconds, or their frequency is not known.
    #[default]
    None,
    /// By the factor in the file.
    Tsc(TscToNs),
    /// By a frequency in kHz, which is not 0.
    Khz(u64),
}

impl Scale {
    #[inline]
    fn apply(self, time: u64) -> u64 {
        let ns = match self.ticks {
            Ticks::None => return time.saturating_add_signed(self.offset),
            Ticks::Tsc(TscToNs { mult, shift }) => (u128::from(time) * u128::from(mult)) >> shift,
            Ticks::Khz(khz) => u128::from(time) * 1_000_000 / u128::from(khz),
        };
        u64::try_from(ns)
            .unwrap_or(u64::MAX)
            .saturating_add_signed(self.offset)
    }
}

/// The form of the data in the file.
#[derive(Debug)]
enum Supply {
    Plain,
    Chunks {
        /// Chunks that follow; `None` before their number is read.
        remaining: Option<u32>,
        /// Bytes before and after unpacking so far.
        packed: u64,
        unpacked: u64,
    },
}

/// The place of a CPU's data in the file, and limits of their buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    pub(super) cpu: CpuId,
    /// Index of the buffer that it belongs to.
    pub(super) buffer: usize,
    pub(super) layout: PageLayout,
    pub(super) scale: Scale,
    /// Where the data is in the file.
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) compressed: bool,
    /// How many bytes are read at once, a multiple of the page size.
    pub(super) run: usize,
    /// Largest chunk that is unpacked, in bytes.
    pub(super) max_chunk: usize,
}

/// One CPU's records, one after the other.
pub(super) struct CpuStream {
    pub(super) plan: Plan,
    /// Its place among all streams.
    index: usize,
    /// From a guest's clock to its host's.
    shift: Shift,
    supply: Supply,
    /// Position in the file of the next read.
    position: u64,
    pages: Vec<u8>,
    /// The current page in `pages`.
    page: Range<usize>,
    walk: Walk,
    /// The current record in the current page.
    record: Range<usize>,
    /// Time of the current record.
    pub(super) time: u64,
    /// Events lost before the current record; 0: some.
    pub(super) lost: Option<u64>,
    broken: u64,
}

/// Largest ratio of unpacked to packed trace data. Nearly empty pages of idle CPUs reach some hundred.
const MAX_RATIO: u64 = 1024;

impl CpuStream {
    pub(super) fn new(index: usize, plan: Plan, shift: Shift) -> Self {
        let supply = match plan.compressed {
            false => Supply::Plain,
            true => Supply::Chunks {
                remaining: None,
                packed: 0,
                unpacked: 0,
            },
        };
        Self {
            plan,
            index,
            shift,
            supply,
            position: plan.start,
            pages: Vec::new(),
            page: 0..0,
            walk: Walk::default(),
            record: 0..0,
            time: 0,
            lost: None,
            broken: 0,
        }
    }

    /// The current record.
    #[inline]
    pub(super) fn record(&self) -> &[u8] {
        let page = self.pages.get(self.page.clone()).unwrap_or_default();
        page.get(self.record.clone()).unwrap_or_default()
    }

    /// Advances to the next record; `false` at the end of the data.
    pub(super) fn advance(
        &mut self,
        feed: &mut Feed,
        info: &mut SourceInfo,
    ) -> Result<bool, ReadError> {
        loop {
            let page = self.pages.get(self.page.clone()).unwrap_or_default();
            match self.walk.next(page, self.plan.layout.endian) {
                Ok(Some(record)) => {
                    self.record = record;
                    self.time = self.plan.scale.apply(self.shift.apply(self.walk.time));
                    return Ok(true);
                }
                Ok(None) => {}
                Err(_) if self.page.len() < self.plan.layout.size => self.walk = Walk::default(),
                Err(_) => self.page_broken(info),
            }
            if !self.next_page(feed, info)? {
                self.finish(info);
                return Ok(false);
            }
        }
    }

    fn next_page(&mut self, feed: &mut Feed, info: &mut SourceInfo) -> Result<bool, ReadError> {
        let size = self.plan.layout.size;
        let mut start = self.page.end;
        if start >= self.pages.len() {
            if !self.refill(feed, info)? {
                return Ok(false);
            }
            start = 0;
        }
        self.page = start..self.pages.len().min(start.saturating_add(size));
        let page = self.pages.get(self.page.clone()).unwrap_or_default();
        if page.len() < size {
            let cpu = self.plan.cpu.0;
            info.note(
                true,
                format!("CPU {cpu}: its data ends within a page: was it cut short?"),
            );
        }
        let cut = page.len() < size;
        match self.plan.layout.head(page) {
            Ok(head) => {
                self.walk = Walk {
                    position: head.start,
                    end: head.end,
                    time: head.time,
                };
                if let Some(lost) = head.lost {
                    self.lose(lost, info);
                }
            }
            Err(_) if cut => self.walk = Walk::default(),
            Err(_) => self.page_broken(info),
        }
        Ok(true)
    }

    /// Skips the rest of the current page.
    #[cold]
    fn page_broken(&mut self, info: &mut SourceInfo) {
        self.walk = Walk::default();
        self.broken += 1;
        self.lose(0, info);
    }

    fn lose(&mut self, count: u64, info: &mut SourceInfo) {
        if count == 0 {
            info.lost.uncounted_gaps += 1;
        } else {
            info.lost.counted = info.lost.counted.saturating_add(count);
        }
        self.lost = Some(match self.lost {
            None => count,
            // An unknown number makes the sum unknown.
            Some(sum) if sum == 0 || count == 0 => 0,
            Some(sum) => sum.saturating_add(count),
        });
    }

    fn finish(&mut self, info: &mut SourceInfo) {
        let (cpu, broken) = (self.plan.cpu.0, self.broken);
        if broken > 0 {
            info.note(
                true,
                format!("CPU {cpu}: {broken} broken pages or chunks are left out"),
            );
        }
        self.broken = 0;
        self.pages = Vec::new();
    }

    /// Reads the next pages; `false` at the end of the data.
    fn refill(&mut self, feed: &mut Feed, info: &mut SourceInfo) -> Result<bool, ReadError> {
        match self.supply {
            Supply::Plain => {
                let want = (self.plan.end - self.position).min(self.plan.run as u64) as usize;
                // Of most runs the one before has the length: nothing is written twice.
                self.pages.resize(want, 0);
                let filled = feed.source.fill(&mut self.pages, self.position);
                self.pages.truncate(*filled.as_ref().unwrap_or(&0));
                let count = filled?;
                self.position += count as u64;
                if count < want {
                    self.ends_early(
                        self.position,
                        "the file became shorter while it was read",
                        info,
                    );
                }
                Ok(count > 0)
            }
            Supply::Chunks { .. } => self.refill_chunk(feed, info),
        }
    }

    fn refill_chunk(&mut self, feed: &mut Feed, info: &mut SourceInfo) -> Result<bool, ReadError> {
        self.pages.clear();
        loop {
            let Some((packed, size)) = self.chunk_head(feed, info)? else {
                return Ok(false);
            };
            let position = self.position;
            let pages = &mut self.pages;
            if let Some(unpacker) = &feed.unpacker
                && unpacker.take(self.index, position, size, pages)
            {
                self.position += packed as u64;
                feed.source.read += packed as u64;
                return Ok(true);
            }
            feed.packed.resize(packed, 0);
            let count = feed.source.fill(&mut feed.packed, position)?;
            self.position += packed as u64;
            if count < packed {
                self.ends_early(position, "a chunk is cut short", info);
                return Ok(false);
            }
            match feed.compression.unpack(&feed.packed, size, &mut self.pages) {
                Ok(()) if size > 0 => return Ok(true),
                Ok(()) => {}
                Err(problem) => {
                    // The next chunk is readable: its position depends on no content.
                    self.pages.clear();
                    self.page_broken(info);
                    let cpu = self.plan.cpu.0;
                    if self.broken == 1 {
                        info.note(
                            true,
                            format!("CPU {cpu}: chunk at offset {position}: {problem}"),
                        );
                    }
                }
            }
        }
    }

    /// Sizes of the next chunk, packed and unpacked; `None` where there is none.
    fn chunk_head(
        &mut self,
        feed: &mut Feed,
        info: &mut SourceInfo,
    ) -> Result<Option<(usize, usize)>, ReadError> {
        let endian = self.plan.layout.endian;
        let Supply::Chunks {
            mut remaining,
            mut packed,
            mut unpacked,
        } = self.supply
        else {
            return Ok(None);
        };
        let mut head = [0; 8];
        if remaining.is_none() && self.plan.end - self.position >= 4 {
            let count = feed
                .source
                .fill(head.get_mut(..4).unwrap_or_default(), self.position)?;
            remaining = endian.u32(&head, 0).filter(|_| count == 4);
            self.position += 4;
            // `trace-cmd convert` does not count this number into the data's size.
            self.plan.end = (self.plan.end + 4).min(feed.source.len);
        }
        if remaining == Some(0) {
            return Ok(None);
        }
        let (position, end) = (self.position, self.plan.end);
        if remaining.is_none() || end - position < 8 || feed.source.fill(&mut head, position)? < 8 {
            self.ends_early(position, "chunks are missing", info);
            return Ok(None);
        }
        let size = endian.u32(&head, 4).unwrap_or(0);
        let room = end - position - 8;
        let length = u64::from(endian.u32(&head, 0).unwrap_or(0));
        packed += length + 8;
        unpacked += u64::from(size);
        let limit = self.plan.max_chunk;
        if length > room || length > limit as u64 || size as usize > limit {
            let problem =
                format!("a chunk of {length} bytes, unpacked {size}, with {room} bytes left");
            self.ends_early(position, &problem, info);
            return Ok(None);
        }
        if unpacked / MAX_RATIO > packed + limit as u64 {
            self.ends_early(
                position,
                "chunks that unpack to more than trace data can",
                info,
            );
            return Ok(None);
        }
        self.position += 8;
        self.supply = Supply::Chunks {
            remaining: remaining.map(|remaining| remaining - 1),
            packed,
            unpacked,
        };
        Ok(Some((length as usize, size as usize)))
    }

    /// Notes that the rest of the data is missing, and ends the stream.
    #[cold]
    fn ends_early(&mut self, position: u64, problem: &str, info: &mut SourceInfo) {
        let (cpu, end) = (self.plan.cpu.0, self.plan.end);
        self.position = end;
        self.supply = Supply::Plain;
        info.note(
            true,
            format!("CPU {cpu}: offset {position}: {problem}; its data up to {end} is left out"),
        );
    }
}

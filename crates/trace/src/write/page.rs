//! Pages of the ring buffer as they fill: one CPU's events with their time deltas
//! (kernel/trace/ring_buffer.c).

use crate::trace_dat::layout::{DELTA_BITS, MISSED_EVENTS, MISSED_STORED, entry};

/// Page (sub-buffer) size in bytes.
pub(super) const PAGE: usize = 4096;
/// Bytes before a page's events: its time and its commit.
const HEAD: usize = 16;
/// A time that an extend (59 bits) or an absolute stamp cannot hold.
const TOO_LONG: u64 = 1 << 59;

/// One CPU's pages that are not yet spooled, the last one open.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Whole pages, and the open one so far.
    bytes: Vec<u8>,
    /// Where the open page starts.
    open: Option<Open>,
    /// Time of the last event.
    time: u64,
    /// Losses before the next event; 0: some, it is not known how many.
    lost: Option<u64>,
}

#[derive(Debug, Clone, Copy)]
struct Open {
    start: usize,
    /// Flags of the commit.
    flags: u64,
    lost: u64,
}

impl Pages {
    /// Counts events that were lost before the next one; 0: their number is not known.
    pub(super) fn lose(&mut self, count: u64) {
        self.lost = Some(match self.lost {
            None => count,
            Some(sum) if sum == 0 || count == 0 => 0,
            Some(sum) => sum.saturating_add(count),
        });
    }

    /// Adds a record of a multiple of 4 bytes, at most 112 (`RINGBUF_TYPE_DATA_TYPE_LEN_MAX` words). A time
    /// before that of the previous record is kept.
    #[inline]
    pub(super) fn push(&mut self, time: u64, record: &[u8]) {
        if let Some(open) = self.open
            && self.lost.is_none()
        {
            let limit = open.start + PAGE - if open.lost > 0 { 8 } else { 0 };
            let delta = time.wrapping_sub(self.time);
            if delta < 1 << DELTA_BITS {
                if self.bytes.len() + 4 + record.len() <= limit {
                    return self.write(time, delta as u32, record);
                }
            } else if self.bytes.len() + 12 + record.len() <= limit && self.jump(time) {
                return self.write(time, 0, record);
            }
        }
        self.begin(time);
        self.write(time, 0, record);
    }

    #[inline]
    fn write(&mut self, time: u64, delta: u32, record: &[u8]) {
        let words = (record.len() / 4) as u32;
        self.bytes
            .extend_from_slice(&(words | delta << 5).to_le_bytes());
        self.bytes.extend_from_slice(record);
        self.time = time;
    }

    /// Moves the page's time to `time`; `false` where that takes a new page.
    #[cold]
    fn jump(&mut self, time: u64) -> bool {
        let (kind, value) = match time.checked_sub(self.time) {
            Some(delta) => (entry::TIME_EXTEND, delta),
            // Readers take the upper bits of an absolute stamp from the previous time (`rb_fix_abs_ts`).
            None if self.time >= TOO_LONG => return false,
            None => (entry::TIME_STAMP, time),
        };
        if value >= TOO_LONG {
            return false;
        }
        let low = value as u32 & ((1 << DELTA_BITS) - 1);
        let high = (value >> DELTA_BITS) as u32;
        self.bytes
            .extend_from_slice(&(kind | low << 5).to_le_bytes());
        self.bytes.extend_from_slice(&high.to_le_bytes());
        true
    }

    /// Opens a page with its first event at `time`.
    fn begin(&mut self, time: u64) {
        self.close();
        let (flags, lost) = match self.lost.take() {
            None => (0, 0),
            Some(0) => (MISSED_EVENTS, 0),
            Some(count) => (MISSED_EVENTS | MISSED_STORED, count),
        };
        self.open = Some(Open {
            start: self.bytes.len(),
            flags,
            lost,
        });
        self.bytes.extend_from_slice(&time.to_le_bytes());
        self.bytes.extend_from_slice(&[0; HEAD - 8]);
        self.time = time;
    }

    /// Ends the open page: its commit, the number of lost events, zeros to its end.
    fn close(&mut self) {
        // No page is open before the first event.
        if let Some(open) = self.open.take() {
            self.pad(open);
        }
    }

    fn pad(&mut self, open: Open) {
        let Open { start, flags, lost } = open;
        let used = self.bytes.len() - start - HEAD;
        if lost > 0 {
            self.bytes.extend_from_slice(&lost.to_le_bytes());
        }
        self.bytes.resize(start + PAGE, 0);
        let commit = used as u64 | flags;
        if let Some(target) = self.bytes.get_mut(start + 8..start + HEAD) {
            target.copy_from_slice(&commit.to_le_bytes());
        }
    }

    /// Whole pages, if there are at least so many.
    #[inline]
    pub(super) fn full(&self, pages: usize) -> bool {
        self.open
            .is_some_and(|open| open.start >= pages.saturating_mul(PAGE))
    }

    /// The pages before the open one; [`Self::forget`] must follow.
    pub(super) fn whole(&self) -> &[u8] {
        let end = self.open.map_or(self.bytes.len(), |open| open.start);
        self.bytes.get(..end).unwrap_or_default()
    }

    /// Drops the pages of [`Self::whole`].
    pub(super) fn forget(&mut self) {
        let end = self.open.map_or(self.bytes.len(), |open| open.start);
        self.bytes.drain(..end);
        if let Some(open) = &mut self.open {
            open.start = 0;
        }
    }

    /// Ends the last page. Losses after the last event are an empty page.
    pub(super) fn finish(&mut self) {
        if self.lost.is_some() {
            self.begin(self.time);
        }
        self.close();
    }
}

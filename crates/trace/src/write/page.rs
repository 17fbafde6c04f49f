//! Pages of the ring buffer as they fill: one CPU's events with their time deltas
//! (kernel/trace/ring_buffer.c).

/// Page (sub-buffer) size in bytes.
pub(super) const PAGE: usize = 4096;
/// Bytes before a page's events: its time and its commit.
const HEAD: usize = 16;
/// Bits of a time delta in an event's header, `TS_SHIFT`.
const DELTA_BITS: u32 = 27;
/// `RB_MISSED_EVENTS`: events before this page were lost.
const MISSED_EVENTS: u64 = 1 << 31;
/// `RB_MISSED_STORED`: their number stands behind the page's data.
const MISSED_STORED: u64 = 1 << 30;
/// `RINGBUF_TYPE_TIME_EXTEND` and `RINGBUF_TYPE_TIME_STAMP`.
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
/// A time that an extend (59 bits) or an absolute stamp cannot hold.
const TOO_LONG: u64 = 1 << 59;

/// One CPU's pages that are not yet spooled, the last one open.
#[derive(Debug, Default)]
pub(super) struct Pages {
    /// Whole pages; of the open one, what is there so far.
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
    /// Events were lost before the next one: so many, or 0 where the number is not known.
    pub(super) fn lose(&mut self, count: u64) {
        self.lost = Some(match self.lost {
            None => count,
            Some(before) if before == 0 || count == 0 => 0,
            Some(before) => before.saturating_add(count),
        });
    }

    /// Adds a record (of a multiple of 4 bytes, at most 112). A time before that of the record
    /// before it is kept.
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

    /// Brings the page's time to `time`; `false` where that takes a new page.
    #[cold]
    fn jump(&mut self, time: u64) -> bool {
        let (kind, value) = match time.checked_sub(self.time) {
            Some(delta) => (TIME_EXTEND, delta),
            // Readers take the upper bits of an absolute stamp from the time before it.
            None if self.time >= TOO_LONG => return false,
            None => (TIME_STAMP, time),
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

    /// Opens a page whose first event is at `time`.
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
        let Some(Open { start, flags, lost }) = self.open.take() else {
            return;
        };
        let used = self.bytes.len() - start - HEAD;
        if lost > 0 {
            self.bytes.extend_from_slice(&lost.to_le_bytes());
        }
        self.bytes.resize(start + PAGE, 0);
        let commit = used as u64 | flags;
        if let Some(to) = self.bytes.get_mut(start + 8..start + HEAD) {
            to.copy_from_slice(&commit.to_le_bytes());
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

    /// Drops the pages that [`Self::whole`] gave.
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

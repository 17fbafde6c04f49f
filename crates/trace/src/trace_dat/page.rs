//! Pages of the kernel's ring buffer (kernel/trace/ring_buffer.c; `events/header_page`,
//! `events/header_event`).

use std::ops::Range;

use super::layout::{DELTA_BITS, MISSED_EVENTS, MISSED_STORED, entry};
use crate::tracefs::Endian;
use crate::tracefs::format;

/// `commit`: the part that is a length.
const COMMIT_MASK: u64 = (1 << DELTA_BITS) - 1;
/// Upper bits of a time that an absolute time stamp (59 bits) does not have.
const STAMP_TOP: u64 = 0x1f << 59;

/// Offsets of a page's header, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageLayout {
    pub(super) endian: Endian,
    /// Page (sub-buffer) size in bytes.
    pub(super) size: usize,
    timestamp: usize,
    commit: usize,
    /// Bytes of a `long` of the kernel: of `commit` and of the count of lost events.
    long: usize,
    data: usize,
}

/// A page's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PageHead {
    /// Time that the first event's delta counts from.
    pub(super) time: u64,
    /// Where the events are.
    pub(super) start: usize,
    pub(super) end: usize,
    /// Events lost before this page; 0: some, it is not known how many.
    pub(super) lost: Option<u64>,
}

/// A page or an event that contradicts its layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Broken;

/// Position and time of an iteration over the events of a page.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Walk {
    /// Position of the next event in the page.
    pub(super) position: usize,
    /// End of the page's events.
    pub(super) end: usize,
    /// Time of the last event, in units of the clock.
    pub(super) time: u64,
}

impl PageLayout {
    /// The layout of all kernels so far, for a `long` of 4 or 8 bytes.
    pub(super) fn usual(endian: Endian, long: usize, size: usize) -> Self {
        Self {
            endian,
            size,
            timestamp: 0,
            commit: 8,
            long,
            data: 8 + long,
        }
    }

    /// The layout that `header_page` describes, and the page size that follows from it.
    pub(super) fn parse(text: &[u8], endian: Endian) -> Option<(Self, usize)> {
        let text = std::str::from_utf8(text).ok()?;
        let field = |name| {
            let fields = text.lines().filter_map(format::field);
            fields.into_iter().find(|field| &*field.name == name)
        };
        let (timestamp, commit, data) = (field("timestamp")?, field("commit")?, field("data")?);
        let size = (data.offset as usize).checked_add(data.size as usize)?;
        let layout = Self {
            endian,
            size,
            timestamp: timestamp.offset as usize,
            commit: commit.offset as usize,
            long: commit.size as usize,
            data: data.offset as usize,
        };
        let ends = [
            layout.timestamp.checked_add(8)?,
            layout.commit.checked_add(layout.long)?,
        ];
        let sane = timestamp.size == 8
            && matches!(layout.long, 4 | 8)
            && ends.iter().all(|end| *end <= layout.data);
        sane.then_some((layout, size))
    }

    /// Whether a page of this size can hold its own header and an event.
    pub(super) fn fits(&self) -> bool {
        self.size > self.data.saturating_add(8)
    }

    fn long_at(&self, page: &[u8], offset: usize) -> Option<u64> {
        match self.long {
            4 => self.endian.u32(page, offset).map(u64::from),
            _ => self.endian.u64(page, offset),
        }
    }

    /// Reads a page's header. `page` may be shorter than a page: the data's end is the file's.
    pub(super) fn head(&self, page: &[u8]) -> Result<PageHead, Broken> {
        let time = self.endian.u64(page, self.timestamp).ok_or(Broken)?;
        let commit = self.long_at(page, self.commit).ok_or(Broken)?;
        let used = (commit & COMMIT_MASK) as usize;
        let end = self
            .data
            .checked_add(used)
            .filter(|end| *end <= self.size)
            .ok_or(Broken)?;
        let lost = match (commit & MISSED_EVENTS != 0, commit & MISSED_STORED != 0) {
            (false, _) => None,
            (true, true) => Some(self.long_at(page, end).unwrap_or(0)),
            (true, false) => Some(0),
        };
        Ok(PageHead {
            time,
            start: self.data,
            end,
            lost,
        })
    }
}

impl Walk {
    /// The next record of the page, or `None` at the end of its events. After an error the rest of the
    /// page is lost: an event's length gives the start of the next one.
    ///
    /// Inline, so that the range is returned in registers.
    #[inline(always)]
    pub(super) fn next(
        &mut self,
        page: &[u8],
        endian: Endian,
    ) -> Result<Option<Range<usize>>, Broken> {
        while self.position < self.end {
            let head = endian.u32(page, self.position).ok_or(Broken)?;
            let (kind, delta) = match endian {
                Endian::Little => (head & 31, head >> 5),
                Endian::Big => (head >> DELTA_BITS, head & COMMIT_MASK as u32),
            };
            let delta = u64::from(delta);
            let body = self.position + 4;
            if let 1..entry::PADDING = kind {
                self.time = self.time.wrapping_add(delta);
                return self.record(body, kind as usize * 4, page).map(Some);
            }
            let word = endian.u32(page, body);
            match kind {
                0 => {
                    let len = word.and_then(|len| len.checked_sub(4)).ok_or(Broken)? as usize;
                    self.time = self.time.wrapping_add(delta);
                    let padded = len.checked_next_multiple_of(4).ok_or(Broken)?;
                    let record = self.record(body + 4, padded, page)?;
                    return Ok(Some(record.start..record.start + len));
                }
                entry::PADDING => {
                    if delta == 0 {
                        // The rest of the page is not used.
                        self.position = self.end;
                        return Ok(None);
                    }
                    // A discarded event (`rb_event_set_padding`); the next delta counts from it.
                    self.time = self.time.wrapping_add(delta);
                    self.record(body, word.ok_or(Broken)? as usize, page)?;
                }
                entry::TIME_EXTEND => {
                    let high_bits = u64::from(word.ok_or(Broken)?) << DELTA_BITS;
                    self.time = self.time.wrapping_add(high_bits + delta);
                    self.record(body, 4, page)?;
                }
                entry::TIME_STAMP => {
                    let stamp = u64::from(word.ok_or(Broken)?) << DELTA_BITS | delta;
                    self.time = absolute(stamp, self.time);
                    self.record(body, 4, page)?;
                }
                _ => return Err(Broken),
            }
        }
        Ok(None)
    }

    /// Steps over `len` bytes from `start`.
    #[inline]
    fn record(&mut self, start: usize, len: usize, page: &[u8]) -> Result<Range<usize>, Broken> {
        let end = start
            .checked_add(len)
            .filter(|end| *end <= self.end.min(page.len()));
        let end = end.ok_or(Broken)?;
        self.position = end;
        Ok(start..end)
    }
}

/// An absolute time stamp of 59 bits with the upper bits of the time before it
/// (`rb_fix_abs_ts`, kernel/trace/ring_buffer.c).
fn absolute(stamp: u64, previous: u64) -> u64 {
    if previous & STAMP_TOP == 0 {
        return stamp;
    }
    let whole = stamp | previous & STAMP_TOP;
    if whole < previous {
        whole.wrapping_add(1 << 59)
    } else {
        whole
    }
}

#[cfg(test)]
#[path = "page_tests.rs"]
mod tests;

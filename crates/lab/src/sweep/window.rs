//! Records of a journal, read from a part of the file that is in memory.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::record::{HEAD, body};

/// The longest record: beyond any list of metrics.
const LONGEST: usize = 64 << 20;

/// A part of a file. It moves on when a record beyond it is read.
#[derive(Debug)]
pub(super) struct Window {
    start: u64,
    bytes: Vec<u8>,
    size: usize,
}

impl Window {
    /// For records one after the other.
    pub(super) const fn of_many() -> Self {
        Self::of(64 << 10)
    }

    /// For one record: most are smaller, and take one system call.
    pub(super) const fn of_one() -> Self {
        Self::of(1 << 10)
    }

    const fn of(size: usize) -> Self {
        Self {
            start: 0,
            bytes: Vec::new(),
            size,
        }
    }

    /// The record at a place, with its head. `None`: it is not whole before `end`, or does not match its sum.
    pub(super) fn record(
        &mut self,
        file: &File,
        place: u64,
        end: u64,
    ) -> io::Result<Option<&[u8]>> {
        let head = self.bytes(file, place, HEAD, end)?;
        let Some([a, b, c, d, sum @ ..]) = head.and_then(<[u8]>::first_chunk::<HEAD>) else {
            return Ok(None);
        };
        let size = u32::from_le_bytes([*a, *b, *c, *d]) as usize;
        let sum = u32::from_le_bytes(*sum);
        if size > LONGEST {
            return Ok(None);
        }
        let bytes = self.bytes(file, place, HEAD + size, end)?;
        Ok(bytes.filter(|bytes| crc32fast::hash(body(bytes)) == sum))
    }

    /// So many bytes at a place; `None`: they reach beyond `end`.
    fn bytes(
        &mut self,
        file: &File,
        place: u64,
        count: usize,
        end: u64,
    ) -> io::Result<Option<&[u8]>> {
        let available = usize::try_from(end.saturating_sub(place)).unwrap_or(usize::MAX);
        if count > available {
            return Ok(None);
        }
        let offset = place.checked_sub(self.start);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let is_within = |offset: &usize| self.bytes.len().saturating_sub(*offset) >= count;
        let offset = match offset.filter(is_within) {
            Some(offset) => offset,
            None => {
                self.bytes = vec![0; self.size.max(count).min(available)];
                self.start = place;
                let read = file.read_exact_at(&mut self.bytes, place);
                read.inspect_err(|_| self.bytes.clear())?;
                0
            }
        };
        Ok(self.bytes.get(offset..offset + count))
    }
}

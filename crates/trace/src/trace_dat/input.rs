//! Bytes of a file by position, and numbers and strings from them in sequence.

use std::ops::Range;

use crate::input::fill_at;
use crate::tracefs::Endian;
use crate::{ReadAt, ReadError};

/// An input with its name and length.
pub(super) struct Source {
    input: Box<dyn ReadAt>,
    pub(super) name: String,
    /// Length in bytes.
    pub(super) len: u64,
    /// Bytes read so far.
    pub(super) read: u64,
}

impl Source {
    pub(super) fn new(input: Box<dyn ReadAt>, name: String, len: u64) -> Self {
        Self {
            input,
            name,
            len,
            read: 0,
        }
    }

    /// A second handle on the same file, where the input can have one.
    pub(super) fn another(&self) -> Option<Self> {
        let input = self.input.handle()?;
        Some(Self::new(input, self.name.clone(), self.len))
    }

    /// Fills as much of `buffer` as there is; gives how many bytes that was.
    pub(super) fn fill(&mut self, buffer: &mut [u8], offset: u64) -> Result<usize, ReadError> {
        let filled = fill_at(&mut *self.input, buffer, offset).map_err(|source| ReadError::Io {
            input: self.name.clone(),
            offset,
            source,
        })?;
        self.read += filled as u64;
        Ok(filled)
    }

    /// Fills `buffer` with `size` bytes.
    pub(super) fn exact(
        &mut self,
        buffer: &mut Vec<u8>,
        offset: u64,
        size: u64,
    ) -> Result<(), ReadError> {
        if offset.checked_add(size).is_none_or(|end| end > self.len) {
            let len = self.len;
            return Err(self.corrupt(
                offset,
                format!("needs {size} bytes, but the file ends at {len}: was it cut short?"),
            ));
        }
        // At most the length of the file, which is there.
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        if buffer.capacity() == 0 {
            // Zero pages of the kernel, which are not written twice.
            *buffer = vec![0; size];
        } else {
            buffer.resize(size, 0);
        }
        if self.fill(buffer, offset)? < buffer.len() {
            return Err(self.corrupt(offset, "the file became shorter while it was read".into()));
        }
        Ok(())
    }

    pub(super) fn corrupt(&self, offset: u64, problem: String) -> ReadError {
        ReadError::Corrupt {
            input: self.name.clone(),
            offset,
            problem,
        }
    }
}

/// Bytes that `Sequence` reads ahead.
const AHEAD: usize = 64 << 10;

/// Numbers and strings one after the other.
pub(super) struct Sequence<'a> {
    source: &'a mut Source,
    endian: Endian,
    /// Position of the next byte.
    pub(super) position: u64,
    ahead: Vec<u8>,
    /// Position of the first byte of `ahead`.
    ahead_at: u64,
    /// Added to positions in messages: where the source's own bytes are in the file.
    base: u64,
}

impl<'a> Sequence<'a> {
    pub(super) fn new(source: &'a mut Source, endian: Endian, position: u64, base: u64) -> Self {
        Self {
            source,
            endian,
            position,
            ahead: Vec::new(),
            ahead_at: 0,
            base,
        }
    }

    pub(super) fn set_endian(&mut self, endian: Endian) {
        self.endian = endian;
    }

    /// An error at the next byte.
    pub(super) fn corrupt(&self, problem: impl Into<String>) -> ReadError {
        self.source
            .corrupt(self.base + self.position, problem.into())
    }

    /// Bytes from here to the end of the source.
    pub(super) fn left(&self) -> u64 {
        self.source.len.saturating_sub(self.position)
    }

    fn array<const N: usize>(&mut self, part: &str) -> Result<[u8; N], ReadError> {
        if let Some(bytes) = self.ahead_array() {
            self.position += N as u64;
            return Ok(bytes);
        }
        self.read_ahead()?;
        let bytes = self.ahead_array().ok_or_else(|| self.cut(part))?;
        self.position += N as u64;
        Ok(bytes)
    }

    fn ahead_array<const N: usize>(&self) -> Option<[u8; N]> {
        let position = usize::try_from(self.position.checked_sub(self.ahead_at)?).ok()?;
        self.ahead.get(position..)?.first_chunk().copied()
    }

    fn read_ahead(&mut self) -> Result<(), ReadError> {
        let remaining = usize::try_from(self.left()).unwrap_or(AHEAD);
        self.ahead.resize(remaining.min(AHEAD), 0);
        let count = self.source.fill(&mut self.ahead, self.position)?;
        self.ahead.truncate(count);
        self.ahead_at = self.position;
        Ok(())
    }

    fn cut(&self, part: &str) -> ReadError {
        self.corrupt(format!(
            "the file ends where {part} should be: was it cut short?"
        ))
    }

    pub(super) fn u8(&mut self, part: &str) -> Result<u8, ReadError> {
        Ok(self.array::<1>(part)?[0])
    }

    pub(super) fn u16(&mut self, part: &str) -> Result<u16, ReadError> {
        let bytes = self.array::<2>(part)?;
        Ok(self.endian.u16(&bytes, 0).unwrap_or(0))
    }

    pub(super) fn u32(&mut self, part: &str) -> Result<u32, ReadError> {
        let bytes = self.array::<4>(part)?;
        Ok(self.endian.u32(&bytes, 0).unwrap_or(0))
    }

    pub(super) fn u64(&mut self, part: &str) -> Result<u64, ReadError> {
        let bytes = self.array::<8>(part)?;
        Ok(self.endian.u64(&bytes, 0).unwrap_or(0))
    }

    fn check(&self, size: u64, limit: u64, part: &str) -> Result<(), ReadError> {
        if size > self.left() {
            return Err(self.cut(part));
        }
        if size > limit {
            return Err(self.corrupt(format!("{part} of {size} bytes; at most {limit} are read")));
        }
        Ok(())
    }

    /// Passes over `size` bytes, at most `limit`.
    pub(super) fn pass(&mut self, size: u64, limit: u64, part: &str) -> Result<(), ReadError> {
        self.check(size, limit, part)?;
        self.position += size;
        Ok(())
    }

    /// The same bytes as [`Self::bytes`], to be read later: an input and the positions in it. They are copied
    /// only from an input without a second handle.
    pub(super) fn later(
        &mut self,
        size: u64,
        limit: u64,
        part: &str,
    ) -> Result<(Box<dyn ReadAt>, Range<u64>), ReadError> {
        let start = self.position;
        match self.source.input.handle() {
            Some(input) => {
                self.pass(size, limit, part)?;
                Ok((input, start..self.position))
            }
            None => Ok((Box::new(self.bytes(size, limit, part)?), 0..size)),
        }
    }

    /// `size` bytes, at most `limit`.
    pub(super) fn bytes(
        &mut self,
        size: u64,
        limit: u64,
        part: &str,
    ) -> Result<Vec<u8>, ReadError> {
        self.check(size, limit, part)?;
        let mut bytes = Vec::new();
        let start = self
            .position
            .checked_sub(self.ahead_at)
            .and_then(|position| usize::try_from(position).ok());
        let ahead = start.and_then(|position| {
            self.ahead
                .get(position..)?
                .get(..usize::try_from(size).ok()?)
        });
        match ahead {
            Some(ahead) => bytes.extend_from_slice(ahead),
            None => self.source.exact(&mut bytes, self.position, size)?,
        }
        self.position += size;
        Ok(bytes)
    }

    /// A string that ends with a zero.
    pub(super) fn string(&mut self, part: &str) -> Result<String, ReadError> {
        const LONGEST: usize = 4096;
        let mut bytes = Vec::new();
        loop {
            match self.u8(part)? {
                0 => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                _ if bytes.len() == LONGEST => {
                    return Err(self.corrupt(format!("{part} does not end")));
                }
                byte => bytes.push(byte),
            }
        }
    }

    /// The bytes that must stand here.
    pub(super) fn expect(&mut self, wanted: &[u8]) -> Result<(), ReadError> {
        let shown = wanted.escape_ascii().to_string();
        for byte in wanted {
            if self.u8(&shown)? != *byte {
                return Err(self.corrupt(format!("{shown:?} expected")));
            }
        }
        Ok(())
    }
}

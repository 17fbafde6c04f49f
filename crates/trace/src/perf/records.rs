//! Records one after the other, unpacked where perf compressed them (`perf record -z`).

use std::io::{self, Read, Seek, SeekFrom, Take};

use zstd::stream::raw::{Decoder, InBuffer, Operation, OutBuffer};

use super::kind;
use crate::ReadError;
use crate::tracefs::Endian;

/// `perf_event_header::size` has 16 bits.
const MAX_RECORD: usize = 1 << 16;

/// Bytes of the buffer: few enough for a second-level cache, so that parsing finds there what the
/// kernel has just copied.
const BUFFER: usize = 4 * MAX_RECORD;
/// Bytes of the buffer of unpacked records.
const UNPACKED: usize = 2 * BUFFER;
/// Bytes of either buffer at first, so that a small input costs little.
const FIRST_BUFFER: usize = 1 << 12;

/// The header of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    pub(super) kind: u32,
    pub(super) misc: u16,
    /// Offset in the file; of an unpacked record that of what it was packed in.
    pub(super) offset: u64,
    /// Position in the buffer, and length with the header, in bytes.
    pub(super) start: usize,
    pub(super) len: usize,
    /// Whether the buffer is that of unpacked records.
    pub(super) unpacked: bool,
}

/// Why there are no more records.
#[derive(Debug)]
pub(super) enum Stop {
    /// All were read.
    End,
    /// The rest cannot be read: what is wrong, with its place.
    Damaged(String),
    /// Reading failed.
    Io(io::Error),
}

/// Reads records from front to back.
pub(super) struct Records<R> {
    input: R,
    endian: Endian,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the file of `buffer[start]`.
    offset: u64,
    unpacker: Option<Unpacker>,
}

/// Packed data, and what was unpacked of them.
struct Unpacker {
    decoder: Decoder<'static>,
    packed: Vec<u8>,
    /// Bytes of `packed` that the decoder has consumed.
    consumed: usize,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    offset: u64,
    /// The decoder may hold more than it could put out.
    full: bool,
}

impl<R: Read> Records<R> {
    /// `offset` is where the input stands in the file.
    pub(super) fn new(input: R, endian: Endian, offset: u64) -> Self {
        Self {
            input,
            endian,
            buffer: vec![0; FIRST_BUFFER],
            start: 0,
            end: 0,
            offset,
            unpacker: None,
        }
    }

    /// The next record, if it is of this kind, not packed, and read already. The kind must be none of
    /// those that [`Records::next`] handles itself.
    #[inline]
    pub(super) fn next_of(&mut self, kind: u32) -> Option<Record> {
        if self.unpacker.is_some() {
            return None;
        }
        let held = self.buffer.get(self.start..self.end)?;
        let head = held.first_chunk::<8>()?;
        let misc = self.endian.u16(head, 4)?;
        let len = usize::from(self.endian.u16(head, 6)?);
        if self.endian.u32(head, 0)? != kind || len < 8 || len > held.len() {
            return None;
        }
        let record = Record {
            kind,
            misc,
            offset: self.offset,
            start: self.start,
            len,
            unpacked: false,
        };
        self.advance(len);
        Some(record)
    }

    /// What was read and not yet taken: records as they lie in the file. Nothing where records come
    /// packed.
    #[inline]
    pub(super) fn held(&self) -> &[u8] {
        match self.unpacker {
            Some(_) => &[],
            None => self.buffer.get(self.start..self.end).unwrap_or_default(),
        }
    }

    /// Goes on behind so many bytes of [`Self::held`], which must be whole records.
    pub(super) fn pass(&mut self, bytes: usize) {
        self.advance(bytes.min(self.end - self.start));
    }

    /// Where the next record starts in the file.
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// The bytes of a record, its header included: until the next call of `next`.
    pub(super) fn bytes(&self, record: Record) -> &[u8] {
        let buffer = match (&self.unpacker, record.unpacked) {
            (Some(unpacker), true) => &unpacker.buffer,
            _ => &self.buffer,
        };
        buffer
            .get(record.start..record.start + record.len)
            .unwrap_or_default()
    }

    /// The next record.
    pub(super) fn next(&mut self) -> Result<Record, Stop> {
        loop {
            if let Some(unpacker) = &mut self.unpacker
                && let Some(record) = unpacker.next(self.endian)?
            {
                return Ok(record);
            }
            let record = self.plain()?;
            match record.kind {
                kind::COMPRESSED | kind::COMPRESSED2 => self.unpack(record)?,
                kind::AUXTRACE => {
                    let len = self.endian.u64(self.bytes(record), 8).unwrap_or(0);
                    self.skip(len)?;
                }
                _ => return Ok(record),
            }
        }
    }

    /// The next record as it lies in the file.
    fn plain(&mut self) -> Result<Record, Stop> {
        if !self.fill(8)? {
            let is_whole = |unpacker: &Unpacker| unpacker.start == unpacker.end;
            if self.start == self.end && self.unpacker.as_ref().is_none_or(is_whole) {
                return Err(Stop::End);
            }
            let offset = self.offset;
            return Err(Stop::Damaged(format!(
                "the records end at offset {offset} in the middle of one"
            )));
        }
        let offset = self.offset;
        let record = parse(&self.buffer, self.start, offset, false, self.endian)?;
        if !self.fill(record.len)? {
            let (len, held) = (record.len, self.end - self.start);
            return Err(Stop::Damaged(format!(
                "the records end at offset {offset} in the middle of one of {len} bytes, of which \
                 {held} are there"
            )));
        }
        // Filling may have moved the bytes.
        let record = Record {
            start: self.start,
            ..record
        };
        self.advance(record.len);
        Ok(record)
    }

    fn unpack(&mut self, record: Record) -> Result<(), Stop> {
        let bytes = self.bytes(record);
        let packed = if record.kind == kind::COMPRESSED {
            bytes.get(8..)
        } else {
            let len = self
                .endian
                .u64(bytes, 8)
                .and_then(|len| usize::try_from(len).ok());
            len.and_then(|len| bytes.get(16..)?.get(..len))
        };
        let Some(packed) = packed.map(<[u8]>::to_vec) else {
            let offset = record.offset;
            return Err(Stop::Damaged(format!(
                "the packed record at offset {offset} is too short"
            )));
        };
        if self.unpacker.is_none() {
            self.unpacker = Some(Unpacker::new().map_err(Stop::Io)?);
        }
        if let Some(unpacker) = &mut self.unpacker {
            unpacker.packed = packed;
            unpacker.consumed = 0;
            unpacker.offset = record.offset;
        }
        Ok(())
    }

    /// Reads `len` bytes that belong to no record: they stand behind the record read last.
    pub(super) fn behind(&mut self, len: usize) -> Result<Vec<u8>, Stop> {
        let mut data = Vec::new();
        while data.len() < len {
            let wanted = (len - data.len()).min(MAX_RECORD);
            if !self.fill(wanted)? {
                let offset = self.offset;
                return Err(Stop::Damaged(format!(
                    "the file ends at offset {offset} in its data"
                )));
            }
            data.extend_from_slice(
                self.buffer
                    .get(self.start..self.start + wanted)
                    .unwrap_or(&[]),
            );
            self.advance(wanted);
        }
        Ok(data)
    }

    fn skip(&mut self, len: u64) -> Result<(), Stop> {
        let mut remaining = len;
        while remaining > 0 {
            let part = remaining.min(MAX_RECORD as u64);
            self.behind(usize::try_from(part).unwrap_or(0))?;
            remaining -= part;
        }
        Ok(())
    }

    fn advance(&mut self, len: usize) {
        self.start += len;
        self.offset += len as u64;
    }

    /// Whether `len` bytes (at most [`MAX_RECORD`]) are held, after reading more if need be.
    fn fill(&mut self, len: usize) -> Result<bool, Stop> {
        while self.end - self.start < len {
            if self.start > 0 && self.buffer.len() - self.end < MAX_RECORD {
                self.make_room();
            }
            let room = self.buffer.get_mut(self.end..).unwrap_or_default();
            match self.input.read(room) {
                Ok(0) => return Ok(false),
                Ok(read) => self.end += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Io(error)),
            }
            if self.end == self.buffer.len() && self.end < BUFFER {
                self.buffer.resize(4 * self.end, 0);
            }
        }
        Ok(true)
    }
}

impl<R> Records<R> {
    /// Moves the unread bytes to the start of the buffer, so that a whole record fits behind them.
    fn make_room(&mut self) {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
    }
}

impl Records<Box<dyn Read + Send>> {
    /// Without any record.
    pub(super) fn none(endian: Endian) -> Self {
        Self::new(Box::new(io::empty()), endian, 0)
    }
}

impl<R: Read + Seek> Records<Take<R>> {
    /// The records in `size` bytes from `offset` on; `name` is the input's, for errors.
    pub(super) fn section(
        mut file: R,
        name: &str,
        offset: u64,
        size: u64,
        endian: Endian,
    ) -> Result<Self, ReadError> {
        let sought = file.seek(SeekFrom::Start(offset));
        sought.map_err(|source| ReadError::Io {
            input: name.to_owned(),
            offset,
            source,
        })?;
        Ok(Self::new(file.take(size), endian, offset))
    }
}

impl<R: Read + Send + 'static> Records<R> {
    /// The same without the type of its input.
    pub(super) fn boxed(self) -> Records<Box<dyn Read + Send>> {
        let Self {
            input,
            endian,
            buffer,
            start,
            end,
            offset,
            unpacker,
        } = self;
        Records {
            input: Box::new(input),
            endian,
            buffer,
            start,
            end,
            offset,
            unpacker,
        }
    }
}

/// A record's header. The record itself need not be held.
fn parse(
    buffer: &[u8],
    start: usize,
    offset: u64,
    unpacked: bool,
    endian: Endian,
) -> Result<Record, Stop> {
    let kind = endian.u32(buffer, start).unwrap_or(0);
    let misc = endian.u16(buffer, start + 4).unwrap_or(0);
    let len = usize::from(endian.u16(buffer, start + 6).unwrap_or(0));
    if len < 8 {
        return Err(Stop::Damaged(format!(
            "the record at offset {offset} says it has {len} bytes, fewer than its header: nothing \
             behind it can be read"
        )));
    }
    Ok(Record {
        kind,
        misc,
        offset,
        start,
        len,
        unpacked,
    })
}

/// The bytes before the first zero, as of a string in C.
pub(super) fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

impl Unpacker {
    fn new() -> io::Result<Self> {
        Ok(Self {
            decoder: Decoder::new()?,
            packed: Vec::new(),
            consumed: 0,
            buffer: vec![0; FIRST_BUFFER],
            start: 0,
            end: 0,
            offset: 0,
            full: false,
        })
    }

    /// The next record of what was unpacked, unpacking more as long as there is something packed.
    fn next(&mut self, endian: Endian) -> Result<Option<Record>, Stop> {
        loop {
            let held = self.end - self.start;
            if held >= 8 {
                let record = parse(&self.buffer, self.start, self.offset, true, endian)?;
                if record.len <= held {
                    self.start += record.len;
                    return Ok(Some(record));
                }
            }
            if self.consumed >= self.packed.len() && !self.full {
                return Ok(None);
            }
            self.unpack()?;
        }
    }

    /// Unpacks as much as the buffer has room for.
    fn unpack(&mut self) -> Result<(), Stop> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let packed = self.packed.get(self.consumed..).unwrap_or_default();
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        let (mut input, mut output) = (InBuffer::around(packed), OutBuffer::around(room));
        self.decoder.run(&mut input, &mut output).map_err(|error| {
            let offset = self.offset;
            Stop::Damaged(format!(
                "the packed records at offset {offset} cannot be read: {error}"
            ))
        })?;
        let (consumed, produced) = (input.pos(), output.pos());
        self.full = produced == self.buffer.len() - self.end;
        self.consumed += consumed;
        self.end += produced;
        if self.full && self.end < UNPACKED {
            self.buffer.resize(UNPACKED.min(4 * self.end), 0);
        }
        if consumed == 0 && produced == 0 {
            // Neither in nor out: what is left can never be read.
            self.consumed = self.packed.len();
            self.full = false;
        }
        Ok(())
    }
}

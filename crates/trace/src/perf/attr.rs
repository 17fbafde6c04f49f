//! `perf_event_attr` and where the fields of a sample lie (include/uapi/linux/perf_event.h).

use crate::tracefs::Endian;

/// `PERF_TYPE_TRACEPOINT`.
const TRACEPOINT: u32 = 2;

/// `PERF_ATTR_SIZE_VER0`: the shortest attribute that any kernel knew.
const SHORTEST: usize = 64;

/// Bits of `sample_type`.
mod bit {
    pub(super) const IP: u64 = 1 << 0;
    pub(super) const TID: u64 = 1 << 1;
    pub(super) const TIME: u64 = 1 << 2;
    pub(super) const ADDR: u64 = 1 << 3;
    pub(super) const READ: u64 = 1 << 4;
    pub(super) const CALLCHAIN: u64 = 1 << 5;
    pub(super) const ID: u64 = 1 << 6;
    pub(super) const CPU: u64 = 1 << 7;
    pub(super) const PERIOD: u64 = 1 << 8;
    pub(super) const STREAM_ID: u64 = 1 << 9;
    pub(super) const RAW: u64 = 1 << 10;
    pub(super) const IDENTIFIER: u64 = 1 << 16;
}

/// An event of the recording: `struct perf_event_attr`.
#[derive(Debug, Clone)]
pub(super) struct Attr {
    kind: u32,
    /// The tracepoint's ID, for a tracepoint.
    config: u64,
    sample_type: u64,
    read_format: u64,
    /// Where the fields of its samples lie, if that is the same in each.
    fixed: Option<Fixed>,
    flags: u64,
    clockid: i32,
    /// `perf`'s name for it (`kvm:kvm_exit`), where the file has it.
    pub(super) name: Option<String>,
}

impl Attr {
    /// Parses the structure; `None` where it is too short.
    pub(super) fn parse(bytes: &[u8], endian: Endian) -> Option<Self> {
        if bytes.len() < SHORTEST {
            return None;
        }
        // A bit field's first bit is the lowest on little, the highest on big endian machines.
        let flags = endian.u64(bytes, 40)?;
        let flags = if endian == Endian::Big {
            flags.reverse_bits()
        } else {
            flags
        };
        Some(Self {
            kind: endian.u32(bytes, 0)?,
            config: endian.u64(bytes, 8)?,
            sample_type: endian.u64(bytes, 24)?,
            fixed: Fixed::new(endian.u64(bytes, 24)?),
            read_format: endian.u64(bytes, 32)?,
            flags,
            clockid: endian.u32(bytes, 92).map_or(0, u32::cast_signed),
            name: None,
        })
    }

    /// The tracepoint's ID.
    pub(super) fn tracepoint(&self) -> Option<u16> {
        (self.kind == TRACEPOINT)
            .then(|| u16::try_from(self.config).ok())
            .flatten()
    }

    /// Whether records other than samples end in the fields of `sample_id`.
    pub(super) fn sample_id_all(&self) -> bool {
        self.flags >> 18 & 1 == 1
    }

    /// Whether samples name their thread and its process.
    pub(super) fn has_tid(&self) -> bool {
        self.sample_type & bit::TID != 0
    }

    /// Time and CPU of a sample that holds all that it promises, where they lie at the same place in
    /// each.
    #[inline]
    pub(super) fn time_and_cpu(&self, record: &[u8], endian: Endian) -> Option<(u64, Option<u32>)> {
        let fixed = self.fixed.filter(|fixed| fixed.time != 0)?;
        if fixed.has_raw {
            let len = endian.u32(record, fixed.end)? as usize;
            record.get(fixed.end + 4..)?.get(..len)?;
        }
        let time = endian.u64(record, fixed.time)?;
        let cpu = (fixed.cpu != 0)
            .then(|| endian.u32(record, fixed.cpu))
            .flatten();
        Some((time, cpu))
    }

    /// Which fields its samples have.
    #[inline]
    pub(super) const fn sample_type(&self) -> u64 {
        self.sample_type
    }

    /// Places of the fields of its samples, where they are the same in each.
    pub(super) fn fixed(&self) -> Option<Fixed> {
        self.fixed
    }

    /// The clock by trace-cmd's name; `perf` is `local_clock`, perf's default (`use_clockid` is 0).
    pub(super) fn clock(&self) -> &'static str {
        match (self.flags >> 25 & 1, self.clockid) {
            (0, _) => "perf",
            (_, 0) => "realtime",
            (_, 1) => "mono",
            (_, 4) => "mono_raw",
            (_, 7) => "boot",
            (_, 11) => "tai",
            _ => "clockid",
        }
    }

    /// Whether two attributes lay out their samples alike.
    pub(super) fn same_layout(&self, peer: &Self) -> bool {
        (self.sample_type, self.read_format) == (peer.sample_type, peer.read_format)
    }
}

/// The fields of a sample, or of `sample_id`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Sample {
    pub(super) id: Option<u64>,
    pub(super) pid: i32,
    pub(super) tid: i32,
    pub(super) time: Option<u64>,
    pub(super) cpu: Option<u32>,
    /// The tracepoint's record: offset and length in the record.
    pub(super) raw: Option<(usize, usize)>,
}

/// Offsets of the fields in the samples of an attribute, in bytes from the start of the record. The
/// header is at 0, so that 0 stands for a missing field.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fixed {
    pub(super) id: usize,
    pub(super) tid: usize,
    pub(super) time: usize,
    pub(super) cpu: usize,
    pub(super) has_raw: bool,
    /// The end of the fields, where the length of the tracepoint's record stands.
    pub(super) end: usize,
}

impl Fixed {
    /// `None` where a field of varying length comes before the tracepoint's record.
    fn new(sample_type: u64) -> Option<Self> {
        let is_set = |bit| sample_type & bit != 0;
        if is_set(bit::READ) || is_set(bit::CALLCHAIN) {
            return None;
        }
        let mut fixed = Self {
            has_raw: is_set(bit::RAW),
            end: 8,
            ..Self::default()
        };
        let mut place = |bit: u64| {
            let offset = fixed.end;
            fixed.end += 8 * usize::from(is_set(bit));
            offset * usize::from(is_set(bit))
        };
        let identifier = place(bit::IDENTIFIER);
        place(bit::IP);
        let (tid, time) = (place(bit::TID), place(bit::TIME));
        place(bit::ADDR);
        let id = place(bit::ID);
        place(bit::STREAM_ID);
        let cpu = place(bit::CPU);
        place(bit::PERIOD);
        (fixed.tid, fixed.time, fixed.cpu) = (tid, time, cpu);
        fixed.id = if id == 0 { identifier } else { id };
        Some(fixed)
    }

    #[inline]
    fn load(self, record: &[u8], endian: Endian) -> Option<Sample> {
        let head = record.get(..self.end)?;
        let word = |offset: usize| (offset != 0).then(|| endian.u64(head, offset)).flatten();
        let half = |offset: usize| endian.u32(head, offset).map_or(0, u32::cast_signed);
        let has_tid = self.tid != 0;
        let raw = if self.has_raw {
            let len = endian.u32(record, self.end)? as usize;
            let start = self.end + 4;
            record.get(start..)?.get(..len)?;
            Some((start, len))
        } else {
            None
        };
        Some(Sample {
            id: word(self.id),
            pid: if has_tid { half(self.tid) } else { 0 },
            tid: if has_tid { half(self.tid + 4) } else { 0 },
            time: word(self.time),
            cpu: (self.cpu != 0)
                .then(|| endian.u32(head, self.cpu))
                .flatten(),
            raw,
        })
    }
}

/// Walks over the fields of a record.
struct Fields<'a> {
    record: &'a [u8],
    endian: Endian,
    offset: usize,
}

impl Fields<'_> {
    fn u64(&mut self) -> Option<u64> {
        let value = self.endian.u64(self.record, self.offset)?;
        self.offset += 8;
        Some(value)
    }

    fn two_u32(&mut self) -> Option<(u32, u32)> {
        let (a, b) = (self.offset, self.offset + 4);
        self.offset += 8;
        Some((
            self.endian.u32(self.record, a)?,
            self.endian.u32(self.record, b)?,
        ))
    }

    /// Skips `count` words of 8 bytes.
    fn skip(&mut self, count: u64) -> Option<()> {
        let bytes = usize::try_from(count.checked_mul(8)?).ok()?;
        self.offset = self
            .offset
            .checked_add(bytes)
            .filter(|offset| *offset <= self.record.len())?;
        Some(())
    }
}

/// The fields of a `PERF_RECORD_SAMPLE` (its header included in `record`); `None` where it is too
/// short for what its attribute promises.
#[inline]
pub(super) fn sample(record: &[u8], attr: &Attr, endian: Endian) -> Option<Sample> {
    match attr.fixed {
        Some(fixed) => fixed.load(record, endian),
        None => walk(record, attr, endian),
    }
}

/// The fields of a sample, one after the other.
fn walk(record: &[u8], attr: &Attr, endian: Endian) -> Option<Sample> {
    let is_set = |bit| attr.sample_type & bit != 0;
    let mut fields = Fields {
        record,
        endian,
        offset: 8,
    };
    let mut sample = Sample::default();
    if is_set(bit::IDENTIFIER) {
        sample.id = Some(fields.u64()?);
    }
    fields.skip(u64::from(is_set(bit::IP)))?;
    if is_set(bit::TID) {
        let (pid, tid) = fields.two_u32()?;
        (sample.pid, sample.tid) = (pid.cast_signed(), tid.cast_signed());
    }
    if is_set(bit::TIME) {
        sample.time = Some(fields.u64()?);
    }
    fields.skip(u64::from(is_set(bit::ADDR)))?;
    if is_set(bit::ID) {
        sample.id = Some(fields.u64()?);
    }
    fields.skip(u64::from(is_set(bit::STREAM_ID)))?;
    if is_set(bit::CPU) {
        sample.cpu = Some(fields.two_u32()?.0);
    }
    fields.skip(u64::from(is_set(bit::PERIOD)))?;
    if is_set(bit::READ) {
        skip_read(&mut fields, attr.read_format)?;
    }
    if is_set(bit::CALLCHAIN) {
        let frames = fields.u64()?;
        fields.skip(frames)?;
    }
    if is_set(bit::RAW) {
        let len = endian.u32(record, fields.offset)? as usize;
        let start = fields.offset + 4;
        record.get(start..)?.get(..len)?;
        sample.raw = Some((start, len));
    }
    Some(sample)
}

/// Skips the counter values of `PERF_SAMPLE_READ`.
fn skip_read(fields: &mut Fields<'_>, format: u64) -> Option<()> {
    const TIMES: u64 = 0b11;
    const ID: u64 = 1 << 2;
    const GROUP: u64 = 1 << 3;
    const LOST: u64 = 1 << 4;
    let times = u64::from((format & TIMES).count_ones());
    let words = 1 + u64::from((format & (ID | LOST)).count_ones());
    let values = if format & GROUP != 0 {
        fields.u64()?
    } else {
        1
    };
    fields.skip(times.checked_add(values.checked_mul(words)?)?)
}

/// The fields of `sample_id` at the end of a record that is no sample.
pub(super) fn sample_id(record: &[u8], attr: &Attr, endian: Endian) -> Option<Sample> {
    if !attr.sample_id_all() {
        return Some(Sample::default());
    }
    let is_set = |bit| attr.sample_type & bit != 0;
    let words = [
        bit::TID,
        bit::TIME,
        bit::ID,
        bit::STREAM_ID,
        bit::CPU,
        bit::IDENTIFIER,
    ];
    let words = words.into_iter().filter(|bit| is_set(*bit)).count();
    let start = record
        .len()
        .checked_sub(8 * words)
        .filter(|start| *start >= 8)?;
    let mut fields = Fields {
        record,
        endian,
        offset: start,
    };
    let mut sample = Sample::default();
    if is_set(bit::TID) {
        let (pid, tid) = fields.two_u32()?;
        (sample.pid, sample.tid) = (pid.cast_signed(), tid.cast_signed());
    }
    if is_set(bit::TIME) {
        sample.time = Some(fields.u64()?);
    }
    if is_set(bit::ID) {
        sample.id = Some(fields.u64()?);
    }
    fields.skip(u64::from(is_set(bit::STREAM_ID)))?;
    if is_set(bit::CPU) {
        sample.cpu = Some(fields.two_u32()?.0);
    }
    if is_set(bit::IDENTIFIER) {
        sample.id = Some(fields.u64()?);
    }
    Some(sample)
}

/// Offset of the id in a sample of this attribute, in bytes from the start of the record.
pub(super) fn id_offset(attr: &Attr) -> Option<usize> {
    let fields = |bits: u64| (attr.sample_type & bits).count_ones() as usize;
    if fields(bit::IDENTIFIER) == 1 {
        return Some(8);
    }
    let words = fields(bit::IP | bit::TID | bit::TIME | bit::ADDR);
    (fields(bit::ID) == 1).then_some(8 + 8 * words)
}

/// Whether the id stands at an offset that does not depend on the attribute.
pub(super) fn has_identifier(attr: &Attr) -> bool {
    attr.sample_type & bit::IDENTIFIER != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_places_are_those_that_a_walk_finds() {
        let record: Vec<u8> = (0..100).chain([6, 0, 0, 0]).chain(0..8).collect();
        let bits = [0, 1, 2, 3, 6, 7, 8, 9, 10, 16].map(|bit| 1u64 << bit);
        for mask in 0..1u64 << bits.len() {
            let chosen = bits
                .iter()
                .enumerate()
                .filter(|(at, _)| mask >> at & 1 == 1);
            let sample_type = chosen.map(|(_, bit)| bit).sum();
            let mut head = [0; SHORTEST];
            head[24..32].copy_from_slice(&u64::to_le_bytes(sample_type));
            let attr = Attr::parse(&head, Endian::Little).expect("it is long enough");
            assert!(attr.fixed.is_some());
            // The record's length is read where the fields end, so the start is moved instead.
            let end = attr.fixed.map_or(0, |fixed| fixed.end);
            for record in [&record[100 - end..], &record[..end], &record[..end - 1]] {
                for endian in [Endian::Little, Endian::Big] {
                    let (fast, slow) = (sample(record, &attr, endian), walk(record, &attr, endian));
                    assert_eq!(fast, slow, "{sample_type:#x}");
                }
            }
        }
    }
}

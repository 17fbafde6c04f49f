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

/// What one event of the recording is.
#[derive(Debug, Clone)]
pub(super) struct Attr {
    kind: u32,
    /// The tracepoint's ID, for a tracepoint.
    config: u64,
    pub(super) sample_type: u64,
    read_format: u64,
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

    /// The clock's name as trace-cmd calls them; `perf` is what perf uses when nothing is asked
    /// for.
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
    pub(super) fn same_layout(&self, other: &Self) -> bool {
        (self.sample_type, self.read_format) == (other.sample_type, other.read_format)
    }
}

/// What a record says of itself.
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

/// Walks over the fields of a record.
struct Fields<'a> {
    record: &'a [u8],
    endian: Endian,
    at: usize,
}

impl Fields<'_> {
    fn u64(&mut self) -> Option<u64> {
        let value = self.endian.u64(self.record, self.at)?;
        self.at += 8;
        Some(value)
    }

    fn two_u32(&mut self) -> Option<(u32, u32)> {
        let (a, b) = (self.at, self.at + 4);
        self.at += 8;
        Some((
            self.endian.u32(self.record, a)?,
            self.endian.u32(self.record, b)?,
        ))
    }

    /// Goes over `count` words of 8 bytes.
    fn skip(&mut self, count: u64) -> Option<()> {
        let bytes = usize::try_from(count.checked_mul(8)?).ok()?;
        self.at = self
            .at
            .checked_add(bytes)
            .filter(|at| *at <= self.record.len())?;
        Some(())
    }
}

/// The fields of a `PERF_RECORD_SAMPLE` (its header included in `record`); `None` where it is too
/// short for what its attribute promises.
pub(super) fn sample(record: &[u8], attr: &Attr, endian: Endian) -> Option<Sample> {
    let has = |bit| attr.sample_type & bit != 0;
    let mut fields = Fields {
        record,
        endian,
        at: 8,
    };
    let mut sample = Sample::default();
    if has(bit::IDENTIFIER) {
        sample.id = Some(fields.u64()?);
    }
    fields.skip(u64::from(has(bit::IP)))?;
    if has(bit::TID) {
        let (pid, tid) = fields.two_u32()?;
        (sample.pid, sample.tid) = (pid.cast_signed(), tid.cast_signed());
    }
    if has(bit::TIME) {
        sample.time = Some(fields.u64()?);
    }
    fields.skip(u64::from(has(bit::ADDR)))?;
    if has(bit::ID) {
        sample.id = Some(fields.u64()?);
    }
    fields.skip(u64::from(has(bit::STREAM_ID)))?;
    if has(bit::CPU) {
        sample.cpu = Some(fields.two_u32()?.0);
    }
    fields.skip(u64::from(has(bit::PERIOD)))?;
    if has(bit::READ) {
        skip_read(&mut fields, attr.read_format)?;
    }
    if has(bit::CALLCHAIN) {
        let frames = fields.u64()?;
        fields.skip(frames)?;
    }
    if has(bit::RAW) {
        let len = endian.u32(record, fields.at)? as usize;
        let start = fields.at + 4;
        record.get(start..)?.get(..len)?;
        sample.raw = Some((start, len));
    }
    Some(sample)
}

/// Goes over the counter values of `PERF_SAMPLE_READ`.
fn skip_read(fields: &mut Fields<'_>, format: u64) -> Option<()> {
    const TIMES: u64 = 0b11;
    const ID: u64 = 1 << 2;
    const GROUP: u64 = 1 << 3;
    const LOST: u64 = 1 << 4;
    let times = u64::from((format & TIMES).count_ones());
    let each = 1 + u64::from((format & (ID | LOST)).count_ones());
    let values = if format & GROUP != 0 {
        fields.u64()?
    } else {
        1
    };
    fields.skip(times.checked_add(values.checked_mul(each)?)?)
}

/// The fields of `sample_id` at the end of a record that is no sample.
pub(super) fn sample_id(record: &[u8], attr: &Attr, endian: Endian) -> Option<Sample> {
    if !attr.sample_id_all() {
        return Some(Sample::default());
    }
    let has = |bit| attr.sample_type & bit != 0;
    let words = [
        bit::TID,
        bit::TIME,
        bit::ID,
        bit::STREAM_ID,
        bit::CPU,
        bit::IDENTIFIER,
    ];
    let words = words.into_iter().filter(|bit| has(*bit)).count();
    let start = record
        .len()
        .checked_sub(8 * words)
        .filter(|start| *start >= 8)?;
    let mut fields = Fields {
        record,
        endian,
        at: start,
    };
    let mut sample = Sample::default();
    if has(bit::TID) {
        let (pid, tid) = fields.two_u32()?;
        (sample.pid, sample.tid) = (pid.cast_signed(), tid.cast_signed());
    }
    if has(bit::TIME) {
        sample.time = Some(fields.u64()?);
    }
    if has(bit::ID) {
        sample.id = Some(fields.u64()?);
    }
    fields.skip(u64::from(has(bit::STREAM_ID)))?;
    if has(bit::CPU) {
        sample.cpu = Some(fields.two_u32()?.0);
    }
    if has(bit::IDENTIFIER) {
        sample.id = Some(fields.u64()?);
    }
    Some(sample)
}

/// Where the id of a sample lies, whatever its attribute: offset from the start of the record.
pub(super) fn id_offset(attr: &Attr) -> Option<usize> {
    let has = |bit| usize::from(attr.sample_type & bit != 0);
    if has(bit::IDENTIFIER) == 1 {
        return Some(8);
    }
    let before = has(bit::IP) + has(bit::TID) + has(bit::TIME) + has(bit::ADDR);
    (has(bit::ID) == 1).then_some(8 + 8 * before)
}

/// Whether the id stands at a place that does not depend on the attribute.
pub(super) fn has_identifier(attr: &Attr) -> bool {
    attr.sample_type & bit::IDENTIFIER != 0
}

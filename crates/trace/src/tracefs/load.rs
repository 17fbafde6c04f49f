//! Loads of numbers at the places that the descriptions give.

use super::format::{Field, Location};

/// Byte order of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Endian {
    /// Least significant byte first.
    #[default]
    Little,
    /// Most significant byte first.
    Big,
}

impl Endian {
    /// The two bytes at an offset; `None` where `bytes` is too short.
    #[must_use]
    pub fn u16(self, bytes: &[u8], offset: usize) -> Option<u16> {
        let bytes = *bytes.get(offset..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        })
    }

    /// The four bytes at an offset; `None` where `bytes` is too short.
    #[must_use]
    pub fn u32(self, bytes: &[u8], offset: usize) -> Option<u32> {
        let bytes = *bytes.get(offset..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }

    /// The eight bytes at an offset; `None` where `bytes` is too short.
    #[must_use]
    pub fn u64(self, bytes: &[u8], offset: usize) -> Option<u64> {
        let bytes = *bytes.get(offset..)?.first_chunk()?;
        Some(match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        })
    }
}

/// The offset and type of a number, compiled from a [`Field`]. A size of 0 stands for an absent field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Slot {
    /// The bits of the number, and that of its sign (none of an unsigned one).
    mask: u64,
    sign: u64,
    offset: u16,
    size: u8,
}

impl Slot {
    const fn new(offset: u16, size: u8, signed: bool) -> Self {
        let mask = match size {
            0 => 0,
            8.. => u64::MAX,
            _ => (1 << (8 * size)) - 1,
        };
        let sign = if signed { mask ^ (mask >> 1) } else { 0 };
        Self {
            mask,
            sign,
            offset,
            size,
        }
    }

    /// The slot of a field that holds one number; `None` where it holds something else.
    pub(super) fn of(field: &Field) -> Option<Self> {
        let number = matches!(field.size, 1 | 2 | 4 | 8) && field.location == Location::Here;
        if !number || field.array {
            return None;
        }
        Self::at(field)
    }

    /// The slot of the word of a dynamic array.
    pub(super) fn word(field: &Field) -> Option<Self> {
        (field.size == 4).then(|| Self::at(field)).flatten()
    }

    fn at(field: &Field) -> Option<Self> {
        field
            .offset
            .checked_add(field.size)
            .filter(|end| *end <= 0xffff)?;
        let size = u8::try_from(field.size).ok()?;
        Some(Self::new(
            u16::try_from(field.offset).ok()?,
            size,
            field.signed,
        ))
    }

    /// Whether the field is there.
    pub(super) const fn exists(self) -> bool {
        self.size != 0
    }

    /// Whether it is the first two bytes, and nothing else.
    pub(super) const fn is_first_half_word(self) -> bool {
        self.offset == 0 && self.size == 2 && self.sign == 0
    }

    /// The offset behind the number.
    pub(super) const fn end(self) -> usize {
        self.offset as usize + self.size as usize
    }

    /// The number in the low bits of a word.
    #[inline]
    const fn extended(self, word: u64) -> u64 {
        ((word & self.mask) ^ self.sign).wrapping_sub(self.sign)
    }

    /// The number, a signed one with its sign extended to 64 bits; 0 where the field or the record's
    /// bytes are not there.
    pub(super) fn load(self, record: &[u8], endian: Endian) -> u64 {
        let offset = self.offset as usize;
        let word = match self.size {
            8 => endian.u64(record, offset),
            4 => endian.u32(record, offset).map(u64::from),
            2 => endian.u16(record, offset).map(u64::from),
            1 => record.get(offset).map(|value| u64::from(*value)),
            _ => None,
        };
        word.map_or(0, |word| self.extended(word))
    }
}

/// A record to load numbers from; with `SHORT` without branches.
#[derive(Debug, Clone, Copy)]
pub(super) struct Record<'a, const SHORT: bool> {
    pub(super) bytes: &'a [u8],
    pub(super) endian: Endian,
    /// With `SHORT`: the offset of its last eight bytes.
    last: usize,
}

impl<'a> Record<'a, true> {
    /// A little-endian record that holds all slots that end within `len` bytes, if it does.
    #[inline]
    pub(super) fn short(bytes: &'a [u8], endian: Endian, len: usize) -> Option<Self> {
        let last = bytes.len().checked_sub(8)?;
        (endian == Endian::Little && len <= bytes.len()).then_some(Self {
            bytes,
            endian,
            last,
        })
    }
}

impl<'a> Record<'a, false> {
    /// Any record.
    pub(super) fn any(bytes: &'a [u8], endian: Endian) -> Self {
        Self {
            bytes,
            endian,
            last: 0,
        }
    }
}

impl<const SHORT: bool> Record<'_, SHORT> {
    /// The number of a slot, as by [`Slot::load`]. With `SHORT` the record must hold it.
    #[inline(always)]
    pub(super) fn load(self, slot: &Slot) -> u64 {
        if !SHORT {
            return slot.load(self.bytes, self.endian);
        }
        // One load for every size and offset: they differ from event to event, so that a branch on
        // them would often be mispredicted. Numbers at the record's end are shifted out of its last
        // eight bytes.
        let offset = usize::from(slot.offset);
        let start = offset.min(self.last);
        let word = self
            .bytes
            .get(start..start + 8)
            .and_then(<[u8]>::first_chunk);
        let word = word.map_or(0, |word| u64::from_le_bytes(*word));
        slot.extended(word >> ((8 * (offset - start)) & 63))
    }
}

#[cfg(test)]
mod tests {
    use super::super::format::field;
    use super::*;

    fn slot(line: &str) -> Slot {
        Slot::of(&field(line).expect("a field")).expect("a number")
    }

    #[test]
    fn numbers_of_all_sizes_signs_and_orders() {
        let record = [0xff, 0xfe, 1, 2, 3, 4, 5, 6, 7, 8];
        let byte = slot("field:s8 a; offset:1; size:1; signed:1;");
        assert_eq!(byte.load(&record, Endian::Little) as i64, -2);
        let half = slot("field:u16 a; offset:0; size:2; signed:0;");
        assert_eq!(half.load(&record, Endian::Little), 0xfeff);
        assert_eq!(half.load(&record, Endian::Big), 0xfffe);
        let word = slot("field:int a; offset:0; size:4; signed:1;");
        assert_eq!(
            word.load(&record, Endian::Big) as i64,
            i64::from(0xfffe_0102_u32 as i32)
        );
        let long = slot("field:u64 a; offset:2; size:8; signed:0;");
        assert_eq!(long.load(&record, Endian::Big), 0x0102_0304_0506_0708);
        assert_eq!(
            long.load(&record[..9], Endian::Big),
            0,
            "bytes that are not there"
        );
    }

    #[test]
    fn bytes_behind_a_number_change_nothing() {
        let record: Vec<u8> = (0..24).map(|at| 0xf7_u8.wrapping_mul(at + 1)).collect();
        for size in [1, 2, 4, 8] {
            for signed in [false, true] {
                for offset in 0..16 {
                    let slot = Slot::new(offset, size, signed);
                    let end = usize::from(offset) + usize::from(size);
                    for endian in [Endian::Little, Endian::Big] {
                        let number = slot.load(&record, endian);
                        assert_eq!(slot.load(&record[..end], endian), number);
                        assert_eq!(slot.load(&record[..end - 1], endian), 0);
                    }
                    let number = slot.load(&record, Endian::Little);
                    for len in end.max(8)..=record.len() {
                        let short = Record::short(&record[..len], Endian::Little, end);
                        let short = short.map(|record| record.load(&slot));
                        assert_eq!(short, Some(number), "{slot:?} of {len} bytes");
                    }
                    assert!(Record::short(&record[..end - 1], Endian::Little, end).is_none());
                }
            }
        }
        assert!(Record::short(&record, Endian::Big, 1).is_none());
        let short = Record::short(&record, Endian::Little, 0).map(|it| it.load(&Slot::default()));
        assert_eq!(short, Some(0));
        assert_eq!(Slot::default().load(&record, Endian::Little), 0);
    }

    #[test]
    fn what_is_no_number_has_no_slot() {
        for line in [
            "field:char comm[16]; offset:8; size:16; signed:0;",
            "field:__data_loc char[] comm; offset:8; size:4; signed:0;",
            "field:u64 far; offset:65530; size:8; signed:0;",
            "field:u64 far; offset:4294967295; size:8; signed:0;",
        ] {
            assert_eq!(Slot::of(&field(line).expect("a field")), None, "{line}");
        }
    }
}

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
    /// The two bytes at `at`.
    #[must_use]
    pub fn u16(self, bytes: &[u8], at: usize) -> Option<u16> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u16::from_le_bytes(bytes),
            Self::Big => u16::from_be_bytes(bytes),
        })
    }

    /// The four bytes at `at`.
    #[must_use]
    pub fn u32(self, bytes: &[u8], at: usize) -> Option<u32> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u32::from_le_bytes(bytes),
            Self::Big => u32::from_be_bytes(bytes),
        })
    }

    /// The eight bytes at `at`.
    #[must_use]
    pub fn u64(self, bytes: &[u8], at: usize) -> Option<u64> {
        let bytes = *bytes.get(at..)?.first_chunk()?;
        Some(match self {
            Self::Little => u64::from_le_bytes(bytes),
            Self::Big => u64::from_be_bytes(bytes),
        })
    }
}

/// Where a number is: compiled from a [`Field`]. A size of 0 stands for a field that is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Slot {
    offset: u16,
    size: u8,
    signed: bool,
}

impl Slot {
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
        Some(Self {
            offset: u16::try_from(field.offset).ok()?,
            size: u8::try_from(field.size).ok()?,
            signed: field.signed,
        })
    }

    /// Whether the field is there.
    pub(super) const fn exists(self) -> bool {
        self.size != 0
    }

    /// The offset behind the number.
    pub(super) const fn end(self) -> usize {
        self.offset as usize + self.size as usize
    }

    /// The number, a signed one with its sign extended to 64 bits; 0 where the field or the record's
    /// bytes are not there (whoever needs it has checked [`Self::end`] against the record).
    #[inline]
    pub(super) fn load(self, record: &[u8], endian: Endian) -> u64 {
        let at = self.offset as usize;
        // One load for every size: which it is differs from event to event, and a branch on it would
        // often be foretold wrongly.
        if endian == Endian::Little
            && self.size != 0
            && let Some(word) = record.get(at..).and_then(<[u8]>::first_chunk)
        {
            let unused = u64::BITS - 8 * u32::from(self.size);
            let high = u64::from_le_bytes(*word) << unused;
            let signed = (high.cast_signed() >> unused).cast_unsigned();
            return if self.signed { signed } else { high >> unused };
        }
        self.load_exactly(record, endian)
    }

    /// The same without a look at bytes behind the number.
    fn load_exactly(self, record: &[u8], endian: Endian) -> u64 {
        let at = self.offset as usize;
        match (self.size, self.signed) {
            (4, false) => endian.u32(record, at).map(u64::from),
            (4, true) => endian.u32(record, at).map(|v| i64::from(v as i32) as u64),
            (8, _) => endian.u64(record, at),
            (1, false) => record.get(at).map(|v| u64::from(*v)),
            (1, true) => record.get(at).map(|v| i64::from(*v as i8) as u64),
            (2, false) => endian.u16(record, at).map(u64::from),
            (2, true) => endian.u16(record, at).map(|v| i64::from(v as i16) as u64),
            _ => None,
        }
        .unwrap_or(0)
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
                    let slot = Slot {
                        offset,
                        size,
                        signed,
                    };
                    let end = usize::from(offset) + usize::from(size);
                    for endian in [Endian::Little, Endian::Big] {
                        let exactly = slot.load_exactly(&record[..end], endian);
                        assert_eq!(slot.load(&record, endian), exactly, "{slot:?} {endian:?}");
                        assert_eq!(slot.load(&record[..end], endian), exactly);
                        assert_eq!(slot.load(&record[..end - 1], endian), 0);
                    }
                }
            }
        }
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

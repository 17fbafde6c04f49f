//! Snapshot formats 9 to 11, which bitcode 0.6 writes by serde.
//!
//! A field's values in all vCPUs are one column, and columns come in the order of the fields. Settings,
//! memory and resources differ from format to format and come first. The chips are found behind them; from
//! there to the vCPUs the three formats are the same.
//!
//! | values | column |
//! |---|---|
//! | bytes, more than 2 | mark, bytes; where they have few values, several in one |
//! | integers | mark, integers, or halves or less of them where all fit |
//! | lengths | bytes; behind them a column of those that are 255 or more |
//! | byte strings, lists | lengths, then the column of the elements |
//! | options | bytes of 0 or 1, then the column of those present |
//!
//! After an odd mark comes the least value, which is subtracted from all.

use std::borrow::Cow;

use super::{CHIPS, Found, MAX_BYTES, MAX_COUNT, MSR_ENTRY, Reader, STRUCTURES, clock};
use crate::snapshot::{Counters, SnapshotError};

/// More than any column of lengths or words has.
const MAX_ELEMENTS: usize = 1 << 20;
/// How many values a packed byte can have, and how many of them are in one byte.
const ALPHABETS: [(u8, usize); 5] = [(16, 2), (6, 3), (4, 4), (3, 5), (2, 8)];

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Found, SnapshotError> {
    let clock_data = (reader.at..reader.bytes.len()).find_map(|start| {
        reader.at = start;
        reader.chips()
    });
    let clock_data = clock_data.ok_or(super::NO_CHIPS)?;
    let (vcpus, khz) = reader.vcpus()?;
    Ok((clock(&clock_data), vcpus, khz))
}

fn total(lengths: &[usize]) -> usize {
    lengths.iter().sum()
}

impl<'a> Reader<'a> {
    fn limit(&self, count: usize, field: &'static str) -> Result<(), SnapshotError> {
        match count <= MAX_ELEMENTS {
            true => Ok(()),
            false => Err(self.value(field, count as u64, "at most 1048576")),
        }
    }

    fn byte(&mut self, field: &'static str) -> Result<u8, SnapshotError> {
        Ok(self.bytes(1, field)?.first().copied().unwrap_or_default())
    }

    /// A column of bytes.
    fn packed(
        &mut self,
        count: usize,
        field: &'static str,
    ) -> Result<Cow<'a, [u8]>, SnapshotError> {
        // A mark would only lengthen so short a column.
        let mark = match count {
            0..=2 => 0,
            _ => self.byte(field)?,
        };
        // What is subtracted from each value.
        let least = match mark & 1 {
            0 => 0,
            _ => self.byte(field)?,
        };
        let Some(alphabet) = mark.div_ceil(2).checked_sub(1) else {
            return Ok(Cow::Borrowed(self.bytes(count, field)?));
        };
        let &(values, in_one) = ALPHABETS
            .get(usize::from(alphabet))
            .ok_or_else(|| self.value(field, mark.into(), "a known mark"))?;
        let packed = self.bytes(count.div_ceil(in_one), field)?;
        let unpacked = packed.iter().flat_map(|byte| {
            (0..in_one).scan(*byte, move |rest, _| {
                let value = *rest % values;
                *rest /= values;
                Some(value.wrapping_add(least))
            })
        });
        Ok(Cow::Owned(unpacked.take(count).collect()))
    }

    /// A column of integers with this many bytes each: narrower where all fit.
    fn integers(
        &mut self,
        width: usize,
        count: usize,
        field: &'static str,
    ) -> Result<Vec<u64>, SnapshotError> {
        self.limit(count, field)?;
        if count == 0 {
            return Ok(Vec::new());
        }
        let integer = |bytes: &[u8]| {
            let bytes = bytes.iter().rev();
            bytes.fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte))
        };
        let mark = self.byte(field)?;
        let least = integer(self.bytes(width * usize::from(mark & 1), field)?);
        let narrow = match width.checked_shr(mark.div_ceil(2).into()) {
            None | Some(0) => return Err(self.value(field, mark.into(), "a known mark")),
            Some(narrow) => narrow,
        };
        let bytes = match narrow {
            1 => self.packed(count, field)?,
            _ => Cow::Borrowed(self.bytes(narrow * count, field)?),
        };
        let values = bytes.chunks_exact(narrow);
        Ok(values
            .map(|bytes| integer(bytes).wrapping_add(least))
            .collect())
    }

    /// A column of lengths, together at most [`MAX_BYTES`].
    fn lengths(&mut self, count: usize, field: &'static str) -> Result<Vec<usize>, SnapshotError> {
        self.limit(count, field)?;
        let short = self.packed(count, field)?;
        let long = short.iter().filter(|length| **length == 255).count();
        let mut long = self.integers(8, long, field)?.into_iter();
        let mut sum = 0_u64;
        let mut lengths = Vec::with_capacity(short.len());
        for length in short.iter() {
            let length = match length {
                255 => long.next().unwrap_or_default(),
                _ => u64::from(*length),
            };
            sum = sum.saturating_add(length);
            if sum > MAX_BYTES as u64 {
                return Err(self.value(field, sum, "at most 10000000"));
            }
            lengths.push(length as usize);
        }
        Ok(lengths)
    }

    /// The length of one list or byte string.
    fn length(&mut self, field: &'static str) -> Result<usize, SnapshotError> {
        Ok(total(&self.lengths(1, field)?))
    }

    /// A column of byte strings, one behind the other.
    fn strings(
        &mut self,
        count: usize,
        field: &'static str,
    ) -> Result<Cow<'a, [u8]>, SnapshotError> {
        let lengths = self.lengths(count, field)?;
        self.packed(total(&lengths), field)
    }

    /// PIT, clock, both PICs and the IOAPIC, if they begin at this byte: the clock.
    fn chips(&mut self) -> Option<Cow<'a, [u8]>> {
        let mut clock_data = None;
        for (index, length) in CHIPS.into_iter().enumerate() {
            // The first byte decides of most places.
            let begins = self.length("kvm_irqchip").ok()? as u64 == length;
            let chip = begins.then(|| self.packed(length as usize, "kvm_irqchip").ok())??;
            match index.checked_sub(2) {
                Some(id) => chip.starts_with(&(id as u32).to_le_bytes()).then_some(())?,
                None => clock_data = Some(chip),
            }
        }
        clock_data
    }

    fn vcpus(&mut self) -> Result<(Vec<Counters>, Option<u32>), SnapshotError> {
        let count = self.length("vCPUs")?;
        if !(1..=MAX_COUNT as usize).contains(&count) {
            return Err(self.value("number of vCPUs", count as u64, "from 1 to 65536"));
        }
        self.strings(count, "kvm_cpuid2")?;
        let entries = self.lengths(count, "CPUID entries")?;
        self.strings(total(&entries), "kvm_cpuid_entry2")?;
        let chunks = self.lengths(count, "chunks of MSRs")?;
        self.strings(total(&chunks), "kvm_msrs")?;
        let registers = self.lengths(total(&chunks), "MSRs")?;
        let entries = self.strings(total(&registers), "kvm_msr_entry")?;
        for field in STRUCTURES {
            self.strings(count, field)?;
        }
        self.strings(count, "kvm_xsave2")?;
        let words = self.lengths(count, "words of XSAVE")?;
        self.integers(4, total(&words), "words of XSAVE")?;
        let options = self.packed(count, "tsc_khz")?;
        let present = options.iter().filter(|option| **option != 0).count();
        let khz = self.integers(4, present, "tsc_khz")?.first().copied();

        let mut registers = registers.into_iter();
        let mut entries = entries.chunks_exact(MSR_ENTRY);
        let vcpu = |chunks: &usize| {
            let mut counters = Counters::default();
            let count = registers.by_ref().take(*chunks).sum();
            for entry in entries.by_ref().take(count) {
                counters.set_entry(entry);
            }
            counters
        };
        Ok((chunks.iter().map(vcpu).collect(), khz.map(|khz| khz as u32)))
    }
}

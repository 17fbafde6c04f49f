//! Firecracker's `vmstate`, snapshot formats 3 to 11.
//!
//! Follows Firecracker's source at formats 3 (v1.9), 4 (v1.10), 5 (v1.11), 6 (v1.12) and 8 (v1.13, v1.14).
//! Formats 9, 10 and 11 follow v1.15, v1.16 and the main branch of August 2026. The files are
//! `src/vmm/src/snapshot/mod.rs`, `persist.rs` and `arch/x86_64/{vm,vcpu}.rs`. KVM's structures are byte
//! strings, as `kvm-bindings` serializes them. Formats up to 8 are written by bincode with fixed integers,
//! little endian; the others by bitcode ([columns]).
//!
//! | bytes | field, in formats up to 8 |
//! |---|---|
//! | 8 | magic, with the architecture |
//! | 8, n | version as text |
//! | … | VM's settings and memory |
//! | 8 + 112 | `kvm_pit_state2` |
//! | 8 + 48 | `kvm_clock_data` |
//! | 3 · (8 + 520) | `kvm_irqchip`: both PICs, the IOAPIC |
//! | 8, … | up to format 5: modifiers of capabilities, as texts |
//! | 8, … | vCPUs, each: CPUID, chunks of MSRs, registers, XSAVE, frequency |
//! | … | devices |
//! | 8 | CRC-64 (Jones) of everything before |

mod columns;

use super::{Counters, MadeBy, Snapshot, SnapshotError};
use crate::arithmetic::KvmClockData;
use crate::device::{
    MSR_IA32_TSC, MSR_IA32_TSC_ADJUST, MSR_IA32_TSC_DEADLINE, MSR_KVM_SYSTEM_TIME_NEW,
};

const MADE_BY: MadeBy = MadeBy::Firecracker;
const MAGIC_X86: u64 = 0x0710_1984_8664_0000;
const MAGIC_ARM64: u64 = 0x0710_1984_aaaa_0000;
/// Formats that are read.
const FORMATS: std::ops::RangeInclusive<u64> = 3..=11;
/// The first format by bitcode.
const FIRST_IN_COLUMNS: u64 = 9;
/// The last format with modifiers of capabilities behind the IOAPIC.
const LAST_WITH_MODIFIERS: u64 = 5;
/// Lengths of the byte strings from the PIT to the IOAPIC: no other part of a snapshot has this sequence.
const CHIPS: [u64; 5] = [112, 48, 520, 520, 520];
/// Bytes of `kvm_msr_entry`.
const MSR_ENTRY: usize = 16;
/// What a vCPU has between MSRs and XSAVE.
const STRUCTURES: [&str; 7] = [
    "kvm_debugregs",
    "kvm_lapic_state",
    "kvm_mp_state",
    "kvm_regs",
    "kvm_sregs",
    "kvm_vcpu_events",
    "kvm_xcrs",
];
/// Firecracker's own limit.
const MAX_BYTES: usize = 10_000_000;
/// More than any count in a snapshot: vCPUs, CPUID entries, MSRs, words of XSAVE.
const MAX_COUNT: u64 = 65_536;

const NO_CHIPS: SnapshotError = SnapshotError::NotThere {
    made_by: MADE_BY,
    part: "PIT, clock and interrupt chips in a row",
    remedy: "damaged, or of a guest that was not saved by Firecracker on KVM",
};

/// The clock, each vCPU, and the frequency of their TSCs in kHz.
type Found = (Option<KvmClockData>, Vec<Counters>, Option<u32>);

/// The magic at a file's beginning, and the byte behind it.
fn magic(bytes: &[u8]) -> Option<(u64, usize)> {
    // By bitcode an integer's mark comes first.
    let starts = if bytes.first() == Some(&0) {
        0..2
    } else {
        0..1
    };
    starts.into_iter().find_map(|start| {
        let magic = u64::from_le_bytes(*bytes.get(start..)?.first_chunk()?);
        [MAGIC_X86, MAGIC_ARM64]
            .contains(&magic)
            .then_some((magic, start + 8))
    })
}

pub(super) fn is_snapshot(bytes: &[u8]) -> bool {
    magic(bytes).is_some()
}

pub(super) fn read(bytes: &[u8]) -> Result<Snapshot, SnapshotError> {
    if bytes.len() > MAX_BYTES {
        return Err(SnapshotError::TooLarge {
            bytes: bytes.len() as u64,
            most: MAX_BYTES as u64,
        });
    }
    let (magic, start) = magic(bytes).ok_or(SnapshotError::Unknown)?;
    let mut reader = Reader { bytes, at: start };
    if magic == MAGIC_ARM64 {
        return Err(SnapshotError::Guest {
            made_by: MADE_BY,
            found: "arm64",
        });
    }
    let (version, format) = version(&mut reader)?;
    if crc64(bytes) != 0 {
        return Err(SnapshotError::Checksum { made_by: MADE_BY });
    }
    let (clock, vcpus, khz) = match format < FIRST_IN_COLUMNS {
        true => in_a_row(&mut reader, format)?,
        false => columns::read(&mut reader)?,
    };
    Ok(Snapshot::by_value(MADE_BY, version, clock, khz, vcpus))
}

/// The formats by bincode.
fn in_a_row(reader: &mut Reader<'_>, format: u64) -> Result<Found, SnapshotError> {
    reader.at = chips(reader.bytes, reader.at)?;
    reader.blob("kvm_pit_state2")?;
    let clock = clock(reader.blob("kvm_clock_data")?);
    for _ in 0..3 {
        reader.blob("kvm_irqchip")?;
    }
    if format <= LAST_WITH_MODIFIERS {
        for _ in 0..reader.count("modifiers of capabilities")? {
            reader.blob("modifier of a capability")?;
        }
    }
    let count = reader.count("vCPUs")?;
    if count == 0 {
        return Err(reader.value("number of vCPUs", 0, "at least 1"));
    }
    let mut khz = None;
    let mut vcpus = Vec::new();
    for _ in 0..count {
        let (counters, tsc_khz) = vcpu(reader)?;
        vcpus.push(counters);
        khz = khz.or(tsc_khz);
    }
    Ok((clock, vcpus, khz))
}

/// The version's text, and its first number.
fn version(reader: &mut Reader<'_>) -> Result<(String, u64), SnapshotError> {
    let start = reader.at;
    let text = match start {
        8 => reader.blob("version")?,
        _ => {
            let length = reader.bytes(1, "version")?.first();
            reader.bytes(length.copied().map_or(0, usize::from), "version")?
        }
    };
    let text = std::str::from_utf8(text)
        .ok()
        .filter(|text| text.len() < 64);
    let major = text.and_then(|text| text.split('.').next()?.parse().ok());
    let (Some(text), Some(major)) = (text, major) else {
        reader.at = start;
        return Err(reader.value("length or text of the version", 0, "MAJOR.MINOR.PATCH"));
    };
    if FORMATS.contains(&major) {
        return Ok((format!("snapshot format {text}"), major));
    }
    Err(SnapshotError::Version {
        made_by: MADE_BY,
        found: format!("snapshot format {major}"),
        known: "formats 3 to 11",
        remedy: "take the snapshot's clocks in the VMM itself (ByValue)",
    })
}

/// Where the PIT's byte string begins.
fn chips(bytes: &[u8], start: usize) -> Result<usize, SnapshotError> {
    let number = |start: usize| {
        let chunk = bytes.get(start..)?.first_chunk()?;
        Some(u64::from_le_bytes(*chunk))
    };
    let fits = |start: usize| {
        let mut position = start;
        CHIPS.iter().enumerate().all(|(index, length)| {
            // The three chips have the ids 0, 1 and 2.
            let id = index.checked_sub(2).map(|id| id as u64);
            let id_fits =
                id.is_none_or(|id| number(position + 8).map(|n| n & 0xffff_ffff) == Some(id));
            let fits = number(position) == Some(*length) && id_fits;
            position += 8 + *length as usize;
            fits
        })
    };
    let found = (start..bytes.len()).find(|start| number(*start) == Some(CHIPS[0]) && fits(*start));
    found.ok_or(NO_CHIPS)
}

fn clock(blob: &[u8]) -> Option<KvmClockData> {
    let word = |start: usize| {
        let chunk = blob.get(start..)?.first_chunk()?;
        Some(u64::from_le_bytes(*chunk))
    };
    Some(KvmClockData {
        clock_ns: word(0)?,
        // The upper half is padding.
        flags: word(8)? as u32,
        realtime_ns: word(16)?,
        host_tsc: word(24)?,
    })
}

fn vcpu(reader: &mut Reader<'_>) -> Result<(Counters, Option<u32>), SnapshotError> {
    reader.blob("kvm_cpuid2")?;
    for _ in 0..reader.count("CPUID entries")? {
        reader.blob("kvm_cpuid_entry2")?;
    }
    let mut counters = Counters::default();
    for _ in 0..reader.count("chunks of MSRs")? {
        reader.blob("kvm_msrs")?;
        for _ in 0..reader.count("MSRs")? {
            counters.set_entry(reader.blob("kvm_msr_entry")?);
        }
    }
    for field in STRUCTURES {
        reader.blob(field)?;
    }
    // kvm_xsave, or from Firecracker 1.12 kvm_xsave2 with words behind it.
    if reader.blob("kvm_xsave")?.len() > 4096 {
        let words = reader.count("words of XSAVE")?;
        reader.bytes(4 * words as usize, "words of XSAVE")?;
    }
    let khz = match reader.bytes(1, "tsc_khz")? {
        [0] => None,
        _ => {
            let khz = reader.bytes(4, "tsc_khz")?.first_chunk().copied();
            khz.map(u32::from_le_bytes)
        }
    };
    Ok((counters, khz))
}

impl Counters {
    /// Keeps the register of a `kvm_msr_entry` that counts.
    fn set_entry(&mut self, entry: &[u8]) {
        let (index, data) = (entry.first_chunk::<4>(), entry.last_chunk::<8>());
        if let (MSR_ENTRY, Some(index), Some(data)) = (entry.len(), index, data) {
            self.set(u32::from_le_bytes(*index), u64::from_le_bytes(*data));
        }
    }

    /// Keeps a register that counts.
    pub(super) fn set(&mut self, index: u32, value: u64) {
        match index {
            MSR_IA32_TSC => self.tsc = Some(value),
            MSR_IA32_TSC_ADJUST => self.tsc_adjust = Some(value),
            MSR_IA32_TSC_DEADLINE => self.tsc_deadline = Some(value),
            MSR_KVM_SYSTEM_TIME_NEW => self.system_time = Some(value),
            _ => {}
        }
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize, field: &'static str) -> Result<&'a [u8], SnapshotError> {
        let end = self.at.checked_add(count);
        let found = end.and_then(|end| self.bytes.get(self.at..end));
        let found = found.ok_or(SnapshotError::Truncated {
            made_by: MADE_BY,
            at: self.bytes.len(),
            field,
        })?;
        self.at += count;
        Ok(found)
    }

    fn number(&mut self, field: &'static str) -> Result<u64, SnapshotError> {
        let bytes = self.bytes(8, field)?;
        Ok(bytes.first_chunk().copied().map_or(0, u64::from_le_bytes))
    }

    /// A number of things that follow.
    fn count(&mut self, field: &'static str) -> Result<u64, SnapshotError> {
        let count = self.number(field)?;
        match count <= MAX_COUNT {
            true => Ok(count),
            false => Err(self.value(field, count, "at most 65536")),
        }
    }

    /// A byte string with its length before it.
    fn blob(&mut self, field: &'static str) -> Result<&'a [u8], SnapshotError> {
        let length = self.count(field)?;
        self.bytes(length as usize, field)
    }

    fn value(&self, field: &'static str, value: u64, expected: &'static str) -> SnapshotError {
        SnapshotError::Value {
            made_by: MADE_BY,
            at: self.at,
            field,
            value,
            expected,
        }
    }
}

/// CRC-64 with Jones' polynomial, as the `crc64` crate computes it: reflected, from 0. Of bytes and their own
/// checksum it is 0.
fn crc64(bytes: &[u8]) -> u64 {
    const TABLE: [u64; 256] = table();
    bytes.iter().fold(0, |crc, byte| {
        let index = (crc as u8 ^ byte) as usize;
        TABLE[index] ^ (crc >> 8)
    })
}

const fn table() -> [u64; 256] {
    // 0xad93d23594c935a9, its bits in reverse order.
    const POLYNOMIAL: u64 = 0x95ac_9329_ac4b_c9b5;
    let mut table = [0; 256];
    let mut index = 0;
    while index < 256 {
        let mut crc = index as u64;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 0 {
                crc >> 1
            } else {
                crc >> 1 ^ POLYNOMIAL
            };
            bit += 1;
        }
        table[index] = crc;
        index += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example in the documentation of Firecracker's `CRC64Writer`.
    #[test]
    fn the_checksum_is_firecracker_s() {
        let mut bytes = vec![123; 16];
        assert_eq!(crc64(&bytes), 0x29d5_3572_1632_6566);
        bytes.extend(crc64(&bytes).to_le_bytes());
        assert_eq!(crc64(&bytes), 0);
    }
}

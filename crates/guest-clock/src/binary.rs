//! The compact binary form of a saved state.
//!
//! Little endian. Everything before the checksum is covered by it.
//!
//! | bytes | field |
//! |---|---|
//! | 4 | mark `STGC` |
//! | 2 | version |
//! | 1 | architecture: 1 x86, 2 arm64 |
//! | 1 | flags: x86: bit 0 master clock; arm64: bit 0 `instant_bound_ticks` |
//! | … | the architecture's fields, below |
//! | 8 | checksum: FNV-1a, 64 bits |
//!
//! The fields of x86:
//!
//! | bytes | field |
//! |---|---|
//! | 4, 1, 4 | `host_tsc_khz`, `frac_bits`, `tsc_khz` |
//! | 8 each | `ratio`, `clock_ns`, `realtime_ns`, `host_tsc`, `bound_ns` |
//! | 2 | number of vCPUs, and for each vCPU: |
//! | 1 | flags: bit 0 a bound, bit 1 `TSC_ADJUST`, bit 2 deadline |
//! | 8 each | offset; bound, `TSC_ADJUST` and deadline as flagged |
//!
//! The fields of arm64:
//!
//! | bytes | field |
//! |---|---|
//! | 4 | `counter_hz` |
//! | 8 each | `counter_offset`, `offset_bound_ticks`, `host_count`, `realtime_ns` |
//! | 2 | number of vCPUs |
//! | 8 | `instant_bound_ticks`, if flagged |
//!
//! There is exactly one binary form of a state: what is loaded is written back the same.

use crate::error::LoadError;
use crate::saved::{Arm64State, Instant, Saved, State, VERSION, VcpuState, X86State, check_size};

/// The first bytes.
pub(crate) const MAGIC: [u8; 4] = *b"STGC";
const X86: u8 = 1;
const ARM64: u8 = 2;

impl Saved {
    /// The compact binary form.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend((VERSION as u16).to_le_bytes());
        match self.state() {
            State::X86(x86) => put_x86(&mut bytes, x86),
            State::Arm64(arm64) => put_arm64(&mut bytes, arm64),
        }
        let sum = checksum(&bytes);
        bytes.extend(sum.to_le_bytes());
        bytes
    }

    /// Loads the compact binary form.
    ///
    /// # Errors
    /// [`LoadError`] for anything that [`Saved::to_bytes`] did not write.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, LoadError> {
        check_size(bytes)?;
        let mut input = Input { bytes, at: 0 };
        if input.take::<4>()? != MAGIC {
            return Err(LoadError::Unknown);
        }
        let version = u32::from(input.u16()?);
        if version != VERSION {
            return Err(LoadError::Version {
                found: version,
                known: VERSION,
            });
        }
        let state = match input.u8()? {
            X86 => State::X86(get_x86(&mut input)?),
            ARM64 => State::Arm64(get_arm64(&mut input)?),
            found => return Err(LoadError::Architecture { found }),
        };
        let computed = checksum(bytes.get(..input.at).unwrap_or_default());
        let found = input.u64()?;
        if found != computed {
            return Err(LoadError::Checksum { found, computed });
        }
        match bytes.len().saturating_sub(input.at) {
            0 => Self::new(state),
            extra => Err(LoadError::Trailing { extra }),
        }
    }
}

fn put_x86(bytes: &mut Vec<u8>, x86: &X86State) {
    bytes.push(X86);
    bytes.push(u8::from(x86.instant.master_clock));
    bytes.extend(x86.host_tsc_khz.to_le_bytes());
    // Checked on the way in: 48 or 32.
    bytes.push(x86.frac_bits as u8);
    bytes.extend(x86.tsc_khz.to_le_bytes());
    let instant = &x86.instant;
    for word in [
        x86.ratio,
        instant.clock_ns,
        instant.realtime_ns,
        instant.host_tsc,
        instant.bound_ns,
    ] {
        bytes.extend(word.to_le_bytes());
    }
    // Checked on the way in: at most 4096.
    bytes.extend((x86.vcpus.len() as u16).to_le_bytes());
    for vcpu in &x86.vcpus {
        let bound = (vcpu.offset_bound_cycles != 0).then_some(vcpu.offset_bound_cycles);
        let optional = [bound, vcpu.tsc_adjust, vcpu.tsc_deadline];
        let flags = (0..).zip(optional);
        bytes.push(flags.fold(0, |sum, (bit, word)| sum | u8::from(word.is_some()) << bit));
        bytes.extend(vcpu.tsc_offset.to_le_bytes());
        for word in optional.into_iter().flatten() {
            bytes.extend(word.to_le_bytes());
        }
    }
}

fn put_arm64(bytes: &mut Vec<u8>, arm64: &Arm64State) {
    bytes.push(ARM64);
    let apart = (arm64.instant_bound_ticks != 0).then_some(arm64.instant_bound_ticks);
    bytes.push(u8::from(apart.is_some()));
    bytes.extend(arm64.counter_hz.to_le_bytes());
    for word in [
        arm64.counter_offset,
        arm64.offset_bound_ticks,
        arm64.host_count,
        arm64.realtime_ns,
    ] {
        bytes.extend(word.to_le_bytes());
    }
    // Checked on the way in: at most 4096.
    bytes.extend((arm64.vcpus as u16).to_le_bytes());
    bytes.extend(apart.into_iter().flat_map(u64::to_le_bytes));
}

fn get_x86(input: &mut Input<'_>) -> Result<X86State, LoadError> {
    let flags = input.flags(1)?;
    let host_tsc_khz = input.u32()?;
    let frac_bits = u32::from(input.u8()?);
    let tsc_khz = input.u32()?;
    let ratio = input.u64()?;
    let instant = Instant {
        clock_ns: input.u64()?,
        realtime_ns: input.u64()?,
        host_tsc: input.u64()?,
        bound_ns: input.u64()?,
        master_clock: flags & 1 != 0,
    };
    let count = input.u16()?;
    // No room is reserved for what the input merely promises.
    let mut vcpus = Vec::new();
    for _ in 0..count {
        let flags = input.flags(7)?;
        let tsc_offset = input.u64()?;
        let mut optional = |bit: u8| (flags & bit != 0).then(|| input.u64()).transpose();
        let bound = optional(1)?;
        left_out_where_0("offset_bound_cycles", bound)?;
        vcpus.push(VcpuState {
            tsc_offset,
            offset_bound_cycles: bound.unwrap_or(0),
            tsc_adjust: optional(2)?,
            tsc_deadline: optional(4)?,
        });
    }
    Ok(X86State {
        host_tsc_khz,
        frac_bits,
        tsc_khz,
        ratio,
        instant,
        vcpus,
    })
}

fn get_arm64(input: &mut Input<'_>) -> Result<Arm64State, LoadError> {
    let flags = input.flags(1)?;
    let mut state = Arm64State {
        counter_hz: input.u32()?,
        counter_offset: input.u64()?,
        offset_bound_ticks: input.u64()?,
        host_count: input.u64()?,
        realtime_ns: input.u64()?,
        vcpus: u32::from(input.u16()?),
        instant_bound_ticks: 0,
    };
    if flags != 0 {
        state.instant_bound_ticks = input.u64()?;
        left_out_where_0("instant_bound_ticks", Some(state.instant_bound_ticks))?;
    }
    Ok(state)
}

/// A state has one form: a word that may be left out is not there as 0.
fn left_out_where_0(field: &'static str, word: Option<u64>) -> Result<(), LoadError> {
    match word {
        Some(0) => Err(LoadError::Value {
            field,
            value: 0,
            why: "left out where it is 0",
        }),
        _ => Ok(()),
    }
}

struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Input<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], LoadError> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let Some(field) = rest.first_chunk::<N>() else {
            return Err(LoadError::Truncated {
                at: self.at,
                needed: N,
                left: rest.len(),
            });
        };
        self.at += N;
        Ok(*field)
    }

    fn u8(&mut self) -> Result<u8, LoadError> {
        Ok(u8::from_le_bytes(self.take()?))
    }

    fn u16(&mut self) -> Result<u16, LoadError> {
        Ok(u16::from_le_bytes(self.take()?))
    }

    fn u32(&mut self) -> Result<u32, LoadError> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    fn u64(&mut self) -> Result<u64, LoadError> {
        Ok(u64::from_le_bytes(self.take()?))
    }

    fn flags(&mut self, known: u8) -> Result<u8, LoadError> {
        let flags = self.u8()?;
        if flags & !known != 0 {
            return Err(LoadError::Value {
                field: "flags",
                value: u64::from(flags),
                why: "known bits only",
            });
        }
        Ok(flags)
    }
}

/// FNV-1a: finds damage, not malice; what is forged with care must still pass every check of
/// values.
fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

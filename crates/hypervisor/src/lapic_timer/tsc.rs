//! The guest's TSC, as far as its timer needs it.

use core::fmt;

/// Fraction bits of a TSC ratio on VMX.
const FRACTION: u32 = 48;

/// How a guest's TSC follows from the host's, and how long its cycles are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuestTsc {
    khz: u32,
    ratio: u64,
    offset: u64,
    /// Turns ns into cycles: multiplier of 32 fraction bits and shift.
    mult: u32,
    shift: i32,
}

/// A frequency or ratio of 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTsc {
    /// Guest TSC frequency in kHz.
    pub khz: u32,
    /// Guest cycles per host cycle, 48 fraction bits.
    pub ratio: u64,
}

impl fmt::Display for InvalidTsc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a guest TSC of {} kHz with ratio {:#x} stands still: both must be above 0",
            self.khz, self.ratio
        )
    }
}

impl core::error::Error for InvalidTsc {}

/// Multiplier and shift that scale a number by `scaled_hz / base_hz` (`kvm_get_time_scale`).
/// Neither frequency is 0.
fn time_scale(scaled_hz: u64, base_hz: u64) -> (u32, i32) {
    let (mut scaled, mut base, mut shift) = (scaled_hz, base_hz, 0);
    while base > scaled.wrapping_mul(2) || base > u64::from(u32::MAX) {
        base >>= 1;
        shift -= 1;
    }
    // From here on 32 bits: `base` fits.
    while base <= scaled || scaled > u64::from(u32::MAX) {
        if scaled > u64::from(u32::MAX) || base & (1 << 31) != 0 {
            scaled >>= 1;
        } else {
            base <<= 1;
        }
        shift += 1;
    }
    // base > scaled, hence below 2^32.
    let mult = (u128::from(scaled) << 32)
        .checked_div(u128::from(base))
        .unwrap_or(0);
    (mult as u32, shift)
}

impl GuestTsc {
    /// The ratio of a guest that runs at the host's frequency.
    pub const NEUTRAL: u64 = 1 << FRACTION;

    /// A guest TSC of `khz` that is `offset + host_tsc * ratio / 2^48`.
    ///
    /// # Errors
    /// [`InvalidTsc`] if frequency or ratio is 0.
    pub fn new(khz: u32, ratio: u64, offset: u64) -> Result<Self, InvalidTsc> {
        if khz == 0 || ratio == 0 {
            return Err(InvalidTsc { khz, ratio });
        }
        let (mult, shift) = time_scale(1000 * u64::from(khz), 1_000_000_000);
        Ok(Self {
            khz,
            ratio,
            offset,
            mult,
            shift,
        })
    }

    /// Frequency in kHz, not 0.
    #[must_use]
    pub fn khz(&self) -> u32 {
        self.khz
    }

    /// Whether the guest's cycles are not the host's.
    #[must_use]
    pub fn is_scaled(&self) -> bool {
        self.ratio != Self::NEUTRAL
    }

    /// The guest's TSC when the host's is `host_tsc`; wraps as the counter does.
    #[must_use]
    #[inline]
    pub fn at(&self, host_tsc: u64) -> u64 {
        let scaled = if self.is_scaled() {
            ((u128::from(host_tsc) * u128::from(self.ratio)) >> FRACTION) as u64
        } else {
            host_tsc
        };
        self.offset.wrapping_add(scaled)
    }

    /// Guest cycles in `ns` (`nsec_to_cycles`).
    #[must_use]
    #[inline]
    pub fn cycles(&self, ns: u64) -> u64 {
        let shifted = if self.shift < 0 {
            ns.checked_shr(self.shift.unsigned_abs()).unwrap_or(0)
        } else {
            ns.checked_shl(self.shift.unsigned_abs()).unwrap_or(0)
        };
        ((u128::from(shifted) * u128::from(self.mult)) >> 32) as u64
    }

    /// Nanoseconds in guest cycles, rounded down; the product wraps in 64 bits as the kernel's
    /// does, which is wrong from 2^64 / 10^6 cycles on.
    #[must_use]
    pub fn wrapping_ns(&self, cycles: u64) -> u64 {
        cycles.wrapping_mul(1_000_000) / u64::from(self.khz.max(1))
    }

    /// Nanoseconds in guest cycles, rounded down, exact; at most `u64::MAX`.
    #[must_use]
    pub fn exact_ns(&self, cycles: u64) -> u64 {
        let ns = u128::from(cycles) * 1_000_000 / u128::from(self.khz.max(1));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Host cycles in guest cycles, rounded down. `None` if they need more than 64 bits.
    #[must_use]
    pub fn host_cycles(&self, cycles: u64) -> Option<u64> {
        if !self.is_scaled() || cycles == 0 {
            return Some(cycles);
        }
        let host = (u128::from(cycles) << FRACTION).checked_div(u128::from(self.ratio))?;
        u64::try_from(host).ok()
    }
}

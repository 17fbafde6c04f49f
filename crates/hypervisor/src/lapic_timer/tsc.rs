//! The guest's TSC, as far as its timer needs it.

use core::fmt;

use crate::counter::arith::{TimeScale, mul_shr};
use crate::wide;

/// Fraction bits of a TSC ratio on VMX.
const FRACTION: u32 = 48;
/// Fraction bits of a TSC ratio on SVM.
const SVM_FRACTION: u32 = 32;
/// Bits of a TSC ratio on SVM.
const SVM_RATIO_BITS: u32 = 40;

/// How a guest's TSC follows from the host's, and how long its cycles are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct GuestTsc {
    khz: u32,
    ratio: u64,
    offset: u64,
    /// Turns ns into cycles.
    cycles_of_ns: TimeScale,
}

/// A frequency or ratio of 0, or a ratio that the processor's format does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidTsc {
    /// Guest TSC frequency in kHz.
    pub khz: u32,
    /// Guest cycles per host cycle, with 48 fraction bits (VMX) or 32 (SVM).
    pub ratio: u64,
}

impl fmt::Display for InvalidTsc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "a guest TSC of {} kHz with ratio {:#x} cannot be: both must be above 0, and SVM's \
             ratio below 2^40",
            self.khz, self.ratio
        )
    }
}

impl core::error::Error for InvalidTsc {}

impl GuestTsc {
    /// The ratio of a guest that runs at the host's frequency.
    pub const NEUTRAL: u64 = 1 << FRACTION;

    /// A guest TSC of `khz` that is `offset + host_tsc * ratio / 2^48`.
    ///
    /// # Errors
    /// [`InvalidTsc`] if frequency or ratio is 0.
    pub fn new(khz: u32, ratio: u64, offset: u64) -> Result<Self, InvalidTsc> {
        let cycles_of_ns = TimeScale::ns_to_cycles(khz).map_err(|_| InvalidTsc { khz, ratio })?;
        if ratio == 0 {
            return Err(InvalidTsc { khz, ratio });
        }
        Ok(Self {
            khz,
            ratio,
            offset,
            cycles_of_ns,
        })
    }

    /// The same on SVM: a ratio (MSR C000_0104h) has 8 bits before the point and 32 behind it.
    /// The conversion is exact, since 48 fraction bits hold each such ratio.
    ///
    /// # Errors
    /// [`InvalidTsc`] if frequency or ratio is 0, or if one of the ratio's reserved bits 63:40 is set.
    pub fn on_svm(khz: u32, ratio: u64, offset: u64) -> Result<Self, InvalidTsc> {
        if ratio >> SVM_RATIO_BITS != 0 {
            return Err(InvalidTsc { khz, ratio });
        }
        Self::new(khz, ratio << (FRACTION - SVM_FRACTION), offset)
            .map_err(|_| InvalidTsc { khz, ratio })
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
            mul_shr(host_tsc, self.ratio, FRACTION)
        } else {
            host_tsc
        };
        self.offset.wrapping_add(scaled)
    }

    /// Guest cycles in `ns` (`nsec_to_cycles`).
    #[must_use]
    #[inline]
    pub fn cycles(&self, ns: u64) -> u64 {
        self.cycles_of_ns.scale(ns)
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
        let ns = wide::div(u128::from(cycles) * 1_000_000, u64::from(self.khz.max(1)));
        u64::try_from(ns).unwrap_or(u64::MAX)
    }

    /// Host cycles in guest cycles, rounded down. `None` if they need more than 64 bits.
    #[must_use]
    pub fn host_cycles(&self, cycles: u64) -> Option<u64> {
        if !self.is_scaled() || cycles == 0 {
            return Some(cycles);
        }
        debug_assert_ne!(self.ratio, 0, "checked by `new`");
        u64::try_from(wide::div(u128::from(cycles) << FRACTION, self.ratio)).ok()
    }
}

//! Exact products and scale factors, written once and instantiated at two widths.
//!
//! Production uses 64-bit counters with 128-bit products. The tests instantiate the same lines at
//! 8 bits and try *every* input against a reference. What holds for all inputs at 8 bits by the
//! shape of the code holds at 64.
//!
//! | function | kernel | computes |
//! |---|---|---|
//! | [`mul_shr`] | `mul_u64_u64_shr` | low 64 bits of (a·b) >> shift |
//! | [`mul_shr_signed`] | `mul_s64_u64_shr` | the same on the magnitude, negated: rounds to zero |
//! | [`scale_delta`] | `pvclock_scale_delta` | bits 32…95 of (delta shifted)·mul |
//! | [`time_scale_factors`] | `kvm_get_time_scale` | (shift, mul) that turn base ticks into scaled ones |
//!
//! ```
//! use stealtime_hypervisor::counter::arith::{TimeScale, mul_shr};
//!
//! // Cycles of a 2.5 GHz TSC in ns, as kvmclock pages do it: a shift and a factor of 32 bits.
//! let scale = TimeScale::cycles_to_ns(2_500_000)?;
//! assert_eq!(scale.scale(2_500_000_000), 999_999_999);
//! // A ratio of 1.5 with 48 bits behind the point.
//! assert_eq!(mul_shr(1000, 3 << 47, 48), 1500);
//! # Ok::<(), stealtime_hypervisor::counter::arith::TimeScaleError>(())
//! ```

/// Why no scale factors exist for a pair of rates.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TimeScaleError {
    /// A rate is zero, or the double of the scaled one exceeds 64 bits. Upstream's search for a
    /// normalised pair then never ends, or ends at arbitrary factors. Give both rates in Hz, and
    /// the scaled one below 2^63.
    NoSuchRatio {
        /// The rate to convert to, in Hz.
        scaled_hz: u64,
        /// The rate to convert from, in Hz.
        base_hz: u64,
    },
    /// A frequency that exceeds 64 bits in Hz.
    BeyondHz {
        /// The frequency, in kHz.
        khz: u64,
    },
}

impl core::fmt::Display for TimeScaleError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::NoSuchRatio { scaled_hz, base_hz } => write!(
                f,
                "no scale factors turn {base_hz} Hz into {scaled_hz} Hz: both rates must be above \
                 0 and the second below 2^63"
            ),
            Self::BeyondHz { khz } => {
                write!(
                    f,
                    "{khz} kHz are 2^64 Hz or more: give the frequency in kHz"
                )
            }
        }
    }
}

impl core::error::Error for TimeScaleError {}

/// The arithmetic at one width: `$word` holds a counter, `$double` a product of two,
/// `$half` a multiplier of `$half_bits` bits, `$signed` a signed counter.
macro_rules! counter_arithmetic {
    ($word:ty, $double:ty, $half:ty, $half_bits:expr, $signed:ty) => {
        /// Low word of `(a * b) >> shift`; the product is exact.
        ///
        /// A shift of the product's width or more gives 0, the floor of the true quotient.
        #[must_use]
        pub const fn mul_shr(a: $word, b: $word, shift: u32) -> $word {
            // Two words' product always fits a double word, so the multiplication cannot wrap.
            let product = (a as $double).wrapping_mul(b as $double);
            match product.checked_shr(shift) {
                Some(shifted) => shifted as $word,
                None => 0,
            }
        }

        /// [`mul_shr`] of a signed `a`: on the magnitude, negated afterwards, so it rounds
        /// toward zero. The result is two's complement in an unsigned word.
        #[must_use]
        pub const fn mul_shr_signed(a: $signed, b: $word, shift: u32) -> $word {
            let magnitude = mul_shr(a.unsigned_abs(), b, shift);
            if a < 0 {
                magnitude.wrapping_neg()
            } else {
                magnitude
            }
        }

        /// `delta` shifted by `shift` (left if positive; bits pushed out are lost), times `mul`,
        /// without the low half word.
        #[must_use]
        pub const fn scale_delta(delta: $word, mul: $half, shift: i8) -> $word {
            let distance = shift.unsigned_abs() as u32;
            let shifted = if shift < 0 {
                delta.checked_shr(distance)
            } else {
                delta.checked_shl(distance)
            };
            let shifted = match shifted {
                Some(value) => value,
                None => 0,
            };
            mul_shr(shifted, mul as $word, $half_bits)
        }

        /// `(shift, mul)` such that `scale_delta` turns ticks of `base` Hz into ticks of
        /// `scaled` Hz; `None` where the normalisation has no end.
        #[must_use]
        pub const fn time_scale_factors(scaled: $word, base: $word) -> Option<(i8, $half)> {
            let doubled = scaled.wrapping_mul(2);
            if base == 0 || doubled == 0 {
                return None;
            }
            let half_bits: u32 = $half_bits;
            let (mut rate, mut target, mut shift) = (base, scaled, 0i8);
            // Ends with rate >= 1: `doubled` is even and not 0. Each turn takes one bit of a rate
            // that exceeds it or a half word.
            while rate > doubled || rate >> half_bits != 0 {
                rate >>= 1;
                shift -= 1;
            }
            // From here on the rate is a half word. Each turn brings them closer.
            while rate <= target || target >> half_bits != 0 {
                if target >> half_bits != 0 || rate >> (half_bits - 1) != 0 {
                    target >>= 1;
                } else {
                    rate <<= 1;
                }
                shift += 1;
            }
            // target < rate < 2^half: the quotient is below 2^half.
            Some((shift, ((target << half_bits) / rate) as $half))
        }
    };
}

counter_arithmetic!(u64, u128, u32, 32, i64);

/// The same lines at a width where every input can be tried.
#[cfg(test)]
#[allow(unreachable_pub, reason = "the macro writes the public functions")]
pub(crate) mod narrow {
    counter_arithmetic!(u8, u16, u8, 4, i8);
}

/// A multiplier and a shift that convert ticks of one rate to ticks of another.
///
/// | from → to | shift | mul |
/// |---|---|---|
/// | 2.5 GHz → ns | -1 | 3435973836 |
/// | 3.0 GHz → ns | -1 | 2863311530 |
/// | 1.0 GHz → ns | 1 | 2147483648 |
/// | ns → 2.5 GHz | 2 | 2684354560 |
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct TimeScale {
    /// Multiplier, in units of 2^-32.
    pub mul: u32,
    /// Left shift of the delta before the multiplication; negative shifts right.
    pub shift: i8,
}

impl TimeScale {
    /// The scale of `kvm_get_time_scale(scaled_hz, base_hz)`.
    ///
    /// The base is first halved to at most twice the scaled rate. The error of the factors is
    /// up to one part in `scaled_hz`, plus 2^-29. For ns that is one part in 10^9, and for a
    /// counter of 1 MHz one in 10^6.
    ///
    /// # Errors
    /// [`TimeScaleError::NoSuchRatio`] for a rate of 0, and for a scaled rate of 2^63 or more.
    pub const fn new(scaled_hz: u64, base_hz: u64) -> Result<Self, TimeScaleError> {
        match time_scale_factors(scaled_hz, base_hz) {
            Some((shift, mul)) if scaled_hz >> 63 == 0 => Ok(Self { mul, shift }),
            _ => Err(TimeScaleError::NoSuchRatio { scaled_hz, base_hz }),
        }
    }

    /// Turns nanoseconds into cycles of a counter of `khz` (as `set_tsc_khz` prepares it).
    ///
    /// # Errors
    /// As [`TimeScale::new`]: a frequency of 0.
    pub const fn ns_to_cycles(khz: u32) -> Result<Self, TimeScaleError> {
        Self::new(1000 * khz as u64, NSEC_PER_SEC)
    }

    /// Turns cycles of a counter of `khz` into nanoseconds (a pvclock's factors).
    ///
    /// # Errors
    /// As [`TimeScale::new`]: a frequency of 0; and [`TimeScaleError::BeyondHz`].
    pub const fn cycles_to_ns(khz: u64) -> Result<Self, TimeScaleError> {
        match khz.checked_mul(1000) {
            Some(hz) => Self::new(NSEC_PER_SEC, hz),
            None => Err(TimeScaleError::BeyondHz { khz }),
        }
    }

    /// Converts a difference of ticks; see [`scale_delta`].
    #[must_use]
    pub const fn scale(self, delta: u64) -> u64 {
        scale_delta(delta, self.mul, self.shift)
    }
}

/// Nanoseconds in a second.
pub const NSEC_PER_SEC: u64 = 1_000_000_000;

/// `khz` moved by `ppm` parts per million, in 64 bits, cut to 32 (`adjust_tsc_khz`).
#[must_use]
pub const fn adjust_khz(khz: u32, ppm: i32) -> u32 {
    // |khz * (10^6 + ppm)| < 2^32 * 2^32: an i128 holds it, and the kernel's u64 wraps alike.
    let scaled = (khz as u64).wrapping_mul((1_000_000i64 + ppm as i64) as u64);
    (scaled / 1_000_000) as u32
}

#[cfg(test)]
mod tests;

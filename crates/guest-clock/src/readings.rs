//! A guest's readings of its counter one by one, native and trapped: average, standard deviation and
//! 95th percentile. The series that added arm64's counter offset reports its own in this form.
//!
//! ```no_run
//! use guest_clock::readings::{HEADING, readings};
//!
//! println!("{HEADING}");
//! for reading in readings()? {
//!     println!("{reading}");
//! }
//! # Ok::<(), guest_clock::guest::GuestError>(())
//! ```

use std::fmt;

use serde::Serialize;

use crate::guest::{Guest, GuestError};
#[cfg(target_arch = "x86_64")]
use crate::kvm::rdtsc;

/// Readings of each kind, as many as in that series.
const TIMES: usize = 10_000;

/// How long single readings took, in ps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Spread {
    /// On average.
    pub average_ps: u64,
    /// Standard deviation.
    pub deviation_ps: u64,
    /// 95 of 100 took at most this.
    pub p95_ps: u64,
}

impl Spread {
    /// Of 10000 readings, each from one `RDTSC` to the next.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn measure(tsc_khz: u32, mut read: impl FnMut() -> u64) -> Self {
        let once = |_| {
            let begin = rdtsc();
            std::hint::black_box(read());
            rdtsc().wrapping_sub(begin)
        };
        let mut cycles: Vec<u64> = (0..TIMES).map(once).collect();
        Self::of(&mut cycles, u64::from(tsc_khz) * 1000)
    }

    /// Of durations in cycles of this frequency.
    fn of(cycles: &mut [u64], hz: u64) -> Self {
        cycles.sort_unstable();
        let count = cycles.len().max(1) as f64;
        let average = cycles.iter().map(|c| *c as f64).sum::<f64>() / count;
        let squares = cycles.iter().map(|c| (*c as f64 - average).powi(2));
        let deviation = (squares.sum::<f64>() / count).sqrt();
        // The nearest rank.
        let rank = (cycles.len() * 95).div_ceil(100).max(1);
        let p95 = cycles.get(rank - 1).copied().unwrap_or(0);
        // Cycles over Hz are s, of 10^12 ps. What is beyond 64 bits is cut to their end.
        let ps = |cycles: f64| (cycles * 1e12 / hz.max(1) as f64).round() as u64;
        Self {
            average_ps: ps(average),
            deviation_ps: ps(deviation),
            p95_ps: ps(p95 as f64),
        }
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = |ps: u64| format!("{}.{}", ps / 1000, ps % 1000 / 100);
        let [average, deviation, p95] = [self.average_ps, self.deviation_ps, self.p95_ps].map(ns);
        write!(f, "{average:>10}{deviation:>12}{p95:>10}")
    }
}

/// Single readings of a counter by a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Reading {
    /// The counter, and what answers.
    pub what: &'static str,
    /// How long the readings took. The time of the counter that measures is in it.
    pub spread: Spread,
}

impl fmt::Display for Reading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<36}{}", self.what, self.spread)
    }
}

/// The heading of a table of [`Reading`]s.
pub const HEADING: &str =
    "a guest's 10000 readings, ns                average   deviation      95 %";

/// Measures 10000 readings of each kind by a guest: native, and trapped by KVM.
///
/// # Errors
/// [`GuestError`], [`GuestError::Host`] among them.
#[cfg(target_arch = "x86_64")]
pub fn readings() -> Result<Vec<Reading>, GuestError> {
    use crate::guest::Reader;

    let hz = u64::from(crate::kvm::host()?.facts().tsc_khz) * 1000;
    let kinds = [
        ("RDTSC, native", Reader::EachRdtsc),
        ("RDMSR of the TSC, trapped", Reader::EachRdmsr),
    ];
    let measure = |(name, reader)| {
        let mut cycles = Guest::each(reader, TIMES)?;
        let spread = Spread::of(&mut cycles, hz);
        Ok(Reading { what: name, spread })
    };
    kinds.into_iter().map(measure).collect()
}

/// Measures 10000 readings of each kind by a guest: native, and trapped by KVM. An offset of the VM makes
/// KVM trap the physical counter, unless the CPU subtracts the offset itself.
///
/// # Errors
/// [`GuestError`], [`GuestError::Host`] among them.
#[cfg(target_arch = "aarch64")]
pub fn readings() -> Result<Vec<Reading>, GuestError> {
    use crate::guest::Counter::{Physical, Virtual};

    let kinds = [
        ("CNTVCT_EL0", Virtual, None),
        ("CNTPCT_EL0 without an offset", Physical, None),
        ("CNTPCT_EL0 with an offset", Physical, Some(1)),
    ];
    let measure = |(name, counter, offset)| {
        let mut ticks = Guest::readings(counter, offset)?;
        debug_assert_eq!(ticks.len(), TIMES);
        let spread = Spread::of(&mut ticks, crate::kvm::counter_hz());
        Ok(Reading { what: name, spread })
    };
    kinds.into_iter().map(measure).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_average_deviation_and_the_95th_percentile() {
        // 19 of 20 readings take 54 cycles, one takes 154: at 1 GHz a cycle is a ns.
        let mut cycles = vec![54; 20];
        cycles[7] = 154;
        let spread = Spread::of(&mut cycles, 1_000_000_000);
        assert_eq!((spread.average_ps, spread.p95_ps), (59_000, 54_000));
        // sqrt((19 * 5^2 + 95^2) / 20)
        assert_eq!(spread.deviation_ps, 21_794);
        cycles[3] = 300;
        assert_eq!(Spread::of(&mut cycles, 2_000_000_000).p95_ps, 77_000);
        assert_eq!(Spread::of(&mut [], 0), Spread::default());
    }
}

//! Every input at 8 bits; what is particular to 64 bits by hand.

use super::narrow;
use super::*;

/// Every input; for Miri some: it finds in integers what the compiler's checks find too.
const STEP: usize = if cfg!(miri) { 37 } else { 1 };

#[test]
fn narrow_products_are_exact_for_every_input() {
    for a in (0..=u8::MAX).step_by(STEP) {
        for b in 0..=u8::MAX {
            let product = u32::from(a) * u32::from(b);
            let signed = i32::from(a as i8) * i32::from(b);
            for shift in 0..=20 {
                assert_eq!(narrow::mul_shr(a, b, shift), (product >> shift) as u8);
                // Truncating division rounds toward zero.
                let expected = (signed / (1 << shift)) as u8;
                let got = narrow::mul_shr_signed(a as i8, b, shift);
                assert_eq!(got, expected, "{} * {b} >> {shift}", a as i8);
            }
        }
    }
}

#[test]
fn narrow_deltas_scale_for_every_input() {
    for delta in (0..=u8::MAX).step_by(STEP) {
        for mul in 0..16 {
            for shift in -130i32..=127 {
                let Ok(shift) = i8::try_from(shift) else {
                    continue;
                };
                let shifted = match shift {
                    -7..0 => delta >> -shift,
                    0..8 => ((u32::from(delta) << shift) & 0xff) as u8,
                    _ => 0,
                };
                let expected = ((u32::from(shifted) * u32::from(mul)) >> 4) as u8;
                let got = narrow::scale_delta(delta, mul, shift);
                assert_eq!(got, expected, "{delta} {mul} {shift}");
            }
        }
    }
}

/// Ends for every pair, refuses exactly those without an end, and is as close to the true ratio
/// as the bits kept allow.
#[test]
fn narrow_time_scales_are_close_for_every_pair() {
    for scaled in (0..=u8::MAX).step_by(STEP) {
        for base in 0..=u8::MAX {
            let factors = narrow::time_scale_factors(scaled, base);
            let no_end = base == 0 || scaled.wrapping_mul(2) == 0;
            assert_eq!(factors.is_none(), no_end, "{scaled} / {base}");
            let Some((shift, mul)) = factors else {
                continue;
            };
            assert!(mul < 16, "{scaled} / {base}: multiplier {mul}");
            // Above half the range the doubled rate wraps, as it does upstream.
            if scaled > 127 {
                continue;
            }
            // |mul * 2^shift / 16 * base / scaled - 1| * least <= 2, in units of 2^-24.
            let (scaled, base) = (i64::from(scaled), i64::from(base));
            let least = scaled.min(8);
            let made = (i64::from(mul) * base) << (20 + i64::from(shift));
            let error = (made - (scaled << 24)).abs() * least;
            assert!(error <= 2 * (scaled << 24), "{scaled} / {base}: {error}");
        }
    }
}

#[test]
fn shifts_of_the_whole_product_leave_nothing() {
    assert_eq!(mul_shr(u64::MAX, u64::MAX, 127), 1);
    assert_eq!(mul_shr(u64::MAX, u64::MAX, 128), 0);
    assert_eq!(mul_shr(u64::MAX, u64::MAX, u32::MAX), 0);
    assert_eq!(scale_delta(1, u32::MAX, 64), 0);
    assert_eq!(scale_delta(u64::MAX, u32::MAX, i8::MIN), 0);
}

#[test]
fn the_least_signed_number_has_a_magnitude() {
    assert_eq!(mul_shr_signed(i64::MIN, 1, 0), 1 << 63);
    assert_eq!(mul_shr_signed(i64::MIN, 1 << 48, 48), 1 << 63);
    assert_eq!(mul_shr_signed(-1, 1, 1), 0);
}

/// The table in the documentation of [`TimeScale`], and the examples of the ABI.
#[test]
fn scales_of_usual_frequencies() {
    let to_ns = |khz| TimeScale::cycles_to_ns(khz).map(|s| (s.shift, s.mul));
    assert_eq!(to_ns(2_500_000), Ok((-1, 3_435_973_836)));
    assert_eq!(to_ns(3_000_000), Ok((-1, 2_863_311_530)));
    assert_eq!(to_ns(1_000_000), Ok((1, 2_147_483_648)));
    let to_cycles = TimeScale::ns_to_cycles(2_500_000).map(|s| (s.shift, s.mul));
    assert_eq!(to_cycles, Ok((2, 2_684_354_560)));
}

#[test]
fn rates_without_an_end_are_refused_with_both_rates() {
    let refused = |scaled_hz, base_hz| {
        let expected = TimeScaleError::NoSuchRatio { scaled_hz, base_hz };
        assert_eq!(TimeScale::new(scaled_hz, base_hz), Err(expected));
    };
    refused(0, 1_000_000_000);
    refused(1_000_000_000, 0);
    // Doubled they leave 64 bits: to nothing, and to a number that has nothing to do with them.
    refused(1 << 63, 1_000_000_000);
    refused((1 << 63) + 5, 1_000_000_000);
    refused(u64::MAX, u64::MAX);
    // Frequencies that wrap in Hz, to zero and to other values.
    for khz in [1 << 61, u64::MAX / 1000 + 1, u64::MAX] {
        let beyond = Err(TimeScaleError::BeyondHz { khz });
        assert_eq!(TimeScale::cycles_to_ns(khz), beyond);
    }
    assert!(TimeScale::cycles_to_ns(u64::MAX / 1000).is_ok());
    assert!(TimeScale::ns_to_cycles(0).is_err());
}

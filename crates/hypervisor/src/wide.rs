//! Division of 128 bits by 64.
//!
//! The operator `/` on 128 bits calls `__udivti3`, which kernels do not have (Rust for Linux refuses
//! it). These functions divide 64 bits at a time. Divisors are not 0.

/// `(high * 2^64 + low) / divisor`, where `high` is below the divisor, so that the quotient has 64 bits.
///
/// Long division by two digits of 32 bits (Knuth, algorithm D; `div128_u64` of Linux `lib/math/div64.c`
/// has the same task).
const fn div_digits(high: u64, low: u64, divisor: u64) -> u64 {
    let shift = divisor.leading_zeros();
    let divisor = divisor << shift;
    // A shift by 64 is none: `high` takes no bits of `low` then.
    let carried = if shift == 0 { 0 } else { low >> (64 - shift) };
    let high = high << shift | carried;
    let low = low << shift;
    let (first, rest) = div_digit(high, low >> 32, divisor);
    let (second, _) = div_digit(rest, low & DIGIT, divisor);
    first << 32 | second
}

/// The lower digit of a word.
const DIGIT: u64 = (1 << 32) - 1;

/// One digit of the quotient, and the rest: `rest * 2^32 + next` by a divisor with its top bit set.
const fn div_digit(rest: u64, next: u64, divisor: u64) -> (u64, u64) {
    let (top, bottom) = (divisor >> 32, divisor & DIGIT);
    let mut digit = rest / top;
    let mut remainder = rest % top;
    // The estimate is at most 2 too large.
    while digit > DIGIT || digit * bottom > (remainder << 32 | next) {
        digit -= 1;
        remainder += top;
        if remainder > DIGIT {
            break;
        }
    }
    let rest = (rest << 32 | next).wrapping_sub(digit.wrapping_mul(divisor));
    (digit, rest)
}

/// `value / divisor`, rounded down.
#[inline]
pub(crate) const fn div(value: u128, divisor: u64) -> u128 {
    let (high, low) = ((value >> 64) as u64, value as u64);
    if high == 0 {
        return (low / divisor) as u128;
    }
    let upper = high / divisor;
    let lower = div_digits(high % divisor, low, divisor);
    (upper as u128) << 64 | lower as u128
}

/// `value / divisor`, rounded up.
pub(crate) const fn div_ceil(value: u128, divisor: u64) -> u128 {
    let quotient = div(value, divisor);
    // Below 2^128: the product is at most `value`.
    let is_exact = quotient.wrapping_mul(divisor as u128) == value;
    quotient + !is_exact as u128
}

/// `value / divisor`, truncated toward 0.
#[cfg(feature = "alloc")]
pub(crate) const fn div_signed(value: i128, divisor: u64) -> i128 {
    let quotient = div(value.unsigned_abs(), divisor) as i128;
    if value < 0 {
        quotient.wrapping_neg()
    } else {
        quotient
    }
}

#[cfg(test)]
#[cfg(feature = "alloc")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Words with digits of only zeros or ones, where an estimate is wrong.
    fn word() -> impl Strategy<Value = u64> {
        let digit = || prop_oneof![Just(0), Just(1), Just(DIGIT), Just(DIGIT - 1), 0..=DIGIT];
        (digit(), digit()).prop_map(|(high, low)| high << 32 | low)
    }

    proptest! {
        #[test]
        fn quotients_equal_those_of_the_operator(high in word(), low in word(), divisor in word()) {
            let value = u128::from(high) << 64 | u128::from(low);
            let divisor = divisor.max(1);
            let wide = u128::from(divisor);
            prop_assert_eq!(div(value, divisor), value / wide);
            prop_assert_eq!(div_ceil(value, divisor), value.div_ceil(wide));
            let signed = value as i128;
            prop_assert_eq!(div_signed(signed, divisor), signed.wrapping_div(i128::from(divisor)));
        }
    }

    #[test]
    fn every_quotient_of_small_words() {
        for high in 0..40u64 {
            for low in [0, 1, DIGIT, u64::MAX] {
                for divisor in 1..40u64 {
                    let value = u128::from(high) << 64 | u128::from(low);
                    assert_eq!(div(value, divisor), value / u128::from(divisor));
                }
            }
        }
    }
}

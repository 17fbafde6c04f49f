//! Products and quotients of times and rates.

use crate::config::Costs;

/// `a * b / c`, rounded down; a result beyond `u64` saturates. `c` is not 0.
///
/// 64 bits are nearly always enough, and their division takes a part of the time.
#[inline]
pub(crate) fn mul_div(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product / c,
        None => narrow(u128::from(a) * u128::from(b) / u128::from(c)),
    }
}

/// The same, rounded up.
#[inline]
pub(crate) fn mul_div_ceil(a: u64, b: u64, c: u64) -> u64 {
    match a.checked_mul(b) {
        Some(product) => product.div_ceil(c),
        None => narrow((u128::from(a) * u128::from(b)).div_ceil(u128::from(c))),
    }
}

impl Costs {
    /// The TSC of the host after `ns` of the run.
    pub(crate) fn tsc(&self, ns: u64) -> u64 {
        mul_div(ns, u64::from(self.tsc_khz), 1_000_000)
    }

    /// How long so many cycles of the TSC take, in ns; at least that.
    pub(crate) fn ns_of_tsc(&self, cycles: u64) -> u64 {
        mul_div_ceil(cycles, 1_000_000, u64::from(self.tsc_khz.max(1)))
    }

    /// How long so many cycles of a program take, in ns, rounded down.
    pub(crate) fn ns_of_cycles(&self, cycles: u64) -> u64 {
        mul_div(cycles, 1_000_000, u64::from(self.tsc_khz.max(1)))
    }
}

fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::{mul_div, mul_div_ceil};

    #[test]
    fn is_exact_where_the_product_needs_more_than_64_bits() {
        assert_eq!((mul_div(7, 3, 2), mul_div_ceil(7, 3, 2)), (10, 11));
        assert_eq!(mul_div_ceil(8, 3, 2), 12);
        let huge = u64::MAX - 1;
        assert_eq!(
            (mul_div(huge, 3, 6), mul_div_ceil(huge, 3, 6)),
            (huge / 2, huge / 2)
        );
        assert_eq!(
            (mul_div(huge, 5, 10), mul_div_ceil(huge - 1, 5, 10)),
            (huge / 2, huge / 2)
        );
        assert_eq!(
            (mul_div(huge, 4, 3), mul_div_ceil(huge, 4, 3)),
            (u64::MAX, u64::MAX)
        );
    }
}

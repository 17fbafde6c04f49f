//! The arithmetic of a credit, without queues: plain numbers in, plain numbers out.
//!
//! Another implementation of the credit is compared with these functions, bit by bit. The BPF
//! program of `sched-ext` is one.
//!
//! ```
//! use stealtime_hypervisor::lag_credit::arithmetic::{credit_lag, credit_shift};
//!
//! // Four members, a margin of 1 ms each: a lag of 3 ms, cut to a bound of 2 ms.
//! assert_eq!(credit_lag(4, 1_000_000, 2_000_000), Some(2_000_000));
//! // From a lag of 0, one of four equal members moves back by 4/3 of that.
//! assert_eq!(credit_shift(0, 2_000_000, 1024, 4096), Some(2_666_666));
//! assert_eq!(credit_lag(1, 1_000_000, 2_000_000), None);
//! ```

pub use super::force::{averaged as averaged_gap, interval_ns, is_due};
pub use super::guard::{CreditRequest, Tokens};
use crate::wide;

/// Lag after a credit, `margin_ns * (members - 1)`, at most `bound`; none for the only member.
#[must_use]
pub fn credit_lag(members: u64, margin_ns: u64, bound: i64) -> Option<i64> {
    Some(full_margin(members, margin_ns)?.min(bound))
}

/// [`credit_lag`] without its bound.
pub(super) fn full_margin(members: u64, margin_ns: u64) -> Option<i64> {
    if members <= 1 {
        return None;
    }
    let margin = u128::from(margin_ns) * u128::from(members - 1);
    Some(i64::try_from(margin).unwrap_or(i64::MAX))
}

/// The distance by which a member moves back for its lag to rise from `lag` to `target`.
///
/// It is part of the average: moving it by d moves the average by d * w / W. So it moves by
/// `(target - lag) * W / (W - w)`, where `weight` is w and `total` is W. None without other members.
#[must_use]
pub fn credit_shift(lag: i64, target: i64, weight: u64, total: u64) -> Option<u64> {
    let rest = total.checked_sub(weight).filter(|rest| *rest > 0)?;
    let gain = i128::from(target) - i128::from(lag);
    let shift = wide::div_signed(gain * i128::from(total), rest);
    Some(shift.clamp(0, i128::from(i64::MAX)) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Worked by hand, as for the BPF program (`sched-ext/arithmetic/tests/equal.rs`).
    #[test]
    fn a_credit_is_a_margin_for_each_other_member() {
        assert_eq!(credit_lag(3, 50_000, 5_400_000), Some(100_000));
        assert_eq!(credit_lag(100, 50_000, 4_000_000), Some(4_000_000));
        assert_eq!(credit_lag(1, 50_000, 4_000_000), None);
        // Of three equal tasks one moves by 3/2 of the gain in lag.
        let shift = credit_shift(-1_000_000, 100_000, 1 << 20, 3 << 20);
        assert_eq!(shift, Some(1_650_000));
        assert_eq!(credit_shift(0, 1, 1 << 20, 1 << 20), None);
    }

    #[test]
    fn a_gap_moves_its_average_by_an_eighth() {
        assert_eq!(averaged_gap(None, 1_600), 1_600);
        assert_eq!(averaged_gap(Some(800), 1_600), 900);
        assert_eq!(averaged_gap(Some(1_600), 800), 1_500);
        assert_eq!(averaged_gap(Some(1_600), 1_600), 1_600);
    }
}

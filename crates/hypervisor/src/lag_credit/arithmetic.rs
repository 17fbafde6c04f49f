//! The arithmetic of a credit, without queues: plain numbers in, plain numbers out.
//!
//! Another implementation of the credit is compared with these functions, bit by bit. The BPF
//! program of `sched-ext` is one.

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

//! What a tick is: from the trace's own expiries of timers.

use super::fields::int;

/// A frequency that the trace itself tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Estimate {
    /// kHz.
    pub(super) khz: u64,
    /// Half the spread of the middle half of the slopes, in kHz.
    pub(super) error_khz: u64,
    /// How many expiries it rests on.
    pub(super) pairs: usize,
}

/// Frequencies that the TSC of a host can have, in kHz. A counter of events or of jiffies lies
/// below.
const PLAUSIBLE: std::ops::RangeInclusive<u64> = 200_000..=10_000_000;

/// How many expiries it takes.
const MIN_PAIRS: usize = 8;

/// How far apart in time the first and last expiry must be, in ns: the first look at the clock in
/// the interrupt and the event in the trace are microseconds apart.
const MIN_SPAN_NS: u64 = 10_000_000;

/// The time of the interrupt in `hrtimer_expire_entry`, in ns: the one event with a second clock.
pub(super) fn expiry_now(event: &[u8], body: &[u8]) -> Option<u64> {
    let now: Option<i64> = (event == b"hrtimer_expire_entry")
        .then(|| int(body, "now"))
        .flatten();
    now.map(i64::cast_unsigned)
}

/// Estimates the frequency from pairs of (ticks, `now` in ns), in the order of the trace.
///
/// `now` is read at the start of an interrupt that may let several timers expire, so only the first
/// event with a `now` counts. Slopes are taken over half of the span each, and their median is the
/// answer: a late event among them does not matter.
pub(super) fn estimate(pairs: &[(u64, u64)]) -> Option<Estimate> {
    let mut pairs = pairs.to_vec();
    pairs.sort_by_key(|(ticks, now)| (*now, *ticks));
    pairs.dedup_by_key(|(_, now)| *now);
    let half = pairs.len() / 2;
    let (first, last) = (pairs.first()?, pairs.last()?);
    if pairs.len() < MIN_PAIRS || last.1 - first.1 < MIN_SPAN_NS {
        return None;
    }
    let later = pairs.get(half..)?;
    let mut slopes: Vec<u64> = pairs
        .iter()
        .zip(later)
        .filter_map(|(a, b)| {
            let ticks = u128::from(b.0.checked_sub(a.0)?);
            let ns = u128::from(b.1.checked_sub(a.1)?);
            u64::try_from((ticks * 1_000_000).checked_div(ns)?).ok()
        })
        .collect();
    slopes.sort_unstable();
    let at = |part: usize| slopes.get(slopes.len() * part / 4).copied();
    let khz = at(2)?;
    let error_khz = at(3)?.saturating_sub(at(1)?).div_ceil(2);
    // A clock that is linear in time spreads by far less than a hundredth.
    let linear = error_khz <= khz / 100;
    (PLAUSIBLE.contains(&khz) && linear).then_some(Estimate {
        khz,
        error_khz,
        pairs: pairs.len(),
    })
}

/// Ticks to ns: `ticks * 1_000_000 / khz`, rounded down.
///
/// | ticks | khz | ns |
/// |---|---|---|
/// | 2_000_000 | 2_000_000 | 1_000_000 |
/// | 3 | 2_000_000 | 1 |
pub(super) fn ns(ticks: u64, khz: u64) -> u64 {
    let ns = (u128::from(ticks) * 1_000_000)
        .checked_div(u128::from(khz))
        .unwrap_or(0);
    u64::try_from(ns).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_frequency_through_late_events() {
        let pairs: Vec<(u64, u64)> = (0..200_u64)
            .map(|i| {
                let now = 5_000_000_000 + i * 1_000_000;
                let late = if i % 7 == 0 {
                    300_000
                } else {
                    2_000 + i * 37 % 900
                };
                ((now + late) * 23 / 10, now)
            })
            .collect();
        let estimate = estimate(&pairs).expect("enough pairs");
        assert!(estimate.khz.abs_diff(2_300_000) < 100, "{estimate:?}");
        assert!(estimate.error_khz < 100, "{estimate:?}");
    }

    #[test]
    fn a_counter_of_events_is_no_tsc() {
        let pairs: Vec<(u64, u64)> = (0..200).map(|i| (i * 40, 1_000_000 * i)).collect();
        assert_eq!(estimate(&pairs), None);
    }

    #[test]
    fn few_or_close_expiries_tell_nothing() {
        assert_eq!(estimate(&[]), None);
        assert_eq!(estimate(&[(1, 1); 100]), None);
        let close: Vec<(u64, u64)> = (0..20).map(|i| (i * 2_000, i * 1_000)).collect();
        assert_eq!(estimate(&close), None);
    }

    #[test]
    fn ticks_convert_without_overflow() {
        assert_eq!(ns(2_000_000, 2_000_000), 1_000_000);
        assert_eq!(ns(3, 2_000_000), 1);
        assert_eq!(ns(u64::MAX, 2_000_000), u64::MAX / 2);
        assert_eq!(ns(5, 0), 0);
        assert_eq!(ns(u64::MAX, 1), u64::MAX);
    }
}

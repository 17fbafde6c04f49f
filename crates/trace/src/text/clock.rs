//! The frequency of ticks, from the trace's own expiries of timers.

use super::fields::int;

/// A frequency estimated from a trace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Estimate {
    /// kHz.
    pub(super) khz: u64,
    /// Half the spread of the middle half of the slopes, in kHz.
    pub(super) error_khz: u64,
    /// Number of expiries that it rests on.
    pub(super) pairs: usize,
}

/// Frequencies that the TSC of a host can have, in kHz. A counter of events or of jiffies lies
/// below.
const PLAUSIBLE: std::ops::RangeInclusive<u64> = 200_000..=10_000_000;

/// Expiries that an estimate needs: the quartiles of fewer slopes say little.
const MIN_PAIRS: usize = 8;

/// Time from the first to the last expiry that an estimate needs, in ns. The interrupt reads its clock
/// some microseconds before the event: that is 1/1000 of this.
const MIN_SPAN_NS: u64 = 10_000_000;

/// The time of the interrupt in `hrtimer_expire_entry`, in ns: the one event with a second clock.
pub(super) fn expiry_now(event: &[u8], body: &[u8]) -> Option<u64> {
    let now: Option<i64> = (event == b"hrtimer_expire_entry")
        .then(|| int(body, "now"))
        .flatten();
    now.map(i64::cast_unsigned)
}

/// An expiry: the event's time, and the interrupt's time of a second clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Expiry {
    pub(super) ticks: u64,
    pub(super) now_ns: u64,
}

/// Estimates the frequency from expiries. `None` where they are too few or too close, or not linear.
///
/// An interrupt reads `now` at its start and may expire several timers, so only the first event with a
/// `now` counts. Each slope spans half of the expiries. Their median is the estimate, so that a late
/// event among them does not matter.
pub(super) fn estimate(mut pairs: Vec<Expiry>) -> Option<Estimate> {
    pairs.sort_by_key(|pair| (pair.now_ns, pair.ticks));
    pairs.dedup_by_key(|pair| pair.now_ns);
    let half = pairs.len() / 2;
    let (first, last) = (pairs.first()?, pairs.last()?);
    if pairs.len() < MIN_PAIRS || last.now_ns - first.now_ns < MIN_SPAN_NS {
        return None;
    }
    let later = pairs.get(half..)?;
    let mut slopes: Vec<u64> = pairs
        .iter()
        .zip(later)
        .filter_map(|(a, b)| {
            let ticks = u128::from(b.ticks.checked_sub(a.ticks)?);
            let ns = u128::from(b.now_ns.checked_sub(a.now_ns)?);
            u64::try_from((ticks * 1_000_000).checked_div(ns)?).ok()
        })
        .collect();
    slopes.sort_unstable();
    let quartile = |part: usize| slopes.get(slopes.len() * part / 4).copied();
    let khz = quartile(2)?;
    let error_khz = quartile(3)?.saturating_sub(quartile(1)?).div_ceil(2);
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

    fn estimate_of(pairs: &[(u64, u64)]) -> Option<Estimate> {
        let expiry = |&(ticks, now_ns)| Expiry { ticks, now_ns };
        estimate(pairs.iter().map(expiry).collect())
    }

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
        let estimate = estimate_of(&pairs).expect("enough pairs");
        assert!(estimate.khz.abs_diff(2_300_000) < 100, "{estimate:?}");
        assert!(estimate.error_khz < 100, "{estimate:?}");
    }

    #[test]
    fn a_counter_of_events_is_no_tsc() {
        let pairs: Vec<(u64, u64)> = (0..200).map(|i| (i * 40, 1_000_000 * i)).collect();
        assert_eq!(estimate_of(&pairs), None);
    }

    #[test]
    fn few_or_close_expiries_tell_nothing() {
        assert_eq!(estimate_of(&[]), None);
        assert_eq!(estimate_of(&[(1, 1); 100]), None);
        let close: Vec<(u64, u64)> = (0..20).map(|i| (i * 2_000, i * 1_000)).collect();
        assert_eq!(estimate_of(&close), None);
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

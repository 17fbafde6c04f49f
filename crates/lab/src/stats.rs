//! Means, confidence intervals and differences, the same on every machine.
//!
//! Only `+ - * /` and `sqrt` are used, which IEEE 754 fixes to the last bit. Sums run in the order of
//! the seeds.

use serde::Serialize;

/// Two-sided 95 % quantiles of Student's t with 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706_204_736,
    4.302_652_730,
    3.182_446_305,
    2.776_445_105,
    2.570_581_836,
    2.446_911_851,
    2.364_624_252,
    2.306_004_135,
    2.262_157_163,
    2.228_138_852,
    2.200_985_160,
    2.178_812_830,
    2.160_368_656,
    2.144_786_688,
    2.131_449_546,
    2.119_905_299,
    2.109_815_578,
    2.100_922_040,
    2.093_024_054,
    2.085_963_447,
    2.079_613_845,
    2.073_873_068,
    2.068_657_610,
    2.063_898_562,
    2.059_538_553,
    2.055_529_439,
    2.051_830_516,
    2.048_407_142,
    2.045_229_642,
    2.042_272_456,
];

/// The normal distribution's.
const Z: f64 = 1.959_963_984_540_054;

/// The two-sided 95 % quantile of Student's t: `None` without a degree of freedom.
///
/// Beyond the table, the first three terms of the Cornish–Fisher expansion, which are right to six
/// decimals there.
#[must_use]
pub fn t95(freedom: usize) -> Option<f64> {
    if let Some(t) = T.get(freedom.checked_sub(1)?) {
        return Some(*t);
    }
    let v = freedom as f64;
    let (z3, z5, z7) = (Z * Z * Z, Z * Z * Z * Z * Z, Z * Z * Z * Z * Z * Z * Z);
    let first = (z3 + Z) / (4.0 * v);
    let second = (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * v * v);
    let third = (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * Z) / (384.0 * v * v * v);
    Some(Z + first + second + third)
}

/// A mean and how well it is known.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// Half the width of its 95 % confidence interval; `None` for a single value.
    pub half_width: Option<f64>,
    /// How many values.
    pub n: usize,
}

/// The mean of values; `None` of none.
///
/// ```
/// use stealtime_lab::stats::estimate;
/// let e = estimate(&[9.0, 10.0, 11.0]).expect("three values");
/// assert_eq!(e.mean, 10.0);
/// // 4.303 (2 degrees of freedom) * 1 (standard deviation) / sqrt(3)
/// assert!((e.half_width.expect("more than one") - 2.484).abs() < 0.001);
/// ```
#[must_use]
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let n = values.len();
    let first = *values.first()?;
    let mean = match values.iter().all(|value| *value == first) {
        // A sum may round: the mean of equal values is one of them.
        true => first,
        false => values.iter().sum::<f64>() / n as f64,
    };
    let squares: f64 = values
        .iter()
        .map(|value| (value - mean) * (value - mean))
        .sum();
    let half_width = t95(n - 1).map(|t| {
        let variance = squares / (n - 1) as f64;
        t * (variance / n as f64).sqrt()
    });
    Some(Estimate {
        mean,
        half_width,
        n,
    })
}

/// Whether some group has several items, and those of each group are equal.
pub(crate) fn all_equal<T: PartialEq>(
    groups: impl IntoIterator<Item = impl IntoIterator<Item = T>>,
) -> bool {
    let mut is_compared = false;
    for group in groups {
        let mut items = group.into_iter();
        let first = items.next();
        for item in items {
            is_compared = true;
            if Some(item) != first {
                return false;
            }
        }
    }
    is_compared
}

/// Half the width of the 95 % confidence interval of the difference of the means of two samples, by Welch's
/// t: variances may differ. `None` with fewer than two values on a side.
#[must_use]
pub fn welch_half_width(first: &[f64], second: &[f64]) -> Option<f64> {
    let variance_of_mean = |values: &[f64]| {
        let width = estimate(values)?.half_width?;
        let half = width / t95(values.len() - 1)?;
        Some(half * half)
    };
    let (a, b) = (variance_of_mean(first)?, variance_of_mean(second)?);
    let sum = a + b;
    if sum == 0.0 {
        return Some(0.0);
    }
    let freedom =
        sum * sum / (a * a / (first.len() - 1) as f64 + b * b / (second.len() - 1) as f64);
    // Rounded down, so that the interval is not too narrow.
    Some(t95((freedom as usize).max(1))? * sum.sqrt())
}

/// What a difference means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Every pair is equal.
    Same,
    /// The interval of the difference includes 0.
    WithinNoise,
    /// It does not, and the metric went the right way.
    Better,
    /// It does not, and the metric went the wrong way.
    Worse,
    /// It does not, and the metric has no right way.
    Different,
    /// There is one pair only, which has no interval.
    Unknown,
}

/// The difference between two variants, paired by seed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Difference {
    /// Mean difference and its interval.
    pub estimate: Estimate,
    /// The same in percent of the first variant's mean; `None` if that is 0.
    pub percent: Option<f64>,
    /// Half the width of the interval in percent.
    pub percent_half_width: Option<f64>,
    /// What it means.
    pub verdict: Verdict,
}

/// From this change on, in percent of the first variant's mean, a difference matters.
const RELEVANT_PERCENT: f64 = 1.0;
/// Of a share, in percentage points.
const RELEVANT_POINTS: f64 = 0.1;

impl Difference {
    /// Whether it is large enough to stand out, whatever its interval: 1 % of the first variant's mean, or
    /// 0.1 points of a share. Of nothing every change is large.
    #[must_use]
    pub fn is_relevant(&self, unit: crate::metric::Unit) -> bool {
        match unit {
            crate::metric::Unit::Percent => self.estimate.mean.abs() >= RELEVANT_POINTS,
            _ => self.percent.is_none_or(|p| p.abs() >= RELEVANT_PERCENT),
        }
    }
}

/// The difference of the second values from the first ones, pair by pair; `None` without a pair.
///
/// Runs with the same seed share their random numbers, so that common noise cancels. The interval of
/// the difference is narrower than those of the two means.
#[must_use]
pub fn difference(
    firsts: &[f64],
    seconds: &[f64],
    better: crate::metric::Better,
) -> Option<Difference> {
    let pairs = firsts.iter().zip(seconds);
    let differences: Vec<f64> = pairs.map(|(first, second)| second - first).collect();
    let estimate = self::estimate(&differences)?;
    // A list may be longer where runs failed.
    let base = self::estimate(firsts.get(..differences.len())?)?.mean;
    let percent = |value: f64| (base != 0.0).then(|| value / base.abs() * 100.0);
    Some(Difference {
        estimate,
        percent: percent(estimate.mean),
        percent_half_width: estimate.half_width.and_then(percent),
        verdict: verdict(&estimate, &differences, better),
    })
}

fn verdict(estimate: &Estimate, differences: &[f64], better: crate::metric::Better) -> Verdict {
    use crate::metric::Better;
    if differences.iter().all(|difference| *difference == 0.0) {
        return Verdict::Same;
    }
    let Some(half_width) = estimate.half_width else {
        return Verdict::Unknown;
    };
    if estimate.mean.abs() <= half_width {
        return Verdict::WithinNoise;
    }
    match (better, estimate.mean > 0.0) {
        (Better::Neither, _) => Verdict::Different,
        (Better::Higher, true) | (Better::Lower, false) => Verdict::Better,
        _ => Verdict::Worse,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Better;
    use proptest::prelude::*;

    #[test]
    fn welch_takes_the_degrees_of_freedom_of_both_sides() {
        // Variances of the means 0.208 and 5.333: 5.542² / (0.208² / 3 + 5.333² / 3) = 3.23, t95(3) = 3.182.
        let (first, second) = ([9.0, 11.0, 9.5, 10.5], [16.0, 24.0, 16.0, 24.0]);
        let width = welch_half_width(&first, &second).expect("an interval");
        assert!((width - 7.491).abs() < 0.01, "{width}");
        assert_eq!(welch_half_width(&[1.0, 1.0], &[1.0, 1.0]), Some(0.0));
        assert_eq!(welch_half_width(&[1.0], &[1.0, 2.0]), None);
    }

    /// The share of Student's t within ±`t`, by Simpson's rule.
    fn within(t: f64, freedom: usize) -> f64 {
        let v = freedom as f64;
        // The density's constant, by its recurrence in steps of two.
        let pi = std::f64::consts::PI;
        let (mut constant, mut at) = match freedom % 2 {
            1 => (1.0 / pi, 1.0),
            _ => (1.0 / (2.0 * 2.0_f64.sqrt()), 2.0),
        };
        while at < v {
            constant *= (at + 1.0) / at * (at / (at + 2.0)).sqrt();
            at += 2.0;
        }
        let density = |x: f64| constant * (1.0 + x * x / v).powf(-(v + 1.0) / 2.0);
        let steps = 20_000;
        let h = t / f64::from(steps);
        let inner = (1..steps).map(|i| {
            let weight = if i % 2 == 1 { 4.0 } else { 2.0 };
            weight * density(f64::from(i) * h)
        });
        2.0 * h / 3.0 * (density(0.0) + density(t) + inner.sum::<f64>())
    }

    #[test]
    fn the_quantiles_hold_95_percent() {
        for freedom in (1..=60).chain([100, 1_000, 9_999]) {
            let t = t95(freedom).expect("a degree of freedom");
            let share = within(t, freedom);
            assert!((share - 0.95).abs() < 2e-7, "{freedom}: {share}");
        }
        assert_eq!(t95(0), None);
        assert!(t95(30) > t95(31));
    }

    #[test]
    fn known_samples_have_their_known_intervals() {
        // Mean 3, standard deviation sqrt(2.5), t(4) = 2.776.
        let e = estimate(&[1.0, 2.0, 3.0, 4.0, 5.0]).expect("values");
        assert_eq!((e.mean, e.n), (3.0, 5));
        assert!((e.half_width.expect("five") - 1.963_243).abs() < 1e-6);
        assert_eq!(estimate(&[7.0]).expect("one").half_width, None);
        assert_eq!(estimate(&[]), None);
    }

    #[test]
    fn pairs_are_compared_by_their_differences() {
        // Noise of 100 that both have, a difference of 1 that all pairs have.
        let (firsts, seconds) = ([100.0, 200.0, 300.0], [101.0, 201.1, 300.9]);
        let d = difference(&firsts, &seconds, Better::Higher).expect("pairs");
        assert_eq!(d.verdict, Verdict::Better);
        assert!((d.percent.expect("a base") - 0.5).abs() < 1e-9);
        let d = difference(&firsts, &seconds, Better::Lower).expect("pairs");
        assert_eq!(d.verdict, Verdict::Worse);
        let d = difference(&firsts, &seconds, Better::Neither).expect("pairs");
        assert_eq!(d.verdict, Verdict::Different);
        for (firsts, seconds, verdict) in [
            (&[1.0, 2.0][..], &[2.0, 1.0][..], Verdict::WithinNoise),
            (&[1.0, 2.0], &[1.0, 2.0], Verdict::Same),
            (&[1.0], &[2.0], Verdict::Unknown),
            (&[0.0, 0.0], &[2.0, 2.0], Verdict::Better),
        ] {
            let d = difference(firsts, seconds, Better::Higher).expect("pairs");
            assert_eq!(d.verdict, verdict, "{firsts:?} {seconds:?}");
        }
        let of_nothing = difference(&[0.0; 2], &[1.0; 2], Better::Higher).expect("pairs");
        assert_eq!(of_nothing.percent, None);
    }

    #[test]
    fn a_difference_matters_by_its_size_alone() {
        use crate::metric::Unit;
        let d = |before: f64, after: f64| {
            difference(&[before; 2], &[after; 2], Better::Lower).expect("pairs")
        };
        for (before, after, unit, relevant) in [
            (1_000.0, 1_009.0, Unit::Ns, false),
            (1_000.0, 1_011.0, Unit::Ns, true),
            (1_000.0, 989.0, Unit::PerSecond, true),
            (0.0, 0.5, Unit::Count, true),
            // Twice as much of a share, but few points.
            (0.04, 0.08, Unit::Percent, false),
            (40.0, 40.2, Unit::Percent, true),
        ] {
            let d = d(before, after);
            assert_eq!(d.is_relevant(unit), relevant, "{before} {after}");
            // Which the verdict does not know of.
            assert_eq!(d.verdict == Verdict::Worse, after > before);
        }
    }

    proptest! {
        #[test]
        fn an_interval_holds_its_mean(values in proptest::collection::vec(-1e6..1e6, 2..40)) {
            let e = estimate(&values).expect("values");
            let half = e.half_width.expect("two or more");
            prop_assert!(half >= 0.0 && half.is_finite());
            let least = values.iter().copied().fold(f64::INFINITY, f64::min);
            let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            prop_assert!(least - 1e-6 <= e.mean && e.mean <= most + 1e-6);
        }
    }
}

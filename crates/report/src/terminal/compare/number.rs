//! Means with their intervals, and differences, as text.

use stealtime_lab::metric::Unit;
use stealtime_lab::stats::{Difference, Estimate, Verdict};

use crate::units::count;

/// Units of time: ns in one, and how it is written.
const TIMES: [(f64, &str); 4] = [(1.0, " ns"), (1e3, " us"), (1e6, " ms"), (1e9, " s")];

/// How a number is written: divided by `size`, with so many decimals, and its unit.
struct Scale {
    size: f64,
    decimals: usize,
    unit: &'static str,
}

/// Three digits, more for what is counted in thousands.
fn scale(unit: Unit, number: f64) -> Scale {
    let number = number.abs();
    let (size, name) = match unit {
        Unit::Ns => {
            // 999.5 is shown as 1000 of the smaller unit: the larger one fits.
            let fits = |(size, _): &&(f64, &str)| number / size < 999.5;
            *TIMES.iter().find(fits).unwrap_or(&TIMES[3])
        }
        Unit::PerSecond => (1.0, " /s"),
        Unit::Percent => (1.0, " %"),
        Unit::Count => (1.0, ""),
    };
    let shown = number / size;
    let decimals = match shown {
        _ if name == " ns" && shown.fract() == 0.0 => 0,
        s if s == 0.0 || s >= 99.95 => 0,
        s if s >= 9.995 => 1,
        _ => 2,
    };
    Scale {
        size,
        decimals,
        unit: name,
    }
}

impl Scale {
    /// The number without its unit and sign.
    fn show(&self, number: f64) -> String {
        let shown = number.abs() / self.size;
        match self.decimals {
            // `as` saturates: a number beyond 64 bits is unreadable with all of its digits.
            0 => count(shown.round() as u64),
            decimals => format!("{shown:.decimals$}"),
        }
    }

    /// The same, but never 0 where it is not.
    fn at_least(&self, number: f64) -> String {
        let mut shown = self.show(number);
        if number != 0.0 && shown.chars().all(|c| matches!(c, '0' | '.')) {
            shown.pop();
            return format!("<{shown}1");
        }
        shown
    }

    /// Half the width of an interval.
    fn half_width(&self, number: f64) -> String {
        format!("±{}", self.at_least(number))
    }
}

/// From this growth on, in percent, a factor stands for it: "10 times" is read more easily than 900 %.
const MANY: f64 = 900.0;

/// Whether a difference is more than noise.
const fn is_clear(verdict: Verdict) -> bool {
    matches!(
        verdict,
        Verdict::Better | Verdict::Worse | Verdict::Different
    )
}

/// `1,234 /s ±56`.
pub(crate) fn value(unit: Unit, estimate: &Estimate) -> String {
    let scale = scale(unit, estimate.mean);
    let sign = if estimate.mean < 0.0 { "-" } else { "" };
    let (number, name) = (scale.show(estimate.mean), scale.unit);
    match estimate.half_width {
        Some(half) => format!("{sign}{number}{name} {}", scale.half_width(half)),
        None => format!("{sign}{number}{name}"),
    }
}

/// `+5.3 % ±1.1 better`.
pub(crate) fn difference(unit: Unit, difference: &Difference) -> String {
    let (number, half, name) = match (unit, difference.percent) {
        // Of a share, points: percent of percent mislead.
        (Unit::Percent, _) | (_, None) => {
            let scale = scale(unit, difference.estimate.mean);
            let half = difference
                .estimate
                .half_width
                .map(|half| scale.half_width(half));
            let name = if unit == Unit::Percent {
                " points"
            } else {
                scale.unit
            };
            (scale.at_least(difference.estimate.mean), half, name)
        }
        (_, Some(percent)) if percent >= MANY && is_clear(difference.verdict) => {
            let scale = scale(Unit::Count, percent / 100.0);
            let half = difference
                .percent_half_width
                .map(|half| scale.half_width(half / 100.0));
            let word = if difference.verdict == Verdict::Better {
                " better"
            } else {
                " worse"
            };
            let word = if difference.verdict == Verdict::Different {
                ""
            } else {
                word
            };
            let factor = scale.show(percent / 100.0 + 1.0);
            return format!("{factor} times {}{word}", half.unwrap_or_default());
        }
        (_, Some(percent)) => {
            let scale = scale(Unit::Percent, percent);
            let half = difference
                .percent_half_width
                .map(|half| scale.half_width(half));
            (scale.at_least(percent), half, " %")
        }
    };
    let half = half.unwrap_or_default();
    let sign = if difference.estimate.mean < 0.0 {
        '-'
    } else {
        '+'
    };
    match difference.verdict {
        Verdict::Same => "the same".to_owned(),
        Verdict::WithinNoise => format!("within noise, {half}{name}"),
        Verdict::Better => format!("{sign}{number}{name} {half} better"),
        Verdict::Worse => format!("{sign}{number}{name} {half} worse"),
        Verdict::Different => format!("{sign}{number}{name} {half}"),
        Verdict::Unknown => format!("{sign}{number}{name}, no interval"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn estimate(mean: f64, half_width: f64) -> Estimate {
        Estimate {
            mean,
            half_width: Some(half_width),
            n: 5,
        }
    }

    #[test]
    fn values_and_intervals_share_unit_and_digits() {
        for (unit, mean, half, text) in [
            (Unit::Ns, 634_247.0, 19_117.0, "634 us ±19"),
            (Unit::Ns, 372.0, 43.0, "372 ns ±43"),
            (Unit::Ns, 49_654.0, 23_638.0, "49.7 us ±23.6"),
            (Unit::Ns, 999_600.0, 1.0, "1.00 ms ±<0.01"),
            (Unit::Ns, 5e12, 0.0, "5,000 s ±0"),
            (Unit::PerSecond, 4_853.3, 57.4, "4,853 /s ±57"),
            (Unit::PerSecond, 0.0, 0.0, "0 /s ±0"),
            (Unit::Percent, 38.12, 0.83, "38.1 % ±0.8"),
            (Unit::Count, 3.5, 0.2, "3.50 ±0.20"),
            (Unit::PerSecond, 480.0, 0.2, "480 /s ±<1"),
        ] {
            assert_eq!(value(unit, &estimate(mean, half)), text);
        }
        let one = Estimate {
            half_width: None,
            ..estimate(5.0, 0.0)
        };
        assert_eq!(value(Unit::Count, &one), "5.00");
    }

    #[test]
    fn differences_say_what_they_mean() {
        let d = |mean, half, percent, verdict| Difference {
            estimate: estimate(mean, half),
            percent: Some(percent),
            percent_half_width: Some(1.5),
            verdict,
        };
        for (unit, d, text) in [
            (
                Unit::Ns,
                d(5.0, 1.0, 12.34, Verdict::Worse),
                "+12.3 % ±1.5 worse",
            ),
            (
                Unit::Ns,
                d(-5.0, 1.0, -12.34, Verdict::Better),
                "-12.3 % ±1.5 better",
            ),
            (
                Unit::Percent,
                d(-5.25, 1.0, -50.0, Verdict::Better),
                "-5.25 points ±1.00 better",
            ),
            (
                Unit::Ns,
                d(1.0, 9.0, 1.0, Verdict::WithinNoise),
                "within noise, ±1.50 %",
            ),
            (Unit::Ns, d(0.0, 0.0, 0.0, Verdict::Same), "the same"),
            (
                Unit::Count,
                d(1.0, 0.5, 7.0, Verdict::Different),
                "+7.00 % ±1.50",
            ),
        ] {
            assert_eq!(difference(unit, &d), text);
        }
        let none = Difference {
            percent: None,
            percent_half_width: None,
            ..d(12.0, 3.0, 0.0, Verdict::Different)
        };
        assert_eq!(difference(Unit::PerSecond, &none), "+12.0 /s ±3.0");
    }
}

//! Times, shares and counts for readers.

use std::collections::BTreeSet;

use stealtime_analysis::rounded_per_mille;

use crate::escape;

/// How times are written: in nanoseconds and up, or in ticks of a clock without a known rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Times {
    Ns,
    Ticks,
}

impl Times {
    /// From `source.clock_unit`.
    pub(crate) fn of(clock_unit: &str) -> Self {
        if clock_unit == "ticks" {
            Self::Ticks
        } else {
            Self::Ns
        }
    }

    /// A time in three digits; the unit takes two columns, so that a right-aligned column of times
    /// has its units under one another.
    pub(crate) fn show(self, time: u64) -> String {
        match self {
            Self::Ticks => format!("{} tk", count(time)),
            Self::Ns => duration(time),
        }
    }

    /// `-` for zero.
    pub(crate) fn show_or_dash(self, time: u64) -> String {
        match time {
            0 => "-".to_owned(),
            time => self.show(time),
        }
    }

    /// The mean of times.
    pub(crate) fn show_mean(self, time: f64) -> String {
        if !time.is_finite() || time < 0.0 {
            return "?".to_owned();
        }
        // `as` saturates, which is right for a time beyond 584 years.
        self.show(time.round() as u64)
    }
}

/// In ns. All take two columns, so that units of a right-aligned column are under one another.
const UNITS: [(u64, &str); 4] = [
    (1, "ns"),
    (1_000, "us"),
    (1_000_000, "ms"),
    (1_000_000_000, " s"),
];

/// Three significant digits, rounded half up.
///
/// | ns | shown |
/// |---|---|
/// | 999 | `999 ns` |
/// | 1_234 | `1.23 us` |
/// | 99_950 | `100 us` |
/// | 999_500 | `1.00 ms` |
fn duration(ns: u64) -> String {
    for (unit, name) in UNITS {
        for (scale, decimals) in [(100, 2), (10, 1), (1, 0)] {
            if unit == 1 && decimals > 0 {
                continue;
            }
            let scaled = (u128::from(ns) * scale + u128::from(unit) / 2) / u128::from(unit);
            if scaled < 1_000 {
                return fixed(scaled, decimals, name);
            }
        }
    }
    let seconds = u128::from(ns) + 500_000_000;
    fixed(seconds / 1_000_000_000, 0, " s")
}

fn fixed(scaled: u128, decimals: usize, unit: &str) -> String {
    match decimals {
        0 => format!("{scaled} {unit}"),
        1 => format!("{}.{} {unit}", scaled / 10, scaled % 10),
        _ => format!("{}.{:02} {unit}", scaled / 100, scaled % 100),
    }
}

/// A share in percent with one decimal; `-` for zero, because a share that is rounded to zero is not
/// nothing.
pub(crate) fn share(part: u64, whole: u64) -> String {
    if part == 0 || whole == 0 {
        return "-".to_owned();
    }
    let tenths = rounded_per_mille(part, whole);
    if tenths == 0 {
        return "<0.1%".to_owned();
    }
    format!("{}.{}%", tenths / 10, tenths % 10)
}

/// A share that the analysis has computed.
pub(crate) fn percent(percent: f64) -> String {
    if percent.is_finite() {
        format!("{percent:.1}%")
    } else {
        "?".to_owned()
    }
}

/// A count with commas between thousands.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// `-` for zero.
pub(crate) fn count_or_dash(value: u64) -> String {
    match value {
        0 => "-".to_owned(),
        value => count(value),
    }
}

/// `1 event`, `2 events`.
#[must_use]
pub fn counted(value: u64, singular: &str) -> String {
    let plural = if value == 1 { "" } else { "s" };
    format!("{} {singular}{plural}", count(value))
}

/// Each item once, in the order of their first places.
pub(crate) fn distinct<T: Copy + Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut known = BTreeSet::new();
    items.filter(|item| known.insert(*item)).collect()
}

/// Text in lines of at most `width` columns of a terminal, broken between words; a longer word is cut
/// into pieces.
#[must_use]
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        match lines.last_mut() {
            Some(line) if escape::width(line) + 1 + escape::width(word) <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => pieces(word, width, &mut lines),
        }
    }
    lines
}

fn pieces(word: &str, width: usize, lines: &mut Vec<String>) {
    let mut piece = String::new();
    let mut used = 0;
    for c in word.chars() {
        let wide = escape::char_width(c);
        if used + wide > width && used > 0 {
            lines.push(std::mem::take(&mut piece));
            used = 0;
        }
        used += wide;
        piece.push(c);
    }
    lines.push(piece);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_the_right_unit() {
        for (ns, shown) in [
            (0, "0 ns"),
            (999, "999 ns"),
            (1_000, "1.00 us"),
            (1_234, "1.23 us"),
            (9_994, "9.99 us"),
            (9_996, "10.0 us"),
            (99_949, "99.9 us"),
            (99_950, "100 us"),
            (999_499, "999 us"),
            (999_500, "1.00 ms"),
            (8_000_000_000, "8.00  s"),
            (3_600_000_000_000, "3600  s"),
            (u64::MAX, "18446744074  s"),
        ] {
            assert_eq!(duration(ns), shown, "{ns}");
        }
    }

    #[test]
    fn small_shares_differ_from_none() {
        assert_eq!(share(0, 10), "-");
        assert_eq!(share(1, 0), "-");
        assert_eq!(share(1, 100_000), "<0.1%");
        assert_eq!(share(1, 3), "33.3%");
        assert_eq!(share(u64::MAX, u64::MAX), "100.0%");
    }

    #[test]
    fn counts_are_grouped_by_thousands() {
        let texts = [0, 999, 1_000, 1_234_567].map(count);
        assert_eq!(texts, ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(count(7), "7");
        assert_eq!(count(1_234), "1,234");
        assert_eq!(count(123_456), "123,456");
        assert_eq!(counted(1, "event"), "1 event");
        assert_eq!(counted(1_000, "event"), "1,000 events");
    }

    #[test]
    fn lines_break_between_words() {
        assert_eq!(wrap("aa bb cc", 5), ["aa bb", "cc"]);
        assert_eq!(
            wrap("a-very-long-word b", 7),
            ["a-very-", "long-wo", "rd b"]
        );
        assert!(wrap("", 5).is_empty());
    }
}

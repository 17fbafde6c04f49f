//! Times on the command line.

use std::fmt;
use std::str::FromStr;

/// A moment of the recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    /// So many ns after the first event: `1.5s`, `200ms`, `30us`, `100ns`.
    After(u64),
    /// A time of the trace's clock in ns: `@1580.515472041`, in seconds as `trace-cmd report` and
    /// `perf script` print them.
    At(u64),
}

impl When {
    /// In ns of the trace's clock, for a recording with its first event at `first`.
    pub(crate) fn resolve(self, first: u64) -> u64 {
        match self {
            Self::After(ns) => first.saturating_add(ns),
            Self::At(ns) => ns,
        }
    }
}

impl fmt::Display for When {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::After(ns) => write!(f, "{ns}ns"),
            Self::At(ns) => write!(f, "@{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000),
        }
    }
}

/// A time that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a time: give 1.5s, 200ms, 30us or 100ns after the first event, or @1580.515472 for a time \
     of the trace's clock"
)]
pub(crate) struct NotATime;

const UNITS: [(&str, u64); 4] = [
    ("ns", 1),
    ("us", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

impl FromStr for When {
    type Err = NotATime;

    fn from_str(text: &str) -> Result<Self, NotATime> {
        if let Some(seconds) = text.strip_prefix('@') {
            return decimal(seconds, 1_000_000_000)
                .map(Self::At)
                .ok_or(NotATime);
        }
        let unit = UNITS
            .iter()
            .find_map(|(name, ns)| Some((text.strip_suffix(name)?, *ns)));
        let (number, ns) = unit.ok_or(NotATime)?;
        decimal(number, ns).map(Self::After).ok_or(NotATime)
    }
}

/// A length of time in ns: `1.5s`, `200ms`.
pub(crate) fn length(text: &str) -> Result<u64, NotALength> {
    match text.parse() {
        Ok(When::After(ns)) => Ok(ns),
        _ => Err(NotALength),
    }
}

/// A length of time that is not understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a length of time: give 1.5s, 20ms, 500us or 100ns")]
pub(crate) struct NotALength;

/// `number` times `unit`, exactly; `None` for what is no decimal number, has digits below one ns, or
/// is beyond 64 bits.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |text: &str| text.bytes().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) {
        return None;
    }
    let mut ns = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        if !place.is_multiple_of(10) {
            return None;
        }
        place /= 10;
        ns = ns.checked_add(u64::from(digit - b'0').checked_mul(place)?)?;
    }
    Some(ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_exact() {
        for (text, when) in [
            ("1.5s", When::After(1_500_000_000)),
            ("200ms", When::After(200_000_000)),
            ("0.25us", When::After(250)),
            ("100ns", When::After(100)),
            ("0s", When::After(0)),
            ("@1580.515472041", When::At(1_580_515_472_041)),
        ] {
            assert_eq!(text.parse(), Ok(when), "{text}");
        }
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "5",
            "s",
            ".5s",
            "-1s",
            "1.5ns",
            "1e3s",
            "@",
            "@1.0000000001",
            "99999999999s",
        ] {
            assert_eq!(text.parse::<When>(), Err(NotATime), "{text}");
        }
    }
}

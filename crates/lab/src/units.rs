//! Times and sets of CPUs as people write them.

/// Units of time and their ns.
const UNITS: [(&str, u64); 5] = [
    ("ns", 1),
    ("us", 1_000),
    ("µs", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
];

/// The most CPUs that a set may name; beyond any host.
const MOST_CPUS: usize = 1 << 16;

/// What a number without a unit means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// ns: for what has the unit in its name, like the kernel's `halt_poll_ns`.
    Ns,
    /// Nothing: the unit must be given.
    Refused,
}

/// Why a text is no time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// No number.
    #[error("{0:?} is no time: give 200us, 50ms or 1.5s")]
    NoTime(String),
    /// A number alone.
    #[error("{0} has no unit: give {0}us, {0}ms or {0}s")]
    NoUnit(String),
    /// A unit of something else.
    #[error("{0:?} is no unit of time: give ns, us, ms or s")]
    UnknownUnit(String),
    /// Parts of a ns, or too long.
    #[error("{0} is no whole number of ns within 64 bits")]
    NotWhole(String),
}

/// Why a text is no list of CPUs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CpuListError {
    /// A part that is no number and no range.
    #[error("{0:?} is no CPU and no range of CPUs: give 0-3,8")]
    NoCpu(String),
    /// A range from a larger to a smaller number.
    #[error("{0:?} ends before it begins")]
    Reversed(String),
    /// More than any host has.
    #[error("{0:?}: more than {MOST_CPUS} CPUs")]
    TooMany(String),
}

/// Reads a time such as `200us`, `1.5s` or `50ms`, in ns.
///
/// ```
/// use stealtime_lab::units::{Plain, time};
/// assert_eq!(time("200us", Plain::Refused), Ok(200_000));
/// assert_eq!(time("1.5 s", Plain::Refused), Ok(1_500_000_000));
/// assert_eq!(time("200000", Plain::Ns), Ok(200_000));
/// assert!(time("200000", Plain::Refused).is_err());
/// ```
///
/// # Errors
///
/// [`TimeError`]
pub fn time(text: &str, plain: Plain) -> Result<u64, TimeError> {
    let text = text.trim();
    let digits = text
        .bytes()
        .take_while(|c| c.is_ascii_digit() || *c == b'.');
    let (number, unit) = text.split_at(digits.count());
    if number.is_empty() {
        return Err(TimeError::NoTime(text.to_owned()));
    }
    let ns = match unit.trim_start() {
        "" if plain == Plain::Ns => 1,
        "" => return Err(TimeError::NoUnit(text.to_owned())),
        unit => match UNITS.iter().find(|(name, _)| *name == unit) {
            Some((_, ns)) => *ns,
            None => return Err(TimeError::UnknownUnit(unit.to_owned())),
        },
    };
    decimal(number, ns).ok_or_else(|| TimeError::NotWhole(text.to_owned()))
}

/// `number` times `unit`, exactly; `None` for what is no decimal number, has digits below one, or
/// is beyond 64 bits.
fn decimal(number: &str, unit: u64) -> Option<u64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let mut value = whole.parse::<u64>().ok()?.checked_mul(unit)?;
    let mut place = unit;
    for digit in fraction.bytes() {
        if !digit.is_ascii_digit() || !place.is_multiple_of(10) {
            return None;
        }
        place /= 10;
        value = value.checked_add(u64::from(digit - b'0').checked_mul(place)?)?;
    }
    Some(value)
}

/// Writes a time so that [`time`] reads the same: in the largest unit that makes it whole.
#[must_use]
pub fn show_time(ns: u64) -> String {
    for (unit, size) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
        if ns > 0 && ns.is_multiple_of(size) {
            return format!("{}{unit}", ns / size);
        }
    }
    format!("{ns}ns")
}

/// Reads CPUs as the kernel's lists have them (`0-3,8`), in the order given.
///
/// ```
/// use stealtime_lab::units::cpus;
/// assert_eq!(cpus("0-3, 8"), Ok(vec![0, 1, 2, 3, 8]));
/// assert_eq!(cpus(""), Ok(vec![]));
/// assert!(cpus("3-0").is_err());
/// ```
///
/// # Errors
///
/// [`CpuListError`]
pub fn cpus(text: &str) -> Result<Vec<u32>, CpuListError> {
    let mut cpus = Vec::new();
    if text.trim().is_empty() {
        return Ok(cpus);
    }
    for part in text.split(',').map(str::trim) {
        let number = |text: &str| {
            let wrong = || CpuListError::NoCpu(part.to_owned());
            let digits = !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit());
            digits
                .then(|| text.parse::<u32>().ok())
                .flatten()
                .ok_or_else(wrong)
        };
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last < first {
            return Err(CpuListError::Reversed(part.to_owned()));
        }
        if (last - first) as usize >= MOST_CPUS - cpus.len().min(MOST_CPUS) {
            return Err(CpuListError::TooMany(part.to_owned()));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Writes CPUs so that [`cpus`] reads the same.
#[must_use]
pub fn show_cpus(cpus: &[u32]) -> String {
    let mut parts: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match parts.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(cpu) => *last = cpu,
            _ => parts.push((cpu, cpu)),
        }
    }
    let shown = parts.into_iter().map(|(first, last)| match last - first {
        0 => first.to_string(),
        _ => format!("{first}-{last}"),
    });
    shown.collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_no_time_is_refused() {
        for text in [
            "",
            "s",
            ".5s",
            "-1s",
            "1.5ns",
            "1e3s",
            "5 parsecs",
            "1.2.3s",
            "5MB",
        ] {
            assert!(time(text, Plain::Ns).is_err(), "{text}");
        }
        assert!(time("99999999999s", Plain::Ns).is_err());
    }

    #[test]
    fn what_is_no_set_of_cpus_is_refused() {
        for text in ["-", "1-", "-1", "a", "1,,2", "0-4294967295", "+1", "1 2"] {
            assert!(cpus(text).is_err(), "{text}");
        }
        assert!(cpus(&["0-65535"; 3].join(",")).is_err());
    }

    proptest! {
        #[test]
        fn times_come_back(ns: u64) {
            prop_assert_eq!(time(&show_time(ns), Plain::Refused), Ok(ns));
        }

        #[test]
        fn sets_of_cpus_come_back(set in proptest::collection::vec(0_u32..100, 0..20)) {
            prop_assert_eq!(cpus(&show_cpus(&set)), Ok(set));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}") {
            let _ = (time(&text, Plain::Ns), cpus(&text));
        }
    }
}

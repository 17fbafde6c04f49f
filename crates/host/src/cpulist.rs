//! Lists of CPUs as the kernel writes them: `0-3,8`.
//!
//! ```
//! use stealtime_host::cpulist::{format, parse};
//!
//! let cpus = parse("0-3,8").unwrap();
//! assert_eq!(cpus.len(), 5);
//! assert_eq!(format(&cpus), "0-3,8");
//! assert_eq!(parse("3-0"), None);
//! ```

use std::collections::BTreeSet;
use std::fmt::Write;

/// CPUs that a list may have: what the kernel's `NR_CPUS` allows, and then some.
const MAX_CPUS: u32 = 1 << 16;

/// The CPUs of a list; `None` where it is no list. An empty list has none.
#[must_use]
pub fn parse(text: &str) -> Option<BTreeSet<u32>> {
    let text = text.trim();
    let mut cpus = BTreeSet::new();
    for range in text.split(',').filter(|_| !text.is_empty()) {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= MAX_CPUS {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

/// Writes CPUs as a list.
#[must_use]
pub fn format(cpus: &BTreeSet<u32>) -> String {
    let mut text = String::new();
    let mut cpus = cpus.iter().copied().peekable();
    while let Some(first) = cpus.next() {
        let mut last = first;
        while let Some(next) = cpus.next_if(|next| *next == last + 1) {
            last = next;
        }
        let comma = if text.is_empty() { "" } else { "," };
        // Writing to a String cannot fail.
        let _ = match first == last {
            true => write!(text, "{comma}{first}"),
            false => write!(text, "{comma}{first}-{last}"),
        };
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written() {
        for list in ["", "0", "0-3", "0-3,8", "1,3,5-7,1023"] {
            assert_eq!(format(&parse(list).expect(list)), list);
        }
        assert_eq!(format(&parse("3,1-2\n").expect("a list")), "1-3");
        for wrong in ["(null)", "3-1", "-", "0-99999999", "a", "1,,2"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}

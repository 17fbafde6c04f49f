//! Findings: problems to look at, with the numbers that show them.
//!
//! Each file holds the findings of one subject. A finding is left out where its advice is followed
//! already, or where the trace cannot show it.

mod clock_reads;
mod clocks;
mod cost;
mod recording;
mod reference;
mod scheduler;
mod waiting;

pub use reference::{Entry, reference};

use crate::answers::{Answers, Finding};
use crate::tables::Tables;

/// A finding with what it costs, in ns of all vCPUs; findings about the recording go first.
pub(crate) struct Weighted {
    /// Its place in the list: larger first.
    pub(crate) cost: u64,
    pub(crate) finding: Finding,
}

impl Weighted {
    pub(crate) fn new(id: &str, vm: &str, cost: u64, text: [String; 3]) -> Self {
        debug_assert!(reference::has(id), "{id} is not in the reference");
        let [statement, evidence, next] = text;
        let finding = Finding {
            id: id.to_owned(),
            vm: vm.to_owned(),
            vm_guessed: false,
            what: statement,
            evidence,
            next,
        };
        Self { cost, finding }
    }
}

/// Cost of findings that put other answers in doubt.
pub(crate) const DOUBT: u64 = u64::MAX;

/// All findings, most costly first.
pub(crate) fn all(tables: &Tables<'_>, answers: &Answers) -> Vec<Finding> {
    let mut found = Vec::new();
    recording::find(tables, answers, &mut found);
    waiting::find(tables, answers, &mut found);
    cost::find(tables, answers, &mut found);
    scheduler::find(answers, &mut found);
    clocks::find(tables, &mut found);
    clock_reads::find(tables, answers, &mut found);
    found.sort_by(|a, b| {
        (b.cost.cmp(&a.cost))
            .then_with(|| a.finding.id.cmp(&b.finding.id))
            .then_with(|| a.finding.vm.cmp(&b.finding.vm))
    });
    found.into_iter().map(|weighted| weighted.finding).collect()
}

/// Per mille of a whole, rounded down as limits need it; 0 of nothing.
#[must_use]
pub fn per_mille(part: u64, whole: u64) -> u64 {
    if whole == 0 {
        return 0;
    }
    u64::try_from(u128::from(part) * 1000 / u128::from(whole)).unwrap_or(u64::MAX)
}

/// Per mille of a whole, rounded as texts and tables show shares; 0 of nothing.
#[must_use]
pub fn rounded_per_mille(part: u64, whole: u64) -> u128 {
    let (part, whole) = (u128::from(part), u128::from(whole));
    (part * 1_000 + whole / 2).checked_div(whole).unwrap_or(0)
}

/// A share as text, rounded as in tables: `12.3 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let tenths = rounded_per_mille(part, whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// A time as text, in ms.
pub(crate) fn ms(ns: u64) -> String {
    let thousandths = ns.saturating_add(500) / 1_000;
    format!("{}.{:03} ms", thousandths / 1_000, thousandths % 1_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_times_read_well() {
        assert_eq!(percent(1, 3), "33.3 %");
        assert_eq!(percent(2, 3), "66.7 %");
        assert_eq!(percent(1, 2_000), "0.1 %");
        assert_eq!(percent(5, 0), "0.0 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
        assert_eq!(ms(12_345_678), "12.346 ms");
        assert_eq!(ms(u64::MAX), "18446744073709.551 ms");
    }
}

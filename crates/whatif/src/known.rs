//! The facts of the recorded host, each once with its source.

use serde::Serialize;

use crate::baseline::Baseline;
use crate::fit::SNAPSHOT;
use crate::preempt::PREEMPT;

/// A fact of the recorded host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// A knob, a dimension of the fit, or `affinity`.
    pub fact: String,
    /// Its value.
    pub value: String,
    /// `stated`, `snapshot`, `recorded` or `fitted`.
    pub source: &'static str,
}

/// Settings that are known, then the dimensions of the fit.
pub(crate) fn facts(base: &Baseline) -> Vec<Fact> {
    let snapshot = base.facts.snapshot();
    // The fit has the mode as a dimension.
    let settings = base.facts.settings().iter();
    let settings = settings.filter(|setting| setting.name() != PREEMPT);
    let mut facts: Vec<Fact> = settings
        .map(|setting| Fact {
            fact: setting.name().to_owned(),
            value: setting.text().to_owned(),
            source: match snapshot.settings.contains(setting.name()) {
                true => SNAPSHOT,
                false => "stated",
            },
        })
        .collect();
    if !snapshot.affinity.is_empty() {
        facts.push(Fact {
            fact: "affinity".to_owned(),
            value: format!("of {} threads", snapshot.affinity.len()),
            source: SNAPSHOT,
        });
    }
    let dimensions = base.fit.dimensions.iter();
    facts.extend(dimensions.filter_map(|row| {
        Some(Fact {
            fact: row.dimension.to_owned(),
            value: row.value.clone()?,
            source: row.source,
        })
    }));
    facts
}

//! The facts of the recorded host, each once with its source.

use serde::Serialize;

use crate::baseline::Baseline;
use crate::fit::SNAPSHOT;
use crate::host_snapshot::Cgroups;
use crate::preempt::PREEMPT;

/// A fact of the recorded host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// A knob, a dimension of the fit, `affinity`, `policies` or `shared_cgroups`.
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
    if !snapshot.policies.is_empty() {
        facts.push(Fact {
            fact: "policies".to_owned(),
            value: format!(
                "{} threads of VMs are SCHED_BATCH or SCHED_IDLE",
                snapshot.policies.len()
            ),
            source: SNAPSHOT,
        });
    }
    let cgroups = snapshot.cgroups.as_ref();
    facts.extend(cgroups.and_then(Cgroups::shared_text).map(|value| Fact {
        fact: "shared_cgroups".to_owned(),
        value,
        source: SNAPSHOT,
    }));
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

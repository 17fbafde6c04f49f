//! The host that fits best, and the second best: how sure the fit is of each dimension.

use serde::Serialize;
use stealtime_replay::fit::{Dimension, Fitted, Hypothesis, Misfit, RunnerUp, Source, Term};
use stealtime_replay::host::Assumed;
use stealtime_replay::predict::VcpuTimes;

use crate::host_file::HostFacts;
use crate::preempt::PREEMPT;
use crate::recorded::Recorded;

/// The source of what the host's snapshot says.
pub(crate) const SNAPSHOT: &str = "snapshot";

/// The host that fits best.
#[derive(Debug, Clone, Serialize)]
pub struct Fit {
    /// Hypotheses that were replayed.
    pub tried: usize,
    /// How far its replay is from the recording.
    pub misfit: MisfitShares,
    /// Its value of each dimension.
    pub dimensions: Vec<DimensionValue>,
    /// The second best; `None` if no other was tried.
    pub runner_up: Option<SecondBest>,
}

/// A misfit in percent, so that recordings compare.
#[derive(Debug, Clone, Serialize)]
pub struct MisfitShares {
    /// Differing running, ready and halted time and work, of vCPUs' time.
    pub times_percent: f64,
    /// Wakeups on busy CPUs that are decided differently; `null` with too few.
    pub decisions_percent: Option<f64>,
    /// Slice timers that are set for another time; `null` with too few.
    pub slice_timers_percent: Option<f64>,
    /// The largest error of an exit reason's count.
    pub exits_percent: f64,
}

/// The value of a dimension.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DimensionValue {
    /// Its name: [`stealtime_replay::fit::Row::name`].
    pub dimension: &'static str,
    /// In words; `null` where it has no effect.
    pub value: Option<String>,
    /// `stated`, `snapshot`, `recorded` or `fitted`.
    pub source: &'static str,
}

/// The second best hypothesis.
#[derive(Debug, Clone, Serialize)]
pub struct SecondBest {
    /// How far its replay is from the recording.
    pub misfit: MisfitShares,
    /// The dimensions in which it differs from the best, with its values.
    pub differs: Vec<DimensionValue>,
    /// What decides between the two: `times`, `decisions`, `slice_timers`, `weights`, or `order` if they
    /// fit as well.
    pub decided_by: &'static str,
    /// By how many percent its times are further off; negative: nearer. `null` if the best has no misfit.
    pub further_percent: Option<f64>,
    /// The same term, for the sentence.
    #[serde(skip)]
    term: Term,
    /// Its times count a quarter more: only the best has guests that give work to idle vCPUs.
    #[serde(skip)]
    counts_more: bool,
}

/// Rounded to three decimals.
fn share(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 100_000.0).round() / 1_000.0
}

impl MisfitShares {
    fn new(misfit: &Misfit, known_ns: u64) -> Self {
        let percent = |permille: u64| permille as f64 / 10.0;
        Self {
            times_percent: share(misfit.times_ns, known_ns),
            decisions_percent: misfit.decisions_permille.map(percent),
            slice_timers_percent: misfit.slices_permille.map(percent),
            exits_percent: share(misfit.exits_ppm, 1_000_000),
        }
    }
}

/// What makes the rows of dimensions.
struct Rows<'a> {
    fitted: &'a Fitted,
    recorded: &'a Recorded,
    known: &'a Assumed,
    facts: &'a HostFacts,
}

impl Rows<'_> {
    fn source(&self, dimension: Dimension) -> &'static str {
        let snapshot = self.facts.snapshot();
        let is_of_snapshot = match dimension {
            Dimension::Cgroups | Dimension::Weights => snapshot.cgroups.is_some(),
            Dimension::Preemption => snapshot.settings.contains(PREEMPT),
            Dimension::WakeupPreemption => snapshot.wakeups_preempt.is_some(),
            Dimension::Placement | Dimension::MoveTimes | Dimension::Guests | Dimension::Stalls => {
                false
            }
        };
        let source = match dimension {
            _ if is_of_snapshot => return SNAPSHOT,
            Dimension::Weights if self.fitted.weights_stated => Source::Stated,
            _ => dimension.source(&self.recorded.recording, self.known),
        };
        source.name()
    }

    fn row(&self, dimension: Dimension, hypothesis: &Hypothesis) -> DimensionValue {
        DimensionValue {
            dimension: dimension.row().name,
            value: dimension.value(hypothesis, &self.recorded.vms),
            source: self.source(dimension),
        }
    }

    fn second_best(&self, second: &RunnerUp, known_ns: u64) -> SecondBest {
        let hypothesis = &second.trial.hypothesis;
        let differs = self.fitted.hypothesis.differences(hypothesis);
        let (best_ns, second_ns) = (self.fitted.misfit.times_ns, second.trial.misfit.times_ns);
        let further = second_ns as f64 / best_ns as f64 - 1.0;
        let rows = differs.into_iter();
        SecondBest {
            misfit: MisfitShares::new(&second.trial.misfit, known_ns),
            differs: rows
                .map(|dimension| self.row(dimension, hypothesis))
                .collect(),
            decided_by: second.lost_by.name(),
            further_percent: (best_ns > 0).then(|| (further * 1_000.0).round() / 10.0),
            term: second.lost_by,
            counts_more: self.fitted.hypothesis.balanced && !hypothesis.balanced,
        }
    }
}

impl Fit {
    /// `known` is what the fit started from.
    pub(crate) fn new(
        fitted: &Fitted,
        recorded: &Recorded,
        known: &Assumed,
        facts: &HostFacts,
    ) -> Self {
        let known_ns: u64 = recorded.times.vcpus.iter().map(VcpuTimes::known_ns).sum();
        let rows = Rows {
            fitted,
            recorded,
            known,
            facts,
        };
        let best = |dimension| rows.row(dimension, &fitted.hypothesis);
        // Most recordings have no stalls that matter.
        let dimensions = Dimension::ALL.into_iter();
        let dimensions = dimensions
            .filter(|&dimension| dimension != Dimension::Stalls || fitted.hypothesis.stalls);
        let second = fitted.runner_up.as_ref();
        Self {
            tried: fitted.tried,
            misfit: MisfitShares::new(&fitted.misfit, known_ns),
            dimensions: dimensions.map(best).collect(),
            runner_up: second.map(|second| rows.second_best(second, known_ns)),
        }
    }

    /// As a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let best = match self.tried {
            1 => "the only host that the recording leaves open".to_owned(),
            tried => format!("the best of {tried} hosts"),
        };
        let times = self.misfit.times_percent;
        let best = format!("{best}, with a misfit of {times:.2}% of vCPUs' time");
        let Some(second) = &self.runner_up else {
            return best;
        };
        let values = second.differs.iter();
        let values: Vec<&str> = values.filter_map(|row| row.value.as_deref()).collect();
        let margin = second.margin(&self.misfit);
        format!("{best}; next best ({margin}): {}", values.join(", "))
    }
}

impl SecondBest {
    /// By how much it lost, in words.
    fn margin(&self, best: &MisfitShares) -> String {
        let excess = |second: Option<f64>, best: Option<f64>| match (second, best) {
            (Some(second), Some(best)) => second - best,
            _ => 0.0,
        };
        let misfit = &self.misfit;
        let reason = match (self.term, self.further_percent) {
            (Term::Order, _) => "as near".to_owned(),
            (Term::Weights, _) => "unequal weights explain less than half".to_owned(),
            (Term::Decisions, _) => {
                let percent = excess(misfit.decisions_percent, best.decisions_percent);
                format!("decides {percent:.0}% more of the wakeups differently")
            }
            (Term::SliceTimers, _) => {
                let percent = excess(misfit.slice_timers_percent, best.slice_timers_percent);
                format!("sets {percent:.0}% more of the slice timers differently")
            }
            (Term::Times, _) if self.counts_more => {
                "which counts a quarter more without work stealing".to_owned()
            }
            (Term::Times, Some(percent)) => format!("{percent:.0}% further off"),
            (Term::Times, None) => "further off".to_owned(),
        };
        format!("{:.2}%, {reason}", misfit.times_percent)
    }
}

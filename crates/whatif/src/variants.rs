//! Replays of the variants that were asked for.

use crate::auto;
use crate::baseline::Baseline;
use crate::coverage;
use crate::document::Document;
use crate::error::Error;
use crate::fair_class;
use crate::gain::Outcome;
use crate::plan::{Plan, Prepared};
use crate::population_change::{self, PopulationChange};
use crate::replays::{self, Run};
use crate::result::{self, Judged, Variant};

impl Document {
    /// Adds what replays of these plans assume. It is shown before they run.
    pub fn add_assumptions(&mut self, base: &Baseline, plans: &[Plan]) {
        self.assumed.extend(fair_class::dropped_moves(plans, base));
    }

    /// Replays these plans and adds what they change.
    ///
    /// # Errors
    ///
    /// A knob that does not take its value on this host, or the simulator's.
    pub fn add_variants(
        &mut self,
        base: &Baseline,
        plans: &[Plan],
        run: &Run<'_>,
    ) -> Result<(), Error> {
        let close = self.error.is_close();
        (self.variants, self.partial) = variants(base, plans, close, run)?;
        self.advise();
        Ok(())
    }

    /// Chooses changes by what the recording shows, replays each on top of `first`, and ranks them.
    ///
    /// # Errors
    ///
    /// As [`Self::add_variants`].
    pub fn add_candidates(
        &mut self,
        base: &Baseline,
        first: &Plan,
        run: &Run<'_>,
    ) -> Result<(), Error> {
        let close = self.error.is_close();
        let (auto, variants, partial) = auto::run(base, first, close, run)?;
        self.auto = Some(auto);
        (self.variants, self.partial) = (variants, partial);
        self.advise();
        Ok(())
    }

    fn advise(&mut self) {
        let unanswered = self.variants.iter().any(Variant::is_unanswered);
        self.advice = unanswered.then(|| coverage::advice(&self.lacks));
    }
}

/// The variants that were replayed, and whether some were not.
fn variants(
    base: &Baseline,
    plans: &[Plan],
    close: bool,
    run: &Run<'_>,
) -> Result<(Vec<Variant>, bool), Error> {
    if plans.is_empty() {
        return Ok((Vec::new(), false));
    }
    let recorded_knobs = Plan::default().prepare(base)?;
    let mut prepared = vec![recorded_knobs];
    for plan in plans {
        prepared.push(plan.prepare(base)?);
    }
    let replays = replays::all(base, &prepared, run)?;
    let is_same_host = |variant: &Prepared| match prepared.first() {
        Some(recorded_knobs) => variant.is_same_host(base, recorded_knobs),
        None => Ok(false),
    };
    let recorded = [base.recorded.measured()];
    let Some(unchanged) = replays.of_plan(0) else {
        return Ok((Vec::new(), true));
    };
    let mut variants = Vec::new();
    for (index, plan) in (1..).zip(plans) {
        let (Some(after), Some(prepared)) = (replays.of_plan(index), prepared.get(index)) else {
            continue;
        };
        let removed: Vec<usize> = prepared.counts.removed().collect();
        let recorded = population_change::without(&recorded, prepared);
        let unchanged = population_change::without(unchanged, prepared);
        let Some(recorded) = recorded.first() else {
            continue;
        };
        let judged = Judged {
            recorded,
            base: &unchanged,
            before: &unchanged,
            after,
            removed: &removed,
        };
        let Some(mut variant) = result::variant(base, plan.name(), judged, close) else {
            continue;
        };
        variant.population = PopulationChange::new(base, prepared, after);
        // Equal hosts have equal replays: only then is the comparison of hosts worth its time.
        if variant.gain.outcome == Outcome::Same && is_same_host(prepared)? {
            variant.verdict = result::SAME_HOST.to_owned();
        }
        variants.push(variant);
    }
    Ok((variants, replays.is_stopped()))
}

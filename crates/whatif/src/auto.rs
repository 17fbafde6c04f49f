//! `--auto`: changes tried one by one, and ranked.

use serde::Serialize;
use stealtime_doctor::{Change, Decision};

use crate::baseline::Baseline;
use crate::candidates::{self, Cannot};
use crate::decision;
use crate::error::Error;
use crate::gain::Gain;
use crate::on_host;
use crate::plan::Plan;
use crate::population_change;
use crate::replays::{self, Replays, Run};
use crate::result::{self, Judged, Ranked, Variant};

/// A change that was tried.
#[derive(Debug, Clone, Serialize)]
pub struct Tried {
    /// The name of its plan.
    pub name: String,
    /// The arguments of `whatif` that ask for this alone.
    pub arguments: Vec<String>,
    #[serde(skip)]
    plan: Plan,
    /// What the recording shows that gives reason to try it.
    pub why: String,
    /// The steps that make it on the host.
    pub on_host: Vec<Change>,
    /// What it gives and takes.
    #[serde(flatten)]
    pub gain: Gain,
}

/// All of `--auto`.
#[derive(Debug, Clone, Serialize)]
pub struct Auto {
    /// What was set for all of them, as a variant's name; empty: the recorded knobs.
    pub on_top_of: String,
    /// Replays that were run.
    pub replays: usize,
    /// Replays of each change.
    pub seeds: u64,
    /// The best first.
    pub tried: Vec<Tried>,
    /// The one thing to do.
    pub decision: Decision,
    /// Changes that were left out, being more than are tried in one call.
    pub left_out: usize,
    /// What was found but is not for a replay to answer.
    pub cannot: Vec<Cannot>,
}

impl Auto {
    /// What was tried by name with what it gives and takes, the best first.
    #[must_use]
    pub fn rows(&self) -> Vec<Ranked<'_>> {
        let rows = self.tried.iter().map(|tried| Ranked {
            name: &tried.name,
            gain: &tried.gain,
        });
        rows.collect()
    }

    /// Each reason, with the ranks of what was tried because of it.
    #[must_use]
    pub fn reasons(&self) -> Vec<(String, &str)> {
        let mut reasons: Vec<(String, &str)> = Vec::new();
        for (rank, tried) in (1..).zip(&self.tried) {
            let rank: usize = rank;
            match reasons.iter_mut().find(|reason| reason.1 == tried.why) {
                Some((ranks, _)) => ranks.push_str(&format!(", {rank}")),
                None => reasons.push((rank.to_string(), &tried.why)),
            }
        }
        reasons
    }

    /// The best changes, with what they come on top of.
    #[must_use]
    pub fn best(&self, first: &Plan, count: usize) -> Vec<Plan> {
        let best = self.tried.iter().take(count);
        best.map(|tried| tried.plan.on_top_of(first)).collect()
    }
}

/// Chooses, replays and ranks; the variants are in the order of the ranks. Whether it was stopped: then
/// those that were replayed with all seeds are there.
pub(crate) fn run(
    base: &Baseline,
    first: &Plan,
    close: bool,
    run: &Run<'_>,
) -> Result<(Auto, Vec<Variant>, bool), Error> {
    let chosen = candidates::choose(base, first)?;
    let mut plans = vec![Plan::default().prepare(base)?];
    // The plan that they come on top of is their reference, unless it is empty.
    let reference = usize::from(!first.is_empty());
    if reference == 1 {
        plans.push(first.prepare(base)?);
    }
    for candidate in &chosen.candidates {
        plans.push(candidate.plan.on_top_of(first).prepare(base)?);
    }
    let replays = match chosen.candidates.is_empty() {
        true => Replays::default(),
        false => replays::all(base, &plans, run)?,
    };
    let recorded = [base.recorded.measured()];
    let first_host = first.prepare(base)?;
    let removed: Vec<usize> = first_host.counts.removed().collect();
    let recorded = population_change::without(&recorded, &first_host);
    let host_before = first_host.config(base, 0)?;
    let mut rows = Vec::new();
    for (index, candidate) in chosen.candidates.iter().enumerate() {
        let (Some(recorded), Some(recorded_knobs), Some(reference_runs), Some(change_runs)) = (
            recorded.first(),
            replays.of_plan(0),
            replays.of_plan(reference),
            replays.of_plan(reference + 1 + index),
        ) else {
            continue;
        };
        let recorded_knobs = population_change::without(recorded_knobs, &first_host);
        let judged = Judged {
            recorded,
            base: &recorded_knobs,
            before: reference_runs,
            after: change_runs,
            removed: &removed,
        };
        let reason = chosen.reasons.get(candidate.reason);
        let plan = &candidate.plan;
        let Some(variant) = result::variant(base, plan.name(), judged, close) else {
            continue;
        };
        let row = Tried {
            name: plan.name(),
            arguments: plan.arguments(),
            plan: plan.clone(),
            why: reason.cloned().unwrap_or_default(),
            on_host: on_host::changes(plan, base, host_before.clone()),
            gain: variant.gain.clone(),
        };
        rows.push((row, variant));
    }
    // Equals stay in their order.
    rows.sort_by(|a, b| a.0.gain.by_rank(&b.0.gain));
    let (tried, variants) = rows.into_iter().unzip();
    let tried: Vec<Tried> = tried;
    let auto = Auto {
        decision: decision::of_tried(&tried, close),
        on_top_of: first.name(),
        replays: replays.done(),
        seeds: run.seeds,
        tried,
        left_out: chosen.left_out,
        cannot: chosen.cannot,
    };
    Ok((auto, variants, replays.is_stopped()))
}

//! `--auto`: changes tried one by one, and ranked.

use std::sync::atomic::AtomicBool;

use serde::Serialize;

use super::Base;
use super::candidates::{self, Cannot};
use super::gain::Gain;
use super::plan::Plan;
use super::replays::{self, Replays};
use super::result::{self, Judged, Variant};
use crate::error::CliError;

/// A change that was tried.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tried {
    pub(super) name: String,
    /// What asks `whatif` for this alone.
    pub(super) arguments: Vec<String>,
    #[serde(skip)]
    plan: Plan,
    pub(super) why: String,
    #[serde(flatten)]
    pub(super) gain: Gain,
}

/// All of `--auto`.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Auto {
    /// What was set for all of them, as a variant's name; empty: the recorded knobs.
    pub(super) on_top_of: String,
    /// Replays that were run, and of each change.
    pub(super) replays: usize,
    pub(super) seeds: u64,
    /// The best first.
    pub(super) tried: Vec<Tried>,
    /// Changes that were left out, being more than are tried in one call.
    pub(super) left_out: usize,
    pub(super) cannot: Vec<Cannot>,
}

impl Auto {
    /// What was tried by name with what it gives and takes, the best first.
    pub(super) fn rows(&self) -> Vec<(&str, &Gain)> {
        let tried = self.tried.iter();
        tried.map(|one| (one.name.as_str(), &one.gain)).collect()
    }

    /// Each reason, with the ranks of what was tried because of it.
    pub(super) fn reasons(&self) -> Vec<(String, &str)> {
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
    pub(super) fn best(&self, first: &[Plan], most: usize) -> Vec<Plan> {
        let first = first.first().cloned().unwrap_or_default();
        let best = self.tried.iter().take(most);
        best.map(|tried| tried.plan.on_top_of(&first)).collect()
    }
}

/// Chooses, replays and ranks; the variants are in the order of the ranks. Whether it was stopped: then
/// those that were replayed with all seeds are there.
pub(super) fn run(
    verb: &super::WhatIf,
    base: &Base,
    first: &Plan,
    close: bool,
    stop: &AtomicBool,
) -> Result<(Auto, Vec<Variant>, bool), CliError> {
    let chosen = candidates::choose(base, first)?;
    let mut plans = vec![Plan::default().prepare(base)?];
    // What they come on top of, unless that is nothing.
    let before = usize::from(!first.is_empty());
    if before == 1 {
        plans.push(first.prepare(base)?);
    }
    for candidate in &chosen.candidates {
        plans.push(candidate.plan.on_top_of(first).prepare(base)?);
    }
    let replays = match chosen.candidates.is_empty() {
        true => Replays::default(),
        false => replays::all(base, &plans, verb.seeds(), verb.threads(), stop)?,
    };
    let recorded = base.measured();
    let mut rows = Vec::new();
    for (at, candidate) in chosen.candidates.iter().enumerate() {
        let (Some(zero), Some(one), Some(after)) = (
            replays.of_plan(0),
            replays.of_plan(before),
            replays.of_plan(before + 1 + at),
        ) else {
            continue;
        };
        let judged = Judged {
            recorded: &recorded,
            base: zero,
            before: one,
            after,
        };
        let why = chosen.reasons.get(candidate.reason);
        let plan = &candidate.plan;
        let Some(variant) = result::variant(base, plan.name(), judged, close) else {
            continue;
        };
        let row = Tried {
            name: plan.name(),
            arguments: plan.arguments(),
            plan: plan.clone(),
            why: why.cloned().unwrap_or_default(),
            gain: variant.gain.clone(),
        };
        rows.push((row, variant));
    }
    // Equals stay in their order.
    rows.sort_by(|a, b| a.0.gain.by_rank(&b.0.gain));
    let (tried, variants) = rows.into_iter().unzip();
    let auto = Auto {
        on_top_of: first.name(),
        replays: replays.done(),
        seeds: verb.seeds(),
        tried,
        left_out: chosen.left_out,
        cannot: chosen.cannot,
    };
    Ok((auto, variants, replays.is_stopped()))
}

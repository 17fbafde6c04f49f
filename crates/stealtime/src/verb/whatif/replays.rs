//! Many replays on all cores. What comes out does not depend on how many threads there are.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use stealtime_replay::predict;

use super::Base;
use super::plan::Prepared;
use super::result::Measured;
use crate::error::CliError;
use crate::progress::RunProgress;

/// Replays each plan with the seeds 1 to `seeds`, and gives what was measured, plan by plan.
pub(super) fn all(
    base: &Base,
    plans: &[Prepared],
    seeds: u64,
    jobs: NonZeroUsize,
) -> Result<Vec<Vec<Measured>>, CliError> {
    let each = usize::try_from(seeds).unwrap_or(usize::MAX).max(1);
    let total = plans.len().saturating_mul(each);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let progress = RunProgress::new("whatif", total);
    let slots: Vec<Mutex<Option<Result<Measured, CliError>>>> =
        (0..total).map(|_| Mutex::new(None)).collect();
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let (Some(slot), Some(plan)) = (slots.get(at), plans.get(at / each)) else {
                return;
            };
            let result = one(base, plan, (at % each) as u64 + 1);
            let failed = result.is_err();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            if failed {
                // Those that have begun before it end, so that always the first error is told.
                next.store(total, Ordering::Relaxed);
            }
            progress.done(done.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..jobs.get().min(total) {
            scope.spawn(work);
        }
        work();
    });
    let mut measured = Vec::with_capacity(total);
    for slot in slots {
        let result = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        match result {
            Some(result) => measured.push(result?),
            None => return Err(CliError::WhatIf("a replay was not run".to_owned())),
        }
    }
    let mut measured = measured.into_iter();
    let of_plan = |_| measured.by_ref().take(each).collect();
    Ok(plans.iter().map(of_plan).collect())
}

fn one(base: &Base, plan: &Prepared, seed: u64) -> Result<Measured, CliError> {
    let config = plan.config(base, seed)?;
    let times = predict::replay(&base.recording, &config)?;
    Ok(Measured::of(&times, base.vms.len(), base.recording.span_ns))
}

//! Many replays on all cores. What comes out does not depend on how many threads there are.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use stealtime_replay::predict;

use super::Base;
use super::plan::Prepared;
use super::result::Measured;
use crate::error::CliError;
use crate::progress::RunProgress;

/// What was measured.
#[derive(Debug, Default)]
pub(super) struct Replays {
    /// By plan; fewer than were asked for where it was stopped.
    plans: Vec<Vec<Measured>>,
    each: usize,
}

impl Replays {
    /// The replays of a plan, if all of them were run.
    pub(super) fn of_plan(&self, at: usize) -> Option<&[Measured]> {
        let of_plan = self.plans.get(at)?;
        (of_plan.len() == self.each).then_some(of_plan)
    }

    /// Whether some were not run.
    pub(super) fn is_stopped(&self) -> bool {
        self.plans.iter().any(|of_plan| of_plan.len() < self.each)
    }

    /// How many were run.
    pub(super) fn done(&self) -> usize {
        self.plans.iter().map(Vec::len).sum()
    }
}

/// Replays each plan with the seeds 1 to `seeds`, plan by plan, until `stop` is set.
pub(super) fn all(
    base: &Base,
    plans: &[Prepared],
    seeds: u64,
    jobs: NonZeroUsize,
    stop: &AtomicBool,
) -> Result<Replays, CliError> {
    let each = usize::try_from(seeds).unwrap_or(usize::MAX).max(1);
    let total = plans.len().saturating_mul(each);
    let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let progress = RunProgress::new("whatif", total);
    let slots: Vec<Mutex<Option<Result<Measured, CliError>>>> =
        (0..total).map(|_| Mutex::new(None)).collect();
    let work = || {
        while !stop.load(Ordering::Relaxed) {
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
    let mut measured: Vec<Vec<Measured>> = plans.iter().map(|_| Vec::new()).collect();
    for (at, slot) in slots.into_iter().enumerate() {
        let result = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        let of_plan = measured.get_mut(at / each);
        if let (Some(result), Some(of_plan)) = (result, of_plan) {
            of_plan.push(result?);
        }
    }
    Ok(Replays {
        plans: measured,
        each,
    })
}

fn one(base: &Base, plan: &Prepared, seed: u64) -> Result<Measured, CliError> {
    let config = plan.config(base, seed)?;
    let times = predict::replay(&base.recording, &config)?;
    Ok(Measured::of(&times, base.vms.len(), base.recording.span_ns))
}

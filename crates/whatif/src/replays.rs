//! Many replays on all cores. What comes out does not depend on how many threads there are.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use stealtime_replay::predict;

use crate::baseline::Baseline;
use crate::error::Error;
use crate::plan::Prepared;
use crate::population::Population;
use crate::result::Measured;

/// How replays run.
#[derive(Clone, Copy)]
pub struct Run<'r> {
    /// Replays of each variant, with the seeds 1 to this.
    pub seeds: u64,
    /// How many replays run at a time. Results do not depend on it.
    pub jobs: NonZeroUsize,
    /// Set from outside, it stops the run after the replays that have begun.
    pub stop: &'r AtomicBool,
    /// Called with the number of replays; takes the number of those done, until it is dropped.
    pub progress: &'r dyn Fn(usize) -> Box<dyn Fn(usize) + Sync>,
}

impl std::fmt::Debug for Run<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("seeds", &self.seeds)
            .field("jobs", &self.jobs)
            .finish_non_exhaustive()
    }
}

/// What was measured.
#[derive(Debug)]
pub(crate) struct Replays<T = Measured> {
    /// By plan; fewer than were asked for where it was stopped.
    plans: Vec<Vec<T>>,
    each: usize,
}

impl<T> Default for Replays<T> {
    fn default() -> Self {
        Self {
            plans: Vec::new(),
            each: 0,
        }
    }
}

impl<T> Replays<T> {
    /// By plan, then by seed.
    pub(crate) fn into_plans(self) -> Vec<Vec<T>> {
        self.plans
    }

    /// The replays of a plan, if all of them were run.
    pub(crate) fn of_plan(&self, index: usize) -> Option<&[T]> {
        let replays = self.plans.get(index)?;
        (replays.len() == self.each).then_some(replays)
    }

    /// Whether some were not run.
    pub(crate) fn is_stopped(&self) -> bool {
        self.plans.iter().any(|replays| replays.len() < self.each)
    }

    /// How many were run.
    pub(crate) fn done(&self) -> usize {
        self.plans.iter().map(Vec::len).sum()
    }
}

/// Replays each plan with each seed, plan by plan, until the run is stopped.
pub(crate) fn all(base: &Baseline, plans: &[Prepared], run: &Run<'_>) -> Result<Replays, Error> {
    each(plans, run, |plan, seed| one(base, plan, seed))
}

/// As [`all`]: `replay` measures a plan with a seed.
pub(crate) fn each<T: Send>(
    plans: &[Prepared],
    run: &Run<'_>,
    replay: impl Fn(&Prepared, u64) -> Result<T, Error> + Sync,
) -> Result<Replays<T>, Error> {
    let seeds = usize::try_from(run.seeds).unwrap_or(usize::MAX).max(1);
    let total = plans.len().saturating_mul(seeds);
    let (next, finished) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let progress = (run.progress)(total);
    let slots: Vec<Mutex<Option<Result<T, Error>>>> =
        (0..total).map(|_| Mutex::new(None)).collect();
    let work = || {
        while !run.stop.load(Ordering::Relaxed) {
            let index = next.fetch_add(1, Ordering::Relaxed);
            // Beyond the last slot, all replays are taken.
            let (Some(slot), Some(plan)) = (slots.get(index), plans.get(index / seeds)) else {
                break;
            };
            let result = replay(plan, (index % seeds) as u64 + 1);
            let failed = result.is_err();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(result);
            if failed {
                // Earlier replays still end, so that the reported error is always the first one.
                next.store(total, Ordering::Relaxed);
            }
            progress(finished.fetch_add(1, Ordering::Relaxed) + 1);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..run.jobs.get().min(total) {
            scope.spawn(work);
        }
        work();
    });
    let mut measured: Vec<Vec<T>> = plans.iter().map(|_| Vec::new()).collect();
    for (index, slot) in slots.into_iter().enumerate() {
        let result = slot.into_inner().unwrap_or_else(PoisonError::into_inner);
        let replays = measured.get_mut(index / seeds);
        // A slot without a result was not reached before the stop.
        if let (Some(result), Some(replays)) = (result, replays) {
            replays.push(result?);
        }
    }
    Ok(Replays {
        plans: measured,
        each: seeds,
    })
}

fn one(base: &Baseline, plan: &Prepared, seed: u64) -> Result<Measured, Error> {
    let host = plan.host(base, seed)?;
    let times = predict::replay(&host.recording, &host.config)?;
    let span_ns = base.recorded.recording.span_ns;
    let measured = Measured::new(&times, base.recorded.vms.len(), span_ns);
    Ok(match plan.changes_population() {
        true => measured.with_population(Population::new(base, &host, &times)),
        false => measured,
    })
}

//! Many replays on all cores. What comes out does not depend on how many threads there are.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use stealtime_replay::predict;
use stealtime_results::parallel;

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
pub(crate) fn each<P: Sync, T: Send>(
    plans: &[P],
    run: &Run<'_>,
    replay: impl Fn(&P, u64) -> Result<T, Error> + Sync,
) -> Result<Replays<T>, Error> {
    let seeds = usize::try_from(run.seeds).unwrap_or(usize::MAX).max(1);
    let total = plans.len().saturating_mul(seeds);
    // Replays before one that fails still end, so that the reported error is always the first one.
    let (first_failed, finished) = (AtomicUsize::new(total), AtomicUsize::new(0));
    let progress = (run.progress)(total);
    let numbers: Vec<usize> = (0..total).collect();
    let results = parallel::map(&numbers, run.jobs, |&number| {
        let is_needed = number <= first_failed.load(Ordering::Relaxed);
        if run.stop.load(Ordering::Relaxed) || !is_needed {
            return None;
        }
        let result = replay(plans.get(number / seeds)?, (number % seeds) as u64 + 1);
        if result.is_err() {
            first_failed.fetch_min(number, Ordering::Relaxed);
        }
        progress(finished.fetch_add(1, Ordering::Relaxed) + 1);
        Some(result)
    });
    let mut measured: Vec<Vec<T>> = plans.iter().map(|_| Vec::new()).collect();
    for (number, result) in results.into_iter().enumerate() {
        let replays = measured.get_mut(number / seeds);
        // One without a result was not reached before the stop.
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

#[cfg(test)]
mod tests {
    use stealtime_simulator::Fault;

    use super::*;

    /// Replays of three plans with four seeds, on so many threads; a stop after so many.
    fn replays(
        jobs: usize,
        most: usize,
        fails: impl Fn(u64) -> bool + Sync,
    ) -> Result<Replays<u64>, Error> {
        let stop = AtomicBool::new(false);
        let begun = AtomicUsize::new(0);
        let run = Run {
            seeds: 4,
            jobs: NonZeroUsize::new(jobs).expect("not 0"),
            stop: &stop,
            progress: &|_| Box::new(|_| {}),
        };
        each(&[10, 20, 30], &run, |plan, seed| {
            if begun.fetch_add(1, Ordering::Relaxed) + 1 == most {
                stop.store(true, Ordering::Relaxed);
            }
            match plan + seed {
                number if fails(number) => Err(Error::Replay(Fault::Workload {
                    vm: "vm0".to_owned(),
                    what: format!("replay {number}"),
                })),
                number => Ok(number),
            }
        })
    }

    #[test]
    fn results_are_by_plan_and_seed_on_any_number_of_threads() {
        for jobs in [1, 2, 7, 20] {
            let all = replays(jobs, usize::MAX, |_| false).expect("no failure");
            assert!(!all.is_stopped() && all.done() == 12);
            assert_eq!(all.of_plan(1), Some(&[21, 22, 23, 24][..]));
            let plans = all.into_plans();
            assert_eq!(
                plans.concat(),
                [11, 12, 13, 14, 21, 22, 23, 24, 31, 32, 33, 34]
            );
        }
    }

    #[test]
    fn the_first_failure_is_reported_on_any_number_of_threads() {
        for jobs in [1, 2, 7, 20] {
            for _ in 0..50 {
                let error = replays(jobs, usize::MAX, |number| number > 21).expect_err("it fails");
                assert!(error.to_string().contains("replay 22"), "{jobs}: {error}");
            }
        }
    }

    #[test]
    fn a_stop_leaves_out_what_has_not_begun() {
        let stopped = replays(1, 5, |_| false).expect("no failure");
        assert!(stopped.is_stopped() && stopped.done() == 5);
        assert_eq!(
            (stopped.of_plan(0).map(<[u64]>::len), stopped.of_plan(1)),
            (Some(4), None)
        );
    }
}

//! Many runs on all cores.
//!
//! Runs are handed out seed by seed, all variants of a seed before the next: what is done when a
//! user stops is pairs. Threads take the next run from a counter, which keeps that order as a
//! pool that splits the list would not. The results do not depend on how many threads there are.

use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde::{Deserialize, Serialize};
use stealtime_results::parallel;
use stealtime_simulator::config::Config;

use crate::error::LoadError;
use crate::metric::Metric;
use crate::scenario::{Scenario, Setting, Variant};

/// What one run gave.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct RunOutput {
    /// Its metrics, in the order in which they are shown.
    pub metrics: Vec<Metric>,
    /// Events that the simulator worked off.
    pub events: u64,
    /// Simulated time, warm-up included, in ns.
    pub simulated_ns: u64,
}

/// Why a run gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum RunError {
    /// The user has stopped it.
    #[error("stopped")]
    Stopped,
    /// It cannot go on, or not with this configuration.
    #[error("{0}")]
    Failed(String),
    /// A defect: the run panicked.
    #[error("a defect of the simulator: {0}")]
    Panicked(String),
}

/// Something that runs configurations: the simulator, or a stand-in.
pub trait Runner: Sync {
    /// Runs one. Long runs look at `stop` now and then and end with [`RunError::Stopped`].
    ///
    /// # Errors
    ///
    /// [`RunError`].
    fn run(&self, config: &Config, stop: &AtomicBool) -> Result<RunOutput, RunError>;
}

/// A variant and its runs.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantRuns {
    /// Its name.
    pub name: String,
    /// What it changes.
    pub settings: Vec<Setting>,
    /// By seed, in the order of [`Runs::seeds`].
    pub runs: Vec<Result<RunOutput, RunError>>,
}

/// All runs of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// Seeds.
    pub seeds: Vec<u64>,
    /// Variants; the first one is what the others are compared with.
    pub variants: Vec<VariantRuns>,
    /// The user has stopped before the end.
    pub stopped: bool,
}

impl Runs {
    /// Adds runs of the same variants with other seeds.
    pub fn append(&mut self, results: Self) {
        self.seeds.extend(results.seeds);
        for (variant, new) in self.variants.iter_mut().zip(results.variants) {
            debug_assert_eq!(variant.name, new.name);
            variant.runs.extend(new.runs);
        }
        self.stopped |= results.stopped;
    }
}

/// Runs these variants of a scenario with all its seeds, on so many threads.
///
/// `progress` gets the numbers of finished and of all runs, after each run.
///
/// # Errors
///
/// [`LoadError`] before anything runs, if a variant cannot be run.
pub fn run(
    runner: &dyn Runner,
    scenario: &Scenario,
    variants: &[&Variant],
    threads: NonZeroUsize,
    stop: &AtomicBool,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Result<Runs, LoadError> {
    for variant in variants {
        scenario.config(variant, scenario.seeds.first().copied().unwrap_or(1))?;
    }
    let total = scenario.seeds.len() * variants.len();
    let finished = AtomicUsize::new(0);
    let numbers: Vec<usize> = (0..total).collect();
    let results = parallel::map(&numbers, threads, |number| {
        if stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        let seed = scenario.seeds.get(number / variants.len());
        let variant = variants.get(number % variants.len());
        let (Some(seed), Some(variant)) = (seed, variant) else {
            debug_assert!(false, "each number has a seed and a variant");
            return Err(RunError::Stopped);
        };
        let result = one(runner, scenario, variant, *seed, stop);
        progress(finished.fetch_add(1, Ordering::Relaxed) + 1, total);
        result
    });
    let stopped = results.contains(&Err(RunError::Stopped));
    let mut lists: Vec<Vec<_>> = variants.iter().map(|_| Vec::new()).collect();
    for (index, result) in results.into_iter().enumerate() {
        if let Some(list) = lists.get_mut(index % variants.len()) {
            list.push(result);
        }
    }
    let named = variants
        .iter()
        .zip(lists)
        .map(|(variant, runs)| VariantRuns {
            name: variant.name.clone(),
            settings: variant.settings.clone(),
            runs,
        });
    Ok(Runs {
        seeds: scenario.seeds.clone(),
        variants: named.collect(),
        stopped,
    })
}

fn one(
    runner: &dyn Runner,
    scenario: &Scenario,
    variant: &Variant,
    seed: u64,
    stop: &AtomicBool,
) -> Result<RunOutput, RunError> {
    let config = scenario.config(variant, seed);
    let config = config.map_err(|error| RunError::Failed(error.to_string()))?;
    guarded(runner, &config, stop)
}

/// Runs a configuration; a panic is an error.
pub(crate) fn guarded(
    runner: &dyn Runner,
    config: &Config,
    stop: &AtomicBool,
) -> Result<RunOutput, RunError> {
    // A run shares nothing with others: what it leaves half-done is dropped with it.
    let run = catch_unwind(AssertUnwindSafe(|| runner.run(config, stop)));
    run.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(RunError::Panicked(text.unwrap_or("no message").to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::{Better, Unit};

    const TEXT: &str = "[host]\nprofile = \"skylake-sp\"\ncpus = 4\n[[vm]]\nvcpus = 2\n\
        workload = \"busy\"\n[variants.a]\n[variants.b]\nkvm.halt_poll_ns = 0\n[run]\nseeds = 20\n";

    /// A value that only the configuration gives.
    struct Fake;

    impl Runner for Fake {
        fn run(&self, config: &Config, _stop: &AtomicBool) -> Result<RunOutput, RunError> {
            let seed = config.run.seed;
            let poll = u64::from(config.knobs.kvm.halt_poll.halt_poll_ns);
            let value = (seed * 7_919 % 101 + poll) as f64;
            Ok(RunOutput {
                metrics: vec![Metric::host("x", Unit::Count, Better::Lower, value)],
                events: seed,
                simulated_ns: 1,
            })
        }
    }

    fn all(scenario: &Scenario, runner: &dyn Runner, threads: usize, stop: &AtomicBool) -> Runs {
        let variants: Vec<&Variant> = scenario.variants.iter().collect();
        let threads = NonZeroUsize::new(threads).expect("not 0");
        run(runner, scenario, &variants, threads, stop, &|_, _| {}).expect("it can be run")
    }

    #[test]
    fn any_number_of_threads_gives_the_same() {
        let scenario = Scenario::from_text("a.toml", TEXT).expect("a scenario");
        let go = AtomicBool::new(false);
        let one = all(&scenario, &Fake, 1, &go);
        assert_eq!(one.variants[1].runs.len(), 20);
        assert!(!one.stopped);
        for threads in [2, 5, 64] {
            assert_eq!(all(&scenario, &Fake, threads, &go), one);
        }
    }

    /// Stops after some runs.
    struct Stopping(AtomicUsize);

    impl Runner for Stopping {
        fn run(&self, config: &Config, stop: &AtomicBool) -> Result<RunOutput, RunError> {
            if self.0.fetch_add(1, Ordering::Relaxed) == 5 {
                stop.store(true, Ordering::Relaxed);
                return Err(RunError::Stopped);
            }
            Fake.run(config, stop)
        }
    }

    #[test]
    fn what_was_done_before_a_stop_is_kept() {
        let scenario = Scenario::from_text("a.toml", TEXT).expect("a scenario");
        let runs = all(
            &scenario,
            &Stopping(AtomicUsize::new(0)),
            1,
            &AtomicBool::new(false),
        );
        assert!(runs.stopped);
        let done = |at: usize| {
            runs.variants[at]
                .runs
                .iter()
                .filter(|run| run.is_ok())
                .count()
        };
        assert_eq!((done(0), done(1)), (3, 2));
    }

    struct Panicking;

    impl Runner for Panicking {
        fn run(&self, config: &Config, stop: &AtomicBool) -> Result<RunOutput, RunError> {
            assert_ne!(config.run.seed, 3, "of all seeds");
            Fake.run(config, stop)
        }
    }

    #[test]
    fn a_run_that_panics_takes_no_other_with_it() {
        let scenario = Scenario::from_text("a.toml", TEXT).expect("a scenario");
        let runs = all(&scenario, &Panicking, 2, &AtomicBool::new(false));
        let failed: Vec<_> = runs.variants[0]
            .runs
            .iter()
            .filter(|run| run.is_err())
            .collect();
        assert_eq!(failed.len(), 1);
        let text = failed[0].as_ref().expect_err("it failed").to_string();
        assert!(text.contains("of all seeds"), "{text}");
        assert!(!runs.stopped);
    }
}

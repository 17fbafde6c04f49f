//! Grids of runs on all cores, that can be stopped at any moment and go on.
//!
//! A [`Plan`] is the grid: what is varied, the scenario's variants, its seeds. Configurations are made
//! when their turn comes. A [`Sweep`] is a folder: what it is a sweep of, a [`Journal`] of finished
//! runs, and the results. The results are a function of the plan alone: not of the number of threads,
//! nor of where a sweep was stopped and went on.

mod cell;
mod effects;
mod error;
mod folder;
mod journal;
mod merge;
mod plan;
mod record;
mod shard;
mod table;
mod time;
mod values;
mod window;
mod work;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use effects::{Best, BestPoint, Effect, Level, Summary};
pub use error::SweepError;
pub use journal::Journal;
pub use merge::Merged;
pub use plan::{Dimension, MOST_RUNS, Place, Plan};
pub use record::{Ended, MetricKind};
pub use shard::{MOST_SHARDS, Shard, ShardError};
pub use stealtime_results::{Cell, CellKind, Form};
pub use table::{Column, Columns};
pub use time::Time;
pub use values::{RangeProblem, Varied, VaryError, vary};

use crate::run::{RunError, RunOutput, Runner, guarded};
use folder::{Folder, Manifest};
use stealtime_results::Note;

/// Runs that an estimate tries, for each thread.
const TRIALS: u64 = 4;
/// How long it tries.
const TRIAL_TIME: Duration = Duration::from_secs(20);
/// A power failure loses the runs of this time. A sync for each run would take longer than the run.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long the runs that are left will take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Runs that the journal lacks.
    pub remaining: u64,
    /// Seconds, at so many runs at a time as were tried.
    pub seconds: f64,
    /// Not one run was finished in the time: it takes longer.
    pub at_least: bool,
}

/// A sweep in its folder.
#[derive(Debug)]
pub struct Sweep {
    /// The grid.
    pub plan: Plan,
    folder: Folder,
    journal: Journal,
    /// The only runs of it that this folder has.
    shard: Option<Shard>,
}

impl Sweep {
    /// Begins a sweep in a folder, or goes on with the one that is there if it is the same.
    /// `restart`: former runs are removed.
    ///
    /// # Errors
    ///
    /// [`SweepError`]: the folder is something else, or cannot be used.
    pub fn open(
        path: &Path,
        plan: Plan,
        shard: Option<Shard>,
        restart: bool,
    ) -> Result<Self, SweepError> {
        let folder = Folder::open(path, &Manifest::of(&plan, shard), restart)?;
        let journal = Journal::open(&folder.journal(), plan.runs())?;
        Ok(Self {
            plan,
            folder,
            journal,
            shard,
        })
    }

    /// How many runs the folder has when it is done: those of its shard, or all.
    #[must_use]
    pub fn runs(&self) -> u64 {
        match self.shard {
            None => self.plan.runs(),
            Some(shard) => (0..self.plan.runs()).filter(|run| shard.has(*run)).count() as u64,
        }
    }

    /// Whether a run is for this folder and not finished.
    fn lacks(&self, run: u64) -> bool {
        self.shard.is_none_or(|shard| shard.has(run)) && !self.journal.has(run)
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// The finished runs.
    #[must_use]
    pub const fn journal(&self) -> &Journal {
        &self.journal
    }

    /// Whether all runs are finished.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.journal.done() == self.runs()
    }

    /// Does one finished run again: results of two builds that differ must not become one table.
    ///
    /// # Errors
    ///
    /// [`SweepError::OtherBuild`] if it comes out otherwise.
    pub fn verify(&self, runner: &dyn Runner, stop: &AtomicBool) -> Result<(), SweepError> {
        let recorded = (0..self.plan.runs()).find(|run| self.journal.has(*run));
        let Some(run) = recorded else {
            return Ok(());
        };
        let Ok(config) = self.plan.config(run) else {
            return Ok(());
        };
        let again = guarded(runner, &config, stop);
        if again == Err(RunError::Stopped) {
            return Ok(());
        }
        match self.journal.agrees(run, &again)? {
            true => Ok(()),
            false => Err(SweepError::OtherBuild {
                path: self.path().to_owned(),
                run,
                done: self.journal.done(),
            }),
        }
    }

    /// Does a few of the runs that are left, from all over the grid, and says how long the rest will
    /// take. `None` where there are too few of them to ask.
    ///
    /// # Errors
    ///
    /// As [`Sweep::run`].
    pub fn estimate(
        &mut self,
        runner: &dyn Runner,
        threads: NonZeroUsize,
        stop: &AtomicBool,
    ) -> Result<Option<Estimate>, SweepError> {
        let trials = TRIALS * threads.get() as u64;
        let remaining = self.runs() - self.journal.done();
        if remaining <= 2 * trials {
            return Ok(None);
        }
        let stride = self.plan.runs() / trials;
        // Not each at the same place of its stretch: that could be the same value of a knob each time.
        let spread = (0..trials).map(|n| n * stride + n * 7_919 % stride.max(1));
        let order: Vec<u64> = spread.filter(|run| self.lacks(*run)).collect();
        let next = AtomicUsize::new(0);
        let order = || order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
        let work = self.record(runner, threads, stop, Some(TRIAL_TIME), &order, &mut |_| {})?;
        let remaining = self.runs() - self.journal.done();
        let (per_call, at_least) = match work.runs {
            0 => (work.wall.as_secs_f64(), true),
            runs => (work.in_runs.as_secs_f64() / runs as f64, false),
        };
        Ok(Some(Estimate {
            remaining,
            seconds: per_call * remaining as f64 / threads.get() as f64,
            at_least,
        }))
    }

    /// Does what is left, on so many threads. The journal has every run some milliseconds later.
    /// `progress` gets the number of finished runs.
    ///
    /// # Errors
    ///
    /// [`SweepError`]: nothing can be written any more. The finished runs are kept.
    pub fn run(
        &mut self,
        runner: &dyn Runner,
        threads: NonZeroUsize,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), SweepError> {
        let is_missing: Vec<bool> = (0..self.plan.runs()).map(|run| self.lacks(run)).collect();
        let next = AtomicUsize::new(0);
        let order = || loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            if *is_missing.get(run)? {
                return Some(run as u64);
            }
        };
        self.record(runner, threads, stop, None, &order, progress)?;
        Ok(())
    }

    /// Does runs in this order and records them.
    fn record(
        &mut self,
        runner: &dyn Runner,
        threads: NonZeroUsize,
        stop: &AtomicBool,
        limit: Option<Duration>,
        order: &(dyn Fn() -> Option<u64> + Sync),
        progress: &mut dyn FnMut(u64),
    ) -> Result<work::Work, SweepError> {
        let mut job = work::Job::new(&self.plan, runner, threads, stop);
        job.limit = limit;
        let journal = &mut self.journal;
        let mut synced = Instant::now();
        let mut add = |run: u64, result: Result<RunOutput, RunError>| {
            journal.append(run, &result)?;
            progress(journal.done());
            if synced.elapsed() > SYNC_INTERVAL {
                journal.sync()?;
                synced = Instant::now();
            }
            Ok(())
        };
        let work = work::run(&job, order, &mut add);
        let synced = self.journal.sync();
        work.and_then(|work| synced.map(|()| work))
            .map_err(|error| self.kept(error))
    }

    /// Adds to an error of a file how many runs are kept.
    fn kept(&self, error: SweepError) -> SweepError {
        match error {
            SweepError::File { path, source } => SweepError::Kept {
                path,
                source,
                done: self.journal.done(),
                runs: self.runs(),
            },
            other => other,
        }
    }

    /// Writes all finished runs, in the order of the grid, on so many threads.
    ///
    /// # Errors
    ///
    /// The file, and what the operating system said. A file that was there stays as it was.
    pub fn write(&self, form: Form, threads: NonZeroUsize) -> Result<PathBuf, SweepError> {
        let columns = Columns::of(&self.plan, &self.journal);
        // The journal's errors are not the file's.
        let mut unread = None;
        let written = self.folder.whole(&Folder::results(form), |writer| {
            let described = serde_json::to_string(&columns.all)?;
            let notes = [
                Note {
                    key: "stealtime.version",
                    value: env!("CARGO_PKG_VERSION"),
                },
                Note {
                    key: "stealtime.columns",
                    value: &described,
                },
            ];
            let of_files = columns.of_files();
            let mut file = form.begin("sweep", &of_files, &notes, writer)?;
            for runs in self.journal.groups() {
                let rows = columns.rows(&self.plan, &self.journal, &runs, threads);
                let rows = rows.map_err(|error| {
                    unread = Some(error);
                    std::io::Error::from(std::io::ErrorKind::InvalidData)
                })?;
                file.append(form.encode(&of_files, &rows, threads)?)?;
            }
            file.end()
        });
        unread
            .map_or(written, Err)
            .map_err(|error| self.kept(error))
    }

    /// Whether the results are there in this form.
    #[must_use]
    pub fn has_results(&self, form: Form) -> bool {
        self.folder.has(&Folder::results(form))
    }

    /// What each knob does to some metrics, by the names of their columns; to throughput and latency
    /// if none are named.
    ///
    /// # Errors
    ///
    /// [`SweepError::Metric`], or the journal cannot be read.
    pub fn summary(
        &self,
        metrics: &[String],
        threads: NonZeroUsize,
    ) -> Result<Summary, SweepError> {
        effects::summary(&self.plan, &self.journal, metrics, threads)
    }
}

#[cfg(test)]
mod tests;

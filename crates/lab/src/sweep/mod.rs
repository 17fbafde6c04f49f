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
mod form;
mod journal;
mod plan;
mod record;
mod table;
mod time;
mod values;
mod work;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

pub use cell::{Cell, CellKind};
pub use effects::{Best, BestPoint, Effect, Level, Summary};
pub use error::SweepError;
pub use form::Form;
pub use journal::Journal;
pub use plan::{Dimension, MOST_RUNS, Place, Plan};
pub use record::{Ended, MetricKind};
pub use table::{Column, Columns};
pub use time::Time;
pub use values::vary;
pub use work::Work;

use crate::run::{RunError, Runner, guarded};
use folder::{Folder, Manifest};

/// The least and the most runs of a part, and how many parts there should be.
const PART: (u64, u64, u64) = (16, 4_096, 64);
/// Runs that an estimate looks at, for each thread.
const TRIALS: u64 = 4;
/// How long it looks.
const TRIAL_TIME: Duration = Duration::from_secs(20);

/// How long the runs that are left will take.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Runs that are left.
    pub left: u64,
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
}

impl Sweep {
    /// Begins a sweep in a folder, or goes on with the one that is there if it is the same.
    /// `restart`: what is there of a sweep is thrown away.
    ///
    /// # Errors
    ///
    /// [`SweepError`]: the folder is something else, or cannot be used.
    pub fn open(path: &Path, plan: Plan, restart: bool) -> Result<Self, SweepError> {
        let folder = Folder::open(path, &Manifest::of(&plan), restart)?;
        let journal = Journal::open(&folder.journal(), plan.runs())?;
        Ok(Self {
            plan,
            folder,
            journal,
        })
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
        self.journal.done() == self.plan.runs()
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
        let Some(ended) = self.journal.ended(run)? else {
            return Ok(());
        };
        let Ok(config) = self.plan.config(run) else {
            return Ok(());
        };
        let again = guarded(runner, &config, stop);
        let same = match (&again, &ended) {
            (Err(RunError::Stopped), _) => true,
            (Err(error), Ended::Failed(recorded)) => error == recorded,
            (
                Ok(output),
                Ended::Done {
                    list,
                    events,
                    values,
                },
            ) => {
                let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
                let now: Vec<f64> = output.metrics.iter().map(|metric| metric.value).collect();
                let kinds = record::Kinds::of(&output.metrics);
                self.journal.kinds(*list) == Some(&kinds)
                    && *events == output.events
                    && bits(values) == bits(&now)
            }
            _ => false,
        };
        match same {
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
        let left = self.plan.runs() - self.journal.done();
        if left <= 2 * trials {
            return Ok(None);
        }
        let stride = self.plan.runs() / trials;
        // Not each at the same place of its stretch: that could be the same value of a knob each time.
        let spread = (0..trials).map(|n| n * stride + n * 7_919 % stride.max(1));
        let order: Vec<u64> = spread.filter(|run| !self.journal.has(*run)).collect();
        let next = AtomicUsize::new(0);
        let order = || order.get(next.fetch_add(1, Ordering::Relaxed)).copied();
        let mut job = work::Job::new(&self.plan, runner, threads, stop);
        job.limit = Some(TRIAL_TIME);
        let journal = &mut self.journal;
        let work = work::run(&job, &order, &mut |run, result| journal.append(run, result))?;
        self.journal.sync()?;
        let left = self.plan.runs() - self.journal.done();
        let (each, at_least) = match work.runs {
            0 => (work.wall.as_secs_f64(), true),
            runs => (work.in_runs.as_secs_f64() / runs as f64, false),
        };
        Ok(Some(Estimate {
            left,
            seconds: each * left as f64 / threads.get() as f64,
            at_least,
        }))
    }

    /// Does what is left, on so many threads. Every finished run is kept at once; a part of the grid
    /// that is finished becomes a Parquet file in `parts`. `progress` is told how many runs are
    /// finished.
    ///
    /// # Errors
    ///
    /// [`SweepError`]: nothing can be written any more. What was finished is kept.
    pub fn run(
        &mut self,
        runner: &dyn Runner,
        threads: NonZeroUsize,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Work, SweepError> {
        let Self {
            plan,
            folder,
            journal,
        } = self;
        let runs = plan.runs();
        let size = (runs / PART.2).clamp(PART.0, PART.1);
        let parts = runs.div_ceil(size);
        let mut left: Vec<u64> = Vec::new();
        let mut to_do = vec![0_u64; usize::try_from(runs.div_ceil(64)).unwrap_or(usize::MAX)];
        for run in 0..runs {
            let part = usize::try_from(run / size).unwrap_or(usize::MAX);
            left.resize(left.len().max(part + 1), 0);
            let word = to_do.get_mut(usize::try_from(run / 64).unwrap_or(usize::MAX));
            if let (false, Some(left), Some(word)) = (journal.has(run), left.get_mut(part), word) {
                *left += 1;
                *word |= 1 << (run % 64);
            }
        }
        // A grid of one part is in the results as soon.
        let has_parts = parts > 1 && journal.done() < runs;
        let part = |journal: &Journal, number: u64| {
            let range = number * size..((number + 1) * size).min(runs);
            write_rows(
                plan,
                folder,
                journal,
                range,
                Form::Parquet,
                &Folder::part(number),
            )
        };
        if has_parts {
            folder.make_parts()?;
            for number in 0..parts {
                let is_done = left.get(number as usize) == Some(&0);
                if is_done && !folder.has(&Folder::part(number)) {
                    part(journal, number)?;
                }
            }
        }
        let next = AtomicU64::new(0);
        let order = || loop {
            let run = next.fetch_add(1, Ordering::Relaxed);
            let word = to_do.get(usize::try_from(run / 64).unwrap_or(usize::MAX))?;
            if word >> (run % 64) & 1 == 1 {
                return Some(run);
            }
        };
        let job = work::Job::new(plan, runner, threads, stop);
        let mut synced = std::time::Instant::now();
        let mut add = |run: u64, result| -> Result<(), SweepError> {
            journal.append(run, result)?;
            progress(journal.done());
            if synced.elapsed() > Duration::from_secs(1) {
                journal.sync()?;
                synced = std::time::Instant::now();
            }
            let number = run / size;
            if let Some(left) = left.get_mut(usize::try_from(number).unwrap_or(usize::MAX)) {
                *left -= 1;
                if *left == 0 && has_parts {
                    part(journal, number)?;
                }
            }
            Ok(())
        };
        let work = work::run(&job, &order, &mut add);
        let synced = self.journal.sync();
        work.and_then(|work| synced.map(|()| work))
            .map_err(|error| self.kept(error))
    }

    /// What could not be written is told with what is kept all the same.
    fn kept(&self, error: SweepError) -> SweepError {
        match error {
            SweepError::File { path, source } => SweepError::Kept {
                path,
                source,
                done: self.journal.done(),
                runs: self.plan.runs(),
            },
            other => other,
        }
    }

    /// Writes all finished runs, in the order of the grid.
    ///
    /// # Errors
    ///
    /// The file, and what the operating system said. A file that was there stays as it was.
    pub fn write(&self, form: Form) -> Result<PathBuf, SweepError> {
        let (plan, folder, journal) = (&self.plan, &self.folder, &self.journal);
        let name = Folder::results(form);
        write_rows(plan, folder, journal, 0..plan.runs(), form, &name)
            .map_err(|error| self.kept(error))
    }

    /// Whether the results are there in this form.
    #[must_use]
    pub fn has_results(&self, form: Form) -> bool {
        self.folder.has(&Folder::results(form))
    }

    /// Removes the parts, when the results are written.
    ///
    /// # Errors
    ///
    /// A file cannot be removed.
    pub fn remove_parts(&self) -> Result<(), SweepError> {
        self.folder.remove_parts()
    }

    /// What each knob does to some metrics, by the names of their columns; to throughput and latency
    /// if none are named.
    ///
    /// # Errors
    ///
    /// [`SweepError::Metric`], or the journal cannot be read.
    pub fn summary(&self, metrics: &[String]) -> Result<Summary, SweepError> {
        effects::summary(&self.plan, &self.journal, metrics)
    }
}

fn write_rows(
    plan: &Plan,
    folder: &Folder,
    journal: &Journal,
    runs: std::ops::Range<u64>,
    form: Form,
    name: &str,
) -> Result<PathBuf, SweepError> {
    let columns = Columns::of(plan, journal, runs.clone());
    // The journal's errors are not the file's.
    let mut unread = None;
    let written = folder.whole(name, |out| {
        let mut rows = form.begin(&columns.all, out)?;
        for run in runs {
            match columns.row(plan, journal, run) {
                Ok(Some(row)) => rows.row(row)?,
                Ok(None) => {}
                Err(error) => {
                    unread = Some(error);
                    return Err(std::io::ErrorKind::InvalidData.into());
                }
            }
        }
        rows.end()
    });
    match unread {
        Some(error) => Err(error),
        None => written,
    }
}

#[cfg(test)]
mod tests;

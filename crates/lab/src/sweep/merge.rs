//! One sweep of the folders of its parts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::folder::{Folder, Manifest};
use super::{Shard, Sweep, SweepError};

/// Parts that a message lists.
const MOST_SHOWN: usize = 20;

impl Sweep {
    /// Merges folders of one sweep, in any order, with any of its runs, some in several. The result at
    /// `path` is the folder of that sweep as a whole; runs that it has already count too.
    ///
    /// # Errors
    ///
    /// [`SweepError`]: a folder is of another sweep, and nothing is merged; or folders disagree about a
    /// run, and what was merged before is kept.
    pub fn merge(path: &Path, folders: &[PathBuf], restart: bool) -> Result<Merged, SweepError> {
        let mut first: Option<(&Path, Manifest)> = None;
        let mut shards = None;
        for folder in folders {
            let (_lock, manifest) = Folder::existing(folder)?;
            shards = shards.or(manifest.shard().map(Shard::count));
            let manifest = manifest.whole();
            match &first {
                None => first = Some((folder, manifest)),
                Some((first, known)) if !known.is_same(&manifest) => {
                    return Err(SweepError::Unlike {
                        path: folder.clone(),
                        first: (*first).to_owned(),
                        differences: known.differences(&manifest),
                    });
                }
                Some(_) => {}
            }
        }
        let Some((first, manifest)) = first else {
            return Err(SweepError::NoSweep {
                path: path.to_owned(),
            });
        };
        let plan = manifest.plan().map_err(|problem| SweepError::Manifest {
            path: first.to_owned(),
            problem: problem.to_string(),
        })?;
        let mut sweep = Self::open(path, plan, None, restart)?;
        for folder in folders.iter().filter(|folder| *folder != path) {
            let (folder, _) = Folder::existing(folder)?;
            let merged = sweep.journal.take(&folder);
            merged.map_err(|error| sweep.kept(error))?;
        }
        sweep.journal.sync()?;
        Ok(Merged { sweep, shards })
    }
}

/// A sweep of merged folders.
#[derive(Debug)]
pub struct Merged {
    /// The whole, with the runs that the folders have.
    pub sweep: Sweep,
    /// How many shards the sweep was in, if any folder is of one.
    shards: Option<u64>,
}

impl Merged {
    /// Whether all runs are there.
    ///
    /// # Errors
    ///
    /// [`SweepError::Missing`] with the shards that lack runs, or the seeds if there were no shards.
    pub fn check(&self) -> Result<(), SweepError> {
        if self.sweep.is_done() {
            return Ok(());
        }
        let plan = &self.sweep.plan;
        // By shard or seed: missing runs of all.
        let mut parts: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for run in 0..plan.runs() {
            let part = match self.shards {
                Some(count) => Shard::number_of(run, count),
                None => plan.seeds.get(plan.place(run).seed).copied().unwrap_or(0),
            };
            let (missing, runs) = parts.entry(part).or_default();
            *missing += u64::from(!self.sweep.journal.has(run));
            *runs += 1;
        }
        parts.retain(|_, (missing, _)| *missing > 0);
        let missing = parts.values().map(|(missing, _)| missing).sum();
        if missing == 0 {
            return Ok(());
        }
        let mut shown: Vec<String> = parts
            .iter()
            .take(MOST_SHOWN)
            .map(|(part, (missing, runs))| match self.shards {
                Some(count) => format!("shard {part}/{count} lacks {missing} of {runs} runs"),
                None => format!("seed {part} lacks {missing} of {runs} runs"),
            })
            .collect();
        if parts.len() > MOST_SHOWN {
            shown.push(format!("… {} more", parts.len() - MOST_SHOWN));
        }
        Err(SweepError::Missing {
            path: self.sweep.path().to_owned(),
            missing,
            runs: plan.runs(),
            parts: shown,
        })
    }
}

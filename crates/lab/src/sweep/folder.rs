//! The folder of a sweep: what it is a sweep of, its journal, and the results.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::plan::Plan;
use super::{Form, Shard, SweepError, Varied};
use crate::LoadError;
use crate::knobs::split_setting;
use crate::scenario::{Scenario, Variant};
use crate::units::{Plain, show_time, time};

/// What a sweep is of.
const MANIFEST: &str = "sweep.json";
/// Its finished runs.
const JOURNAL: &str = "runs.journal";
/// The results' name, before the dot.
const RESULTS: &str = "results";
/// Characters of a list of values in a message.
const MOST_SHOWN: usize = 100;

/// Why the description of a sweep gives no grid.
#[derive(Debug, thiserror::Error)]
pub(super) enum ManifestError {
    #[error("version {written} wrote it, this is {}", env!("CARGO_PKG_VERSION"))]
    Version { written: String },
    #[error("it gives another grid here than where it was written")]
    Damaged,
    #[error("{0}")]
    Load(LoadError),
    #[error("{0}")]
    Plan(#[from] Box<SweepError>),
}

impl From<SweepError> for ManifestError {
    fn from(error: SweepError) -> Self {
        Self::Plan(Box::new(error))
    }
}

/// Everything that the results depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    version: String,
    /// As the user named it; another path to the same text is the same sweep.
    scenario: String,
    text: String,
    /// As on the command line, like `vary`.
    set: Vec<String>,
    vary: Vec<VariedValues>,
    variants: Vec<String>,
    seeds: Vec<u64>,
    duration: String,
    warmup: String,
    /// Figures of each machine: profiles may be files.
    machines: Vec<Vec<String>>,
    /// `K/N`, for a folder that has only these runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    shard: Option<String>,
}

/// A dimension of the grid, by the texts of its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct VariedValues {
    knob: String,
    values: Vec<String>,
}

impl Manifest {
    pub(super) fn of(plan: &Plan, shard: Option<Shard>) -> Self {
        let scenario = plan.scenario();
        let set = scenario.map_or(&[][..], Scenario::sets).iter();
        let vary = plan.dimensions.iter();
        let figures = |scenario: &Scenario| {
            let figures = scenario.figures.iter();
            figures.map(|f| format!("{}={}", f.key, f.value)).collect()
        };
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: scenario.map_or_else(String::new, |s| s.file.clone()),
            text: scenario.map_or_else(String::new, |s| s.text().to_owned()),
            set: set.map(|s| format!("{}={}", s.knob, s.value)).collect(),
            vary: vary
                .map(|d| VariedValues {
                    knob: d.knob.clone(),
                    values: d.values.clone(),
                })
                .collect(),
            variants: plan.variants.iter().map(|v| v.name.clone()).collect(),
            seeds: plan.seeds.clone(),
            duration: show_time(scenario.map_or(0, Scenario::duration_ns)),
            warmup: show_time(scenario.map_or(0, Scenario::warmup_ns)),
            machines: plan.scenarios().iter().map(figures).collect(),
            shard: shard.map(|shard| shard.to_string()),
        }
    }

    /// The shard of the folder.
    pub(super) fn shard(&self) -> Option<Shard> {
        self.shard.as_deref()?.parse().ok()
    }

    /// The same sweep as a whole.
    pub(super) fn whole(&self) -> Self {
        Self {
            shard: None,
            ..self.clone()
        }
    }

    /// The grid that it describes.
    pub(super) fn plan(&self) -> Result<Plan, ManifestError> {
        if self.version != env!("CARGO_PKG_VERSION") {
            return Err(ManifestError::Version {
                written: self.version.clone(),
            });
        }
        let mut scenario =
            Scenario::from_text(&self.scenario, &self.text).map_err(ManifestError::Load)?;
        let duration = time(&self.duration, Plain::Refused).map_err(|_| ManifestError::Damaged)?;
        scenario.set_duration_ns(duration);
        scenario.seeds.clone_from(&self.seeds);
        for set in &self.set {
            let (knob, value) = split_setting(set).ok_or(ManifestError::Damaged)?;
            let result = scenario.set(knob, value);
            result.map_err(|_| ManifestError::Damaged)?;
        }
        let chosen = |variant: &&Variant| self.variants.contains(&variant.name);
        let variants = scenario.variants.iter().filter(chosen).cloned().collect();
        let vary = self.vary.iter().map(|varied| Varied {
            knob: varied.knob.clone(),
            values: varied.values.clone(),
        });
        let plan = Plan::new(scenario, variants, vary.collect())?;
        // A profile may be a file that this machine lacks or has otherwise.
        match Self::of(&plan, self.shard()) == *self {
            true => Ok(plan),
            false => Err(ManifestError::Damaged),
        }
    }

    /// What is different in `recorded`, as clauses.
    pub(super) fn differences(&self, recorded: &Self) -> Vec<String> {
        let vary = |manifest: &Self| {
            let texts = manifest.vary.iter();
            let texts = texts.map(|d| format!("{}={}", d.knob, d.values.join(",")));
            texts.collect::<Vec<_>>().join(" ")
        };
        let shard = |manifest: &Self| manifest.shard.clone().unwrap_or_default();
        let seeds = |seeds: &[u64]| {
            let texts: Vec<String> = seeds.iter().map(u64::to_string).collect();
            texts.join(",")
        };
        let rows = [
            ("version", recorded.version.clone(), self.version.clone()),
            ("--vary", vary(recorded), vary(self)),
            ("--set", recorded.set.join(" "), self.set.join(" ")),
            (
                "variants",
                recorded.variants.join(","),
                self.variants.join(","),
            ),
            ("seeds", seeds(&recorded.seeds), seeds(&self.seeds)),
            ("duration", recorded.duration.clone(), self.duration.clone()),
            ("warm-up", recorded.warmup.clone(), self.warmup.clone()),
            ("--shard", shard(recorded), shard(self)),
        ];
        let unlike = rows
            .into_iter()
            .filter(|(_, kept_value, current)| kept_value != current);
        let mut found: Vec<String> = unlike
            .map(|(name, kept_value, current)| {
                format!("{name}: there {}, here {}", few(&kept_value), few(&current))
            })
            .collect();
        if self.text != recorded.text {
            let mut lines = self.text.lines().zip(recorded.text.lines());
            let first_change = lines.position(|(current, kept_value)| current != kept_value);
            let shorter = || self.text.lines().count().min(recorded.text.lines().count());
            let line = first_change.unwrap_or_else(shorter) + 1;
            found.push(format!("the scenario's text, from line {line} on"));
        } else if self.machines != recorded.machines {
            found.push("figures of the machine's profile".to_owned());
        }
        found
    }

    pub(super) fn is_same(&self, recorded: &Self) -> bool {
        let recorded = Self {
            scenario: self.scenario.clone(),
            ..recorded.clone()
        };
        *self == recorded
    }
}

/// The beginning of a long list of values.
fn few(values: &str) -> String {
    match values.char_indices().nth(MOST_SHOWN) {
        Some((end, _)) => format!("{}…", &values[..end]),
        None if values.is_empty() => "nothing".to_owned(),
        None => values.to_owned(),
    }
}

/// A sweep's folder, locked for this process.
#[derive(Debug)]
pub(super) struct Folder(stealtime_results::Folder);

impl Folder {
    /// Makes the folder, or opens that of the same sweep. `restart`: removes former runs.
    pub(super) fn open(
        path: &Path,
        manifest: &Manifest,
        restart: bool,
    ) -> Result<Self, SweepError> {
        let failed = |source| SweepError::file(path, source);
        fs::create_dir_all(path).map_err(failed)?;
        let folder = Self(stealtime_results::Folder::lock(path)?);
        match folder.manifest()? {
            Some(there) if manifest.is_same(&there) && !restart => return Ok(folder),
            Some(_) if restart => folder.clear()?,
            Some(there) => {
                return Err(SweepError::Another {
                    path: path.to_owned(),
                    differences: manifest.differences(&there),
                });
            }
            // What a sweep that was killed while it began leaves behind is nothing.
            None if folder.0.is_empty_but(&[MANIFEST])? => {}
            None => {
                return Err(SweepError::NotASweep {
                    path: path.to_owned(),
                });
            }
        }
        let text = serde_json::to_string_pretty(manifest).map_err(|error| failed(error.into()))?;
        folder.whole(MANIFEST, |writer| writeln!(writer, "{text}"))?;
        Ok(folder)
    }

    /// The folder of a sweep that is there, and what it is of.
    pub(super) fn existing(path: &Path) -> Result<(Self, Manifest), SweepError> {
        let folder = Self(stealtime_results::Folder::lock(path)?);
        match folder.manifest()? {
            Some(manifest) => Ok((folder, manifest)),
            None => Err(SweepError::NoSweep {
                path: path.to_owned(),
            }),
        }
    }

    fn manifest(&self) -> Result<Option<Manifest>, SweepError> {
        let damaged = |error: serde_json::Error| SweepError::Manifest {
            path: self.path().join(MANIFEST),
            problem: error.to_string(),
        };
        let bytes = self.0.read(MANIFEST)?;
        let manifest = bytes.map(|bytes| serde_json::from_slice(&bytes).map_err(damaged));
        manifest.transpose()
    }

    /// Removes what a sweep has written, and nothing else.
    fn clear(&self) -> Result<(), SweepError> {
        let results = Form::ALL.map(Self::results);
        let names = results.iter().map(String::as_str);
        for name in names.chain([JOURNAL, MANIFEST]) {
            self.0.remove(name)?;
        }
        Ok(())
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.path().join(JOURNAL)
    }

    pub(super) fn results(form: Form) -> String {
        format!("{RESULTS}.{}", form.extension())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.0.has(name)
    }

    /// Writes a file that is there whole or not at all.
    pub(super) fn whole(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<PathBuf, SweepError> {
        Ok(self.0.whole(name, write)?)
    }

    pub(super) fn path(&self) -> &Path {
        self.0.path()
    }
}

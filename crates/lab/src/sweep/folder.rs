//! The folder of a sweep: what it is a sweep of, its journal, and the results.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::SweepError;
use super::plan::Plan;

/// What a sweep is of.
const MANIFEST: &str = "sweep.json";
/// Its finished runs.
const JOURNAL: &str = "runs.journal";
/// Results of finished parts of the grid.
const PARTS: &str = "parts";
/// The results' name, before the dot.
const RESULTS: &str = "results";
/// The version of the manifest.
const FORMAT: u32 = 1;

/// A knob and its values.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Varied {
    knob: String,
    values: Vec<String>,
}

/// Everything that the results depend on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: u32,
    version: String,
    /// As the user named it; another path to the same text is the same sweep.
    scenario: String,
    text: String,
    set: Vec<Varied>,
    vary: Vec<Varied>,
    variants: Vec<String>,
    seeds: Vec<u64>,
    duration_ns: u64,
    warmup_ns: u64,
    /// Figures of each machine: profiles may be files.
    machines: Vec<Vec<(String, String)>>,
}

impl Manifest {
    pub(super) fn of(plan: &Plan) -> Self {
        let scenario = plan.scenario();
        let set = scenario.map_or(&[][..], |scenario| scenario.sets());
        let figures = |scenario: &crate::scenario::Scenario| {
            let figures = scenario.figures.iter();
            figures
                .map(|figure| (figure.key.clone(), figure.value.clone()))
                .collect()
        };
        Self {
            format: FORMAT,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            scenario: scenario.map_or_else(String::new, |s| s.file.clone()),
            text: scenario.map_or_else(String::new, |s| s.text().to_owned()),
            set: set
                .iter()
                .map(|set| Varied {
                    knob: set.knob.clone(),
                    values: vec![set.value.clone()],
                })
                .collect(),
            vary: plan
                .dimensions
                .iter()
                .map(|dimension| Varied {
                    knob: dimension.knob.clone(),
                    values: dimension.values.clone(),
                })
                .collect(),
            variants: plan.variants.iter().map(|v| v.name.clone()).collect(),
            seeds: plan.seeds.clone(),
            duration_ns: scenario.map_or(0, crate::scenario::Scenario::duration_ns),
            warmup_ns: scenario.map_or(0, crate::scenario::Scenario::warmup_ns),
            machines: plan.scenarios().iter().map(figures).collect(),
        }
    }

    /// What is different in `other`, as clauses.
    fn differences(&self, other: &Self) -> Vec<String> {
        let mut found = Vec::new();
        let mut unlike = |what: &str, there: String, here: String| {
            if there != here {
                found.push(format!("{what}: there {there}, here {here}"));
            }
        };
        unlike("version", other.version.clone(), self.version.clone());
        let shown = |list: &[Varied]| match list.is_empty() {
            true => "nothing".to_owned(),
            false => {
                let texts = list
                    .iter()
                    .map(|v| format!("{}={}", v.knob, few(&v.values)));
                texts.collect::<Vec<_>>().join(" ")
            }
        };
        unlike("--vary", shown(&other.vary), shown(&self.vary));
        unlike("--set", shown(&other.set), shown(&self.set));
        unlike("variants", few(&other.variants), few(&self.variants));
        let seeds = |seeds: &[u64]| few(&seeds.iter().map(u64::to_string).collect::<Vec<_>>());
        unlike("seeds", seeds(&other.seeds), seeds(&self.seeds));
        let time = |ns| crate::units::show_time(ns);
        unlike("duration", time(other.duration_ns), time(self.duration_ns));
        unlike("warm-up", time(other.warmup_ns), time(self.warmup_ns));
        if self.text != other.text {
            let mut lines = self.text.lines().zip(other.text.lines());
            let same = lines.position(|(here, there)| here != there);
            let shorter = || self.text.lines().count().min(other.text.lines().count());
            let line = same.unwrap_or_else(shorter) + 1;
            found.push(format!("the scenario's text, from line {line} on"));
        }
        if self.machines != other.machines && self.text == other.text {
            found.push("figures of the machine's profile".to_owned());
        }
        if found.is_empty() {
            found.push("values beyond those that can be shown here".to_owned());
        }
        found
    }

    fn is_same(&self, other: &Self) -> bool {
        let other = Self {
            scenario: self.scenario.clone(),
            ..other.clone()
        };
        *self == other
    }
}

/// Some of many values.
fn few(values: &[String]) -> String {
    match values {
        [first, second, third, .., last] if values.len() > 8 => {
            format!(
                "{first},{second},{third},…,{last} ({} values)",
                values.len()
            )
        }
        values => values.join(","),
    }
}

/// A sweep's folder, which nobody else works in.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    /// Holds the lock.
    _lock: File,
}

impl Folder {
    /// Makes the folder, or opens that of the same sweep. `restart`: throws away what is there.
    pub(super) fn open(
        path: &Path,
        manifest: &Manifest,
        restart: bool,
    ) -> Result<Self, SweepError> {
        let failed = |source| SweepError::file(path, source);
        fs::create_dir_all(path).map_err(failed)?;
        let lock = File::open(path).map_err(failed)?;
        if !lock.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|_| SweepError::Busy {
            path: path.to_owned(),
        })?;
        let folder = Self {
            path: path.to_owned(),
            _lock: lock,
        };
        match folder.manifest()? {
            Some(there) if manifest.is_same(&there) && !restart => return Ok(folder),
            Some(_) if restart => folder.clear()?,
            Some(there) => {
                return Err(SweepError::Another {
                    path: path.to_owned(),
                    differences: manifest.differences(&there),
                });
            }
            None if folder.is_empty()? => {}
            None => {
                return Err(SweepError::NotASweep {
                    path: path.to_owned(),
                });
            }
        }
        let text = serde_json::to_string_pretty(manifest).map_err(|error| failed(error.into()))?;
        folder.whole(MANIFEST, |out| writeln!(out, "{text}"))?;
        Ok(folder)
    }

    fn manifest(&self) -> Result<Option<Manifest>, SweepError> {
        let path = self.path.join(MANIFEST);
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(SweepError::file(&path, source)),
        };
        let manifest = serde_json::from_slice(&bytes);
        manifest.map(Some).map_err(|error| SweepError::Manifest {
            path,
            problem: error.to_string(),
        })
    }

    /// Nothing is in it but what a sweep that was killed while it began leaves behind.
    fn is_empty(&self) -> Result<bool, SweepError> {
        let failed = |source| SweepError::file(&self.path, source);
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if name.to_string_lossy() != unfinished(MANIFEST) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Removes what a sweep has written, and nothing else.
    fn clear(&self) -> Result<(), SweepError> {
        self.remove_parts()?;
        let results = ["parquet", "csv", "json"].map(|form| format!("{RESULTS}.{form}"));
        for name in results
            .iter()
            .map(String::as_str)
            .chain([JOURNAL, MANIFEST])
        {
            for name in [name.to_owned(), unfinished(name)] {
                self.remove(&self.path.join(name))?;
            }
        }
        Ok(())
    }

    fn remove(&self, path: &Path) -> Result<(), SweepError> {
        match fs::remove_file(path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(SweepError::file(path, source))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn journal(&self) -> PathBuf {
        self.path.join(JOURNAL)
    }

    pub(super) fn results(form: super::Form) -> String {
        format!("{RESULTS}.{}", form.extension())
    }

    /// A part's name within the folder.
    pub(super) fn part(number: u64) -> String {
        format!("{PARTS}/{number:06}.parquet")
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.path.join(name).is_file()
    }

    /// Makes the folder of parts.
    pub(super) fn make_parts(&self) -> Result<(), SweepError> {
        let path = self.path.join(PARTS);
        fs::create_dir_all(&path).map_err(|source| SweepError::file(&path, source))
    }

    /// Removes the parts: what they say is in the results.
    pub(super) fn remove_parts(&self) -> Result<(), SweepError> {
        let path = self.path.join(PARTS);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(SweepError::file(&path, source)),
        };
        for entry in entries {
            let entry = entry.map_err(|source| SweepError::file(&path, source))?;
            let name = entry.file_name();
            let name = name.to_string_lossy();
            let name = name.trim_start_matches('.').trim_end_matches(".new");
            let number = name.strip_suffix(".parquet");
            if number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit())) {
                self.remove(&entry.path())?;
            }
        }
        // Whatever else is in it stays, and the folder with it.
        let _ = fs::remove_dir(&path);
        Ok(())
    }

    /// Writes a file that is there whole or not at all.
    pub(super) fn whole(
        &self,
        name: &str,
        write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    ) -> Result<PathBuf, SweepError> {
        let path = self.path.join(name);
        let (folder, file) = name.rsplit_once('/').unwrap_or(("", name));
        let new = self.path.join(folder).join(unfinished(file));
        let written = File::create(&new).and_then(|file| {
            let mut out = BufWriter::new(file);
            write(&mut out)?;
            out.into_inner()
                .map_err(io::IntoInnerError::into_error)?
                .sync_all()
        });
        let renamed = written.and_then(|()| fs::rename(&new, &path));
        match renamed {
            Ok(()) => Ok(path),
            Err(source) => {
                // What is left of it would only take up room.
                let _ = fs::remove_file(&new);
                Err(SweepError::file(&path, source))
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

/// What a file is called until it is whole.
fn unfinished(name: &str) -> String {
    format!(".{name}.new")
}

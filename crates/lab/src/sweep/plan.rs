//! The grid: which run has which number, and what each is.

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::thread::Builder;

use serde::Serialize;
use stealtime_results::{Cell, CellKind};
use stealtime_simulator::config::Config;

use super::SweepError;
use super::cell::typed;
use super::values::Varied;
use crate::scenario::{MOST_SEEDS, Refused, Scenario, Setting, Variant};

/// The most runs of a sweep: what it keeps of each in memory is a few bytes.
pub const MOST_RUNS: u64 = 50_000_000;
/// Problems that are shown: what follows is mostly their echo.
const MOST_SHOWN: usize = 10;

/// The machine, which is not a knob.
const PROFILES: [&str; 2] = ["host.profile", "profile"];
/// How many seeds, or which.
const SEEDS: &str = "run.seeds";

/// Something that is varied.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Dimension {
    /// What: a knob's name, a size, `host.profile`.
    pub knob: String,
    /// Its values as they are written.
    pub values: Vec<String>,
    /// The same as they stand in the results.
    #[serde(skip)]
    pub cells: Vec<Cell>,
    /// Their type.
    #[serde(skip)]
    pub kind: CellKind,
}

/// All runs of a sweep. A run's number counts seeds fastest, then variants, then the dimensions from
/// the last to the first.
#[derive(Clone, Debug)]
pub struct Plan {
    /// What is varied, in the order given.
    pub dimensions: Vec<Dimension>,
    /// Variants of the scenario.
    pub variants: Vec<Variant>,
    /// Seeds.
    pub seeds: Vec<u64>,
    /// One for each profile that is varied, or the only one.
    scenarios: Vec<Scenario>,
    /// The dimension that chooses among them.
    profile: Option<usize>,
    runs: u64,
}

/// Where a run is in the grid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// By dimension, the number of its value.
    pub values: Vec<usize>,
    /// The number of its variant.
    pub variant: usize,
    /// The number of its seed.
    pub seed: usize,
}

impl Plan {
    /// The grid of a scenario's variants and what `--vary` says (see [`vary`](super::vary)).
    ///
    /// # Errors
    ///
    /// [`SweepError`]: a name that is none, a value of the wrong kind, too many runs. Whether each
    /// point can be run, [`Plan::check`] says.
    pub fn new(
        scenario: Scenario,
        variants: Vec<Variant>,
        vary: Vec<Varied>,
    ) -> Result<Self, SweepError> {
        let mut plan = Self {
            dimensions: Vec::new(),
            variants,
            seeds: scenario.seeds.clone(),
            scenarios: vec![scenario],
            profile: None,
            runs: 0,
        };
        for varied in vary {
            plan.add(varied)?;
        }
        let lengths = plan.dimensions.iter().map(|d| d.values.len());
        let lengths = lengths.chain([plan.variants.len(), plan.seeds.len()]);
        let runs = lengths.fold(1_u128, |runs, length| runs.saturating_mul(length as u128));
        plan.runs = u64::try_from(runs).unwrap_or(u64::MAX);
        match plan.runs {
            runs if runs > MOST_RUNS => Err(SweepError::TooLarge { runs }),
            _ => Ok(plan),
        }
    }

    fn add(&mut self, Varied { knob, values }: Varied) -> Result<(), SweepError> {
        let knob = match PROFILES.contains(&knob.as_str()) {
            true => PROFILES[0].to_owned(),
            false => knob,
        };
        let wrong = |problem: String| SweepError::Vary {
            knob: knob.clone(),
            problem,
        };
        if self.dimensions.iter().any(|known| known.knob == knob) {
            return Err(wrong("it is varied twice".to_owned()));
        }
        let varies = |variant: &&Variant| variant.settings.iter().any(|set| set.knob == knob);
        if let Some(variant) = self.variants.iter().find(varies) {
            return Err(wrong(format!(
                "variant {} sets it itself: leave that out of the scenario, or choose others by --variant",
                variant.name
            )));
        }
        if knob == SEEDS {
            self.seeds = seeds(&values).map_err(|error| wrong(error.to_string()))?;
            return Ok(());
        }
        let Some(first) = self.scenarios.first().cloned() else {
            return Ok(());
        };
        if knob == PROFILES[0] {
            let scenarios = values.iter().map(|name| first.on_profile(name));
            self.scenarios = scenarios
                .collect::<Result<_, _>>()
                .map_err(SweepError::Load)?;
            self.profile = Some(self.dimensions.len());
        } else {
            // Known at all? Whether its values fit is another question, point by point.
            self.is_known(&first, &knob, &values)?;
        }
        let (cells, kind) = typed(&first, &knob, &values);
        let mut distinct = BTreeSet::new();
        let twice = values
            .iter()
            .zip(&cells)
            .find(|(_, cell)| !distinct.insert(cell.to_string()));
        if let Some((value, _)) = twice {
            return Err(wrong(format!("the value {value} is there twice")));
        }
        self.dimensions.push(Dimension {
            knob,
            values,
            cells,
            kind,
        });
        Ok(())
    }

    /// A name that no variant knows is refused at once, before any point is looked at.
    fn is_known(
        &self,
        scenario: &Scenario,
        knob: &str,
        values: &[String],
    ) -> Result<(), SweepError> {
        let (Some(variant), Some(value)) = (self.variants.first(), values.first()) else {
            return Ok(());
        };
        let setting = Setting {
            knob: knob.to_owned(),
            value: value.clone(),
        };
        match scenario.config_with(variant, &[setting], 1) {
            Err(refused) if refused.is_unknown => Err(SweepError::Vary {
                knob: knob.to_owned(),
                problem: refused.problem,
            }),
            _ => Ok(()),
        }
    }

    /// How many runs there are.
    #[must_use]
    pub const fn runs(&self) -> u64 {
        self.runs
    }

    /// How many configurations: runs without their seeds.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.runs / self.seeds.len().max(1) as u64
    }

    /// The scenario as the first machine has it.
    #[must_use]
    pub fn scenario(&self) -> Option<&Scenario> {
        self.scenarios.first()
    }

    /// The scenario on each machine.
    #[must_use]
    pub fn scenarios(&self) -> &[Scenario] {
        &self.scenarios
    }

    /// Where a run is.
    #[must_use]
    pub fn place(&self, run: u64) -> Place {
        let mut rest = usize::try_from(run).unwrap_or(usize::MAX);
        let mut take = |length: usize| {
            let index = rest % length.max(1);
            rest /= length.max(1);
            index
        };
        let seed = take(self.seeds.len());
        let variant = take(self.variants.len());
        let lengths = self.dimensions.iter().map(|d| d.values.len()).rev();
        let mut values: Vec<usize> = lengths.map(take).collect();
        values.reverse();
        Place {
            values,
            variant,
            seed,
        }
    }

    /// What a run sets in addition to its variant.
    #[must_use]
    pub fn settings(&self, place: &Place) -> Vec<Setting> {
        let set = self.dimensions.iter().zip(&place.values).enumerate();
        set.filter(|(index, _)| Some(*index) != self.profile)
            .filter_map(|(_, (dimension, value))| {
                Some(Setting {
                    knob: dimension.knob.clone(),
                    value: dimension.values.get(*value)?.clone(),
                })
            })
            .collect()
    }

    /// The configuration of a run.
    ///
    /// # Errors
    ///
    /// [`Refused`]: what of it cannot be run.
    pub fn config(&self, run: u64) -> Result<Config, Refused> {
        let place = self.place(run);
        let machine = self
            .profile
            .and_then(|index| place.values.get(index))
            .copied();
        let scenario = self.scenarios.get(machine.unwrap_or(0));
        let variant = self.variants.get(place.variant);
        let seed = self.seeds.get(place.seed);
        let (Some(scenario), Some(variant), Some(seed)) = (scenario, variant, seed) else {
            return Err(Refused::new("run", format!("there is no run {run}")));
        };
        scenario.config_with(variant, &self.settings(&place), *seed)
    }

    /// Whether every point can be run, on so many threads.
    ///
    /// # Errors
    ///
    /// [`SweepError::Refused`] with the first problems, in the order of the grid.
    pub fn check(&self, threads: NonZeroUsize) -> Result<(), SweepError> {
        let points = self.points();
        let share = points.div_ceil(threads.get() as u64).max(1);
        let found: Mutex<Vec<(u64, String)>> = Mutex::default();
        let look = |start: u64| {
            let mut known = BTreeSet::new();
            let mut count = 0;
            for point in start..start.saturating_add(share).min(points) {
                let run = point * self.seeds.len() as u64;
                let Err(refused) = self.config(run) else {
                    continue;
                };
                count += 1;
                let shown = self.shown(run, &refused);
                if known.len() < MOST_SHOWN && known.insert(shown.clone()) {
                    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
                    found.push((point, shown));
                }
            }
            count
        };
        let refused: u64 = std::thread::scope(|scope| {
            let starts = (0..threads.get() as u64).map(|n| n * share);
            // Where no thread can be had its share is looked through here.
            let started = starts.map(|start| {
                let thread = Builder::new().spawn_scoped(scope, move || look(start));
                thread.map_err(|_| look(start))
            });
            let threads: Vec<_> = started.collect();
            let counts = threads.into_iter().map(|thread| match thread {
                Ok(thread) => thread.join().unwrap_or(0),
                Err(count) => count,
            });
            counts.sum()
        });
        if refused == 0 {
            return Ok(());
        }
        let mut found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
        found.sort();
        let mut problems: Vec<String> = Vec::new();
        for (_, problem) in found {
            if problems.len() < MOST_SHOWN && !problems.contains(&problem) {
                problems.push(problem);
            }
        }
        Err(SweepError::Refused {
            refused,
            points,
            problems,
        })
    }

    /// A refusal with what of the point it speaks of: the knob at fault, or all that is varied.
    fn shown(&self, run: u64, refused: &Refused) -> String {
        let place = self.place(run);
        let variant = self.variants.get(place.variant);
        let variant = variant.map_or("", |variant| variant.name.as_str());
        let settings = self.settings(&place);
        let refused_settings: Vec<&Setting> =
            settings.iter().filter(|s| s.knob == refused.key).collect();
        let list = |settings: &[&Setting]| {
            let texts = settings.iter().map(|s| format!("{}={}", s.knob, s.value));
            texts.collect::<Vec<_>>().join(" ")
        };
        match refused_settings.is_empty() {
            false => format!(
                "variant {variant}, {}: {}",
                list(&refused_settings),
                refused.problem
            ),
            true => {
                let every_setting: Vec<&Setting> = settings.iter().collect();
                format!("variant {variant}, {}: {refused}", list(&every_setting))
            }
        }
    }
}

/// Why `run.seeds` has no such values.
#[derive(Debug, thiserror::Error)]
enum SeedsError {
    #[error("{0:?} is no seed: seeds are whole numbers")]
    NoSeed(String),
    #[error("seed {0} is there twice")]
    Twice(u64),
    #[error("{0} seeds: 1 to {MOST_SEEDS}")]
    Count(u64),
    #[error("more than {MOST_SEEDS} seeds")]
    TooMany,
}

/// `run.seeds=5` is how many, as in a scenario; several are which.
fn seeds(values: &[String]) -> Result<Vec<u64>, SeedsError> {
    let mut seeds = Vec::new();
    for value in values {
        let seed = value.parse::<u64>().ok();
        let seed = seed.filter(|seed| i64::try_from(*seed).is_ok());
        match seed {
            Some(seed) if seeds.contains(&seed) => {
                return Err(SeedsError::Twice(seed));
            }
            Some(seed) => seeds.push(seed),
            None => return Err(SeedsError::NoSeed(value.clone())),
        }
    }
    if let [count] = seeds[..] {
        return match usize::try_from(count) {
            Ok(1..=MOST_SEEDS) => Ok((1..=count).collect()),
            _ => Err(SeedsError::Count(count)),
        };
    }
    match seeds.len() {
        0..=MOST_SEEDS => Ok(seeds),
        _ => Err(SeedsError::TooMany),
    }
}

//! What `simulate` and `sweep` run: a scenario, and what the command line changes in it.

use std::collections::BTreeSet;
use std::io::Read as _;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use clap::Args;
use stealtime_lab::LoadError;
use stealtime_lab::knobs::{order, replaces};
use stealtime_lab::scenario::{MOST_SEEDS, Scenario, Variant};
use stealtime_lab::units::{Plain, TimeError, time};

use crate::args::threads;
use crate::error::CliError;

/// The most bytes of a scenario on standard input.
const MOST_BYTES: u64 = 4 << 20;

/// A scenario and its runs.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// A scenario file (see docs/scenarios.md); `-` is standard input
    #[arg(value_name = "SCENARIO")]
    pub(super) scenario: PathBuf,

    /// Set a knob in all variants that do not set it themselves (repeat for each knob)
    #[arg(long, value_name = "KNOB=VALUE")]
    pub(super) set: Vec<String>,

    /// Only these variants of the scenario. Of these, the first one in the file is the base of the comparison
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    variant: Vec<String>,

    /// Number of seeds, instead of the scenario's
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_SEEDS as u64))]
    pub(super) seeds: Option<u64>,

    /// Measured time of each run, such as 500ms or 10s, instead of the scenario's
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(super) duration: Option<u64>,

    /// Runs at a time; without it, as many as there are CPUs
    #[arg(long, visible_alias = "threads", value_name = "N")]
    jobs: Option<NonZeroUsize>,
}

impl RunArgs {
    /// The scenario, with what is set and changed.
    pub(super) fn scenario(&self) -> Result<Scenario, CliError> {
        let mut scenario = load(&self.scenario)?;
        if let Some(ns) = self.duration {
            scenario.set_duration_ns(ns);
        }
        if let Some(seeds) = self.seeds {
            scenario.set_seeds(usize::try_from(seeds).unwrap_or(MOST_SEEDS));
        }
        set_knobs(&mut scenario, &self.set)?;
        Ok(scenario)
    }

    /// The variants to run.
    pub(super) fn variants<'s>(
        &self,
        scenario: &'s Scenario,
    ) -> Result<Vec<&'s Variant>, CliError> {
        chosen(scenario, &self.variant, &self.set)
    }

    /// How many runs at a time.
    pub(super) fn jobs(&self) -> NonZeroUsize {
        threads(self.jobs)
    }
}

fn load(path: &Path) -> Result<Scenario, CliError> {
    if path != Path::new("-") {
        return Scenario::load(path).map_err(unusable);
    }
    let mut text = String::new();
    let read = std::io::stdin()
        .lock()
        .take(MOST_BYTES)
        .read_to_string(&mut text);
    read.map_err(CliError::Stdin)?;
    Scenario::from_text("standard input", &text).map_err(unusable)
}

/// Applies `--set`.
fn set_knobs(scenario: &mut Scenario, set: &[String]) -> Result<(), CliError> {
    let mut earlier = BTreeSet::new();
    let mut sets = Vec::new();
    for set in set {
        let (knob, value) = split(set)?;
        // Features are switched one by one.
        if !earlier.insert(knob) && knob != "sched.features" {
            let problem = format!("--set {set}: {knob} is set twice: leave one out");
            return Err(CliError::Simulate(problem));
        }
        sets.push((set, knob, value));
    }
    sets.sort_by_key(|(_, knob, _)| order(knob));
    for (set, knob, value) in sets {
        let wrong = |error| CliError::Simulate(format!("--set {set}: {error}"));
        scenario.set(knob, value).map_err(wrong)?;
    }
    Ok(())
}

/// The variants of `--variant`, or all, in the order of the file; `set` is what `--set` says.
fn chosen<'s>(
    scenario: &'s Scenario,
    names: &[String],
    set: &[String],
) -> Result<Vec<&'s Variant>, CliError> {
    let listed = &scenario.variants;
    for name in names {
        if !listed.iter().any(|variant| variant.name == *name) {
            let known: Vec<&str> = listed.iter().map(|v| v.name.as_str()).collect();
            let known = known.join(", ");
            let problem = format!("--variant {name}: no such variant; there are {known}");
            return Err(CliError::Simulate(problem));
        }
    }
    let variants: Vec<&Variant> = listed
        .iter()
        .filter(|v| names.is_empty() || names.contains(&v.name))
        .collect();
    // A knob that every variant sets itself cannot be set for all.
    for set in set {
        let (knob, _) = split(set)?;
        let sets_knob =
            |variant: &&&Variant| variant.settings.iter().any(|s| replaces(&s.knob, knob));
        if variants.iter().filter(sets_knob).count() == variants.len() {
            let problem = format!("--set {set} changes nothing: each variant sets {knob} itself");
            return Err(CliError::Simulate(problem));
        }
    }
    Ok(variants)
}

/// Why a scenario cannot be used.
pub(super) fn unusable(error: LoadError) -> CliError {
    match error {
        LoadError::Wrong(_) => CliError::Scenario(error.to_string()),
        _ => CliError::Simulate(error.to_string()),
    }
}

/// KNOB and VALUE of `--set`.
pub(super) fn split(set: &str) -> Result<(&str, &str), CliError> {
    let wrong = || CliError::Simulate(format!("--set {set}: expected KNOB=VALUE"));
    stealtime_lab::knobs::split_setting(set)
        .map(|(knob, value)| (knob.trim(), value.trim()))
        .ok_or_else(wrong)
}

/// Why a text is no duration of a run.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum DurationError {
    /// No time.
    #[error(transparent)]
    Time(#[from] TimeError),
    /// Too short or too long.
    #[error("must be within 1us and 1000000s")]
    OutOfRange,
}

/// A time of `--duration`, in ns.
pub(super) fn duration(text: &str) -> Result<u64, DurationError> {
    match time(text, Plain::Refused)? {
        ns @ 1_000..=1_000_000_000_000_000 => Ok(ns),
        _ => Err(DurationError::OutOfRange),
    }
}

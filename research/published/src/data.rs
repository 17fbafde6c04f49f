//! What was published, as data: `results.toml` of this crate.

use serde::{Deserialize, Serialize};

use stealtime_lab::LoadError;
use stealtime_lab::scenario::Scenario;

use crate::ReproduceError;
use crate::calibrate::Parameter;

/// The file.
const RESULTS: &str = include_str!("../results.toml");

/// Scenarios by the names that the file has for them.
const SCENARIOS: &[(&str, &str)] = &[
    (
        "posted-timer",
        include_str!("../../../scenarios/published/posted-timer.toml"),
    ),
    (
        "wakeup-batching",
        include_str!("../../../scenarios/published/wakeup-batching.toml"),
    ),
    (
        "wakeup-batching-nehalem",
        include_str!("../../../scenarios/published/wakeup-batching-nehalem.toml"),
    ),
    (
        "counter-offsets",
        include_str!("../../../scenarios/published/counter-offsets.toml"),
    ),
    (
        "counter-reads-nvhe",
        include_str!("../../../scenarios/published/counter-reads-nvhe.toml"),
    ),
    (
        "counter-reads-vhe",
        include_str!("../../../scenarios/published/counter-reads-vhe.toml"),
    ),
    (
        "directed-yield-dbench",
        include_str!("../../../scenarios/published/directed-yield-dbench.toml"),
    ),
    (
        "directed-yield-dedup",
        include_str!("../../../scenarios/published/directed-yield-dedup.toml"),
    ),
    (
        "directed-yield-vips",
        include_str!("../../../scenarios/published/directed-yield-vips.toml"),
    ),
    (
        "directed-yield-inert",
        include_str!("../../../scenarios/published/directed-yield-inert.toml"),
    ),
    (
        "directed-yield-inert-dbench",
        include_str!("../../../scenarios/published/directed-yield-inert-dbench.toml"),
    ),
    (
        "directed-yield-build",
        include_str!("../../../scenarios/published/directed-yield-build.toml"),
    ),
    (
        "directed-yield-s390",
        include_str!("../../../scenarios/published/directed-yield-s390.toml"),
    ),
    (
        "directed-yield-s390-pool",
        include_str!("../../../scenarios/published/directed-yield-s390-pool.toml"),
    ),
    (
        "notification-suppression",
        include_str!("../../../scenarios/published/notification-suppression.toml"),
    ),
    (
        "notification-suppression-cpuid",
        include_str!("../../../scenarios/published/notification-suppression-cpuid.toml"),
    ),
];

/// All of the file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Published {
    result: Vec<PublishedResult>,
}

/// One published mechanism and its measurements.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PublishedResult {
    /// What the command line calls it.
    pub name: String,
    /// The document that has the figures.
    pub document: String,
    /// The machine, as far as the document says.
    pub host: String,
    /// What ran on it.
    pub workload: String,
    /// Simulations, by the names of files under `scenarios/published`.
    pub scenario: Vec<Part>,
    /// Numbers that were published.
    #[serde(default)]
    pub figure: Vec<Figure>,
    /// What was published in words.
    #[serde(default)]
    pub claim: Vec<Claim>,
    /// What was published and is not simulated.
    #[serde(default)]
    pub left_out: Vec<LeftOut>,
}

/// A simulation of a result.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its scenario.
    pub name: String,
    /// Seeds of a quick run.
    pub quick_seeds: usize,
    /// How long a quick run is measured, in ms.
    pub quick_ms: u64,
}

impl Part {
    /// The text of its scenario.
    ///
    /// # Errors
    ///
    /// [`ReproduceError::Data`] if there is none of this name.
    pub fn text(&self) -> Result<&'static str, ReproduceError> {
        let found = SCENARIOS.iter().find(|(name, _)| *name == self.name);
        found.map(|(_, text)| *text).ok_or_else(|| {
            ReproduceError::Data(format!(
                "published results: no scenario {:?} comes along",
                self.name
            ))
        })
    }

    /// Its scenario, ready to run.
    ///
    /// # Errors
    ///
    /// [`ReproduceError`].
    pub fn load(&self, quick: bool) -> Result<Scenario, ReproduceError> {
        let mut scenario = self.read(self.text()?)?;
        if quick {
            scenario.set_seeds(self.quick_seeds);
            scenario.set_duration_ns(self.quick_ms.saturating_mul(1_000_000));
        }
        Ok(scenario)
    }

    /// The name of its scenario's file.
    #[must_use]
    pub fn file(&self) -> String {
        format!("{}.toml", self.name)
    }

    /// A text of its scenario.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: all that is wrong, with its lines.
    pub fn read(&self, text: &str) -> Result<Scenario, LoadError> {
        Scenario::from_text(&self.path(), text)
    }

    /// The parameters that a text of its scenario leaves open.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: all that is wrong, with its lines.
    pub fn parameters(&self, text: &str) -> Result<Vec<Parameter>, LoadError> {
        Parameter::all(&self.path(), text)
    }

    fn path(&self) -> String {
        format!("scenarios/published/{}", self.file())
    }
}

/// A parameter that was fitted, as its scenario has it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fitted {
    /// The scenario.
    pub scenario: String,
    /// Where it stands there: tables by name, elements of lists by their `name`.
    pub parameter: String,
    /// Its value, as it stands there.
    pub value: String,
    /// The figure that it was fitted to: one of a machine *without* the mechanism.
    pub to: String,
    /// When, as `YYYY-MM-DD`; `None` if the value was never fitted.
    pub date: Option<String>,
    /// How far off the fit was, in percent of what was published.
    pub residual_percent: Option<f64>,
    /// By how many percent the figure changes if the parameter grows by one.
    pub slope: Option<f64>,
}

impl PublishedResult {
    /// The parameters of its scenarios that are fitted.
    ///
    /// # Errors
    ///
    /// [`ReproduceError`] for a scenario that cannot be read.
    pub fn fitted(&self) -> Result<Vec<Fitted>, ReproduceError> {
        let mut fitted = Vec::new();
        for part in &self.scenario {
            let parameters = part.parameters(part.text()?)?;
            fitted.extend(parameters.into_iter().map(|calibration| {
                let record = calibration.fitted;
                Fitted {
                    scenario: part.name.clone(),
                    value: calibration.kind.show(calibration.value),
                    parameter: calibration.parameter,
                    to: calibration.to,
                    residual_percent: record.as_ref().map(|record| record.residual_percent),
                    slope: record.as_ref().map(|record| record.slope),
                    date: record.map(|record| record.date),
                }
            }));
        }
        Ok(fitted)
    }
}

/// On which side of the change a figure was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Before it: may be fitted.
    Without,
    /// After it, or the effect of it: must be predicted.
    With,
}

/// What is made of a metric's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Measure {
    /// The value itself.
    #[default]
    Value,
    /// Its reciprocal in ns: time for an operation, of a throughput.
    PerOperation,
    /// Its share in all exits of guests, in percent.
    OfExits,
}

/// What is compared: a value, or what a mechanism changes in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// A value.
    #[default]
    None,
    /// By how many percent it rises from the base variant's.
    Increase,
    /// By how many percent it falls.
    Decrease,
}

/// Whether a figure is a value or a limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Bound {
    /// A value.
    #[default]
    Value,
    /// No more than this was seen.
    AtMost,
    /// More than this was seen.
    AtLeast,
}

/// A published number and what of the simulation it is compared with.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Figure {
    /// Its name, unique in the result.
    pub name: String,
    /// Without or with the mechanism.
    pub side: Side,
    /// The number.
    pub value: f64,
    /// Its unit: `us`, `percent`.
    pub unit: String,
    /// Whether it is a limit.
    #[serde(default)]
    pub bound: Bound,
    /// Figures of one group are compared in their order.
    #[serde(default)]
    pub group: Option<String>,
    /// The scenario.
    pub scenario: String,
    /// The variant.
    pub variant: String,
    /// The variant that an effect is an effect on.
    #[serde(default)]
    pub base: Option<String>,
    /// The metric, as `stealtime simulate` shows it.
    pub metric: String,
    /// The VM that the metric belongs to; the host's without it.
    #[serde(default)]
    pub vm: Option<String>,
    /// What is made of the metric.
    #[serde(default)]
    pub measure: Measure,
    /// Value or effect.
    #[serde(default)]
    pub effect: Effect,
    /// Why it is off, if it is: what the model lacks, or what the publication leaves open.
    pub miss: String,
}

/// What a claim in words says of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Expect {
    /// Equal to the last bit.
    Same,
    /// No further apart than the claim's margin, with all of the interval.
    Unchanged,
    /// Lower.
    Lower,
    /// Higher.
    Higher,
    /// Not lower beyond the claim's margin, with all of the interval.
    NotLower,
}

/// The largest difference, in percent, that counts as none.
///
/// No publication says how far apart two of its own runs are. One reported effect is smaller: the
/// loss of a loop of nothing but exits, 0.94 %. In a benchmark noise would hide it.
pub const UNCHANGED_WITHIN_PERCENT: f64 = 1.0;

/// Something published in words.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The words.
    pub says: String,
    /// The scenario.
    pub scenario: String,
    /// The variant.
    pub variant: String,
    /// What it is compared with.
    pub base: String,
    /// The metric.
    pub metric: String,
    /// The VM that the metric belongs to; the host's without it.
    #[serde(default)]
    pub vm: Option<String>,
    /// What should come out.
    pub expect: Expect,
    /// Of [`Expect::Unchanged`] and [`Expect::NotLower`]: the largest difference, in percent, that counts
    /// as none; [`UNCHANGED_WITHIN_PERCENT`] without it.
    #[serde(default)]
    pub within_percent: Option<f64>,
    /// Why it does not, if it does not.
    pub miss: String,
}

/// Something that is not simulated.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// What was published.
    pub what: String,
    /// Why it is not compared.
    pub why: String,
}

/// All published results, in the order of the file.
///
/// # Errors
///
/// [`ReproduceError::Data`] if the file that comes along is broken.
pub fn published() -> Result<Vec<PublishedResult>, ReproduceError> {
    let published: Published = toml::from_str(RESULTS)
        .map_err(|error| ReproduceError::Data(format!("published results: {error}")))?;
    Ok(published.result)
}

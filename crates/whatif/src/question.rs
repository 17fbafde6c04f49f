//! The changes that are asked for: single settings, grids of them, pins.

use std::collections::BTreeSet;

use stealtime_lab::knobs::{KnobError, Part, Setting, order, replaces, split_setting, vm_knob};
use stealtime_simulator::config::{CfsKnobs, Config, VmConfig};

use crate::added::AddedVm;
use crate::answerable;
use crate::baseline::Baseline;
use crate::error::Error;
use crate::fair_class;
use crate::host_file::HostFacts;
use crate::pin::{self, Pin};
use crate::plan::{Change, Plan};
use crate::recorded::Recorded;

/// The most variants of one question. Beyond it the plans alone take gigabytes.
const MOST_VARIANTS: usize = 100_000;

/// The knob of the scheduler's features, which takes several switches at once.
pub(crate) const FEATURES: &str = "sched.features";

/// Why options do not say what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum QuestionError {
    /// No knob, or no value.
    #[error("{0:?}: expected KNOB=VALUE")]
    Syntax(String),
    /// A knob or a feature has two values.
    #[error("{part} is set twice; for a variant each: --vary {knob}=A,B")]
    Twice {
        /// The knob, or the feature.
        part: String,
        /// The knob.
        knob: String,
    },
    /// A list of values has an empty one.
    #[error("--vary {0}: a value between the commas is empty")]
    EmptyValue(String),
    /// A list of values has one twice.
    #[error("--vary {text}: the value {value} is there twice")]
    ValueTwice {
        /// The option.
        text: String,
        /// The value.
        value: String,
    },
    /// The grid is too large.
    #[error("{0} variants are more than {MOST_VARIANTS}")]
    TooMany(usize),
    /// An unknown knob, or a value that it does not take.
    #[error(transparent)]
    Knob(#[from] KnobError),
}

/// The changes that are asked for.
#[derive(Debug, Clone, Default)]
pub struct Question {
    /// Settings of every variant.
    set: Vec<Setting>,
    /// One for each combination of the varied values; without any the one of [`Self::set`].
    variants: Vec<Vec<Setting>>,
    pins: Vec<Pin>,
}

/// `KNOB=VALUE` as name and text.
fn split(text: &str) -> Result<(&str, &str), QuestionError> {
    match split_setting(text) {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim(), value.trim()))
        }
        _ => Err(QuestionError::Syntax(text.to_owned())),
    }
}

/// Words of a value of [`FEATURES`].
pub(crate) fn words(value: &str) -> impl Iterator<Item = &str> {
    value.split([' ', ',']).filter(|word| !word.is_empty())
}

/// The feature that a word switches on or off.
pub(crate) fn feature(word: &str) -> &str {
    word.strip_prefix("NO_").unwrap_or(word)
}

/// Refuses two values for one knob. Features are switched one by one, each of them once.
fn check_once(texts: &[&String]) -> Result<(), QuestionError> {
    let mut names = BTreeSet::new();
    for text in texts {
        let (name, value) = split(text)?;
        let parts: BTreeSet<&str> = match name == FEATURES {
            true => words(value).map(feature).collect(),
            false => BTreeSet::from([name]),
        };
        if let Some(part) = parts.iter().find(|part| names.contains(*part)) {
            return Err(QuestionError::Twice {
                part: (*part).to_owned(),
                knob: name.to_owned(),
            });
        }
        names.extend(parts);
    }
    Ok(())
}

/// The values of a `--vary`.
fn values(text: &str) -> Result<(&str, Vec<&str>), QuestionError> {
    let (name, list) = split(text)?;
    let values: Vec<&str> = list.split(',').map(str::trim).collect();
    if values.iter().any(|value| value.is_empty()) {
        return Err(QuestionError::EmptyValue(text.to_owned()));
    }
    let mut known = BTreeSet::new();
    if let Some(twice) = values.iter().find(|value| !known.insert(**value)) {
        return Err(QuestionError::ValueTwice {
            text: text.to_owned(),
            value: (*twice).to_owned(),
        });
    }
    Ok((name, values))
}

/// Every combination of the varied values, each after `set`.
fn grid(
    set: &[Setting],
    vary: &[String],
    trial: &Config,
) -> Result<Vec<Vec<Setting>>, QuestionError> {
    let mut variants = vec![set.to_vec()];
    for text in vary {
        let (name, texts) = values(text)?;
        let count = variants.len().saturating_mul(texts.len());
        if count > MOST_VARIANTS {
            return Err(QuestionError::TooMany(count));
        }
        let parsed = texts.iter().map(|text| Setting::parse(trial, name, text));
        let parsed: Vec<Setting> = parsed.collect::<Result<_, _>>()?;
        let extended = |variant: &Vec<Setting>, setting: &Setting| {
            let mut variant = variant.clone();
            variant.push(setting.clone());
            variant
        };
        variants = variants
            .iter()
            .flat_map(|variant| parsed.iter().map(move |setting| extended(variant, setting)))
            .collect();
    }
    Ok(variants)
}

/// Applies the settings of a variant to a trial host: some values depend on those before them.
fn check_together(settings: &[Setting], mut trial: Config) -> Result<(), QuestionError> {
    // How many VMs and CPUs a recording can have is checked with its plans.
    let of_scenarios = |setting: &&Setting| !answerable::is_of_recording(setting);
    for setting in settings.iter().filter(of_scenarios) {
        match setting.apply(&mut trial) {
            // Tasks are those of a scenario; a recording has its own, which no knob names.
            Ok(()) | Err(KnobError::NoTask { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Sorts settings as in a scenario, where a knob of one VM holds whatever is set of all VMs. Without such a
/// pair they stay in the order of the options, in which variants are named.
fn in_order(settings: &mut [Setting]) {
    let is_lost = |(index, setting): (usize, &Setting)| {
        let name = setting.name();
        let mut later = settings.iter().skip(index + 1).map(Setting::name);
        later.any(|later| later != name && replaces(later, name))
    };
    if settings.iter().enumerate().any(is_lost) {
        settings.sort_by_cached_key(|setting| order(setting.name()));
    }
}

impl Question {
    /// Parses what `--set`, `--vary` and `--pin` say.
    ///
    /// # Errors
    ///
    /// The first option that is wrong. A slip of the pen is an error; a knob that this recording
    /// says nothing about is not ([`Self::plans`]).
    pub fn parse(
        recorded: &Recorded,
        facts: &HostFacts,
        set: &[String],
        vary: &[String],
        pins: &[String],
    ) -> Result<Self, Error> {
        Self::parse_with_added(recorded, facts, set, vary, pins, &[])
    }

    /// The same of a host to which VMs of other recordings are added: one of each, unless a setting counts
    /// it.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    pub fn parse_with_added(
        recorded: &Recorded,
        facts: &HostFacts,
        set: &[String],
        vary: &[String],
        pins: &[String],
        added: &[AddedVm],
    ) -> Result<Self, Error> {
        check_once(&set.iter().chain(vary).collect::<Vec<_>>())?;
        let mut trial = recorded.stub();
        trial.vms.extend(added.iter().map(|vm| VmConfig {
            name: vm.name().to_owned(),
            ..VmConfig::default()
        }));
        facts.apply_settings(&mut trial)?;
        // Whether the host's class has a knob is another question.
        trial.knobs.sched.cfs = Some(CfsKnobs::default());
        let parse = |text: &String| {
            let (name, value) = split(text)?;
            Ok(Setting::parse(&trial, name, value)?)
        };
        let mut set: Vec<Setting> = set
            .iter()
            .map(parse)
            .collect::<Result<_, QuestionError>>()?;
        let mut variants = grid(&set, vary, &trial)?;
        for vm in added {
            let is_count = |setting: &Setting| {
                answerable::part(setting) == Some(Part::Count) && setting.is_for(vm.name())
            };
            if variants.iter().flatten().any(is_count) {
                continue;
            }
            let name = vm_knob(vm.name(), "count");
            let single = Setting::parse(&trial, &name, "1").map_err(QuestionError::from)?;
            set.push(single.clone());
            variants
                .iter_mut()
                .for_each(|variant| variant.push(single.clone()));
        }
        variants
            .iter_mut()
            .chain([&mut set])
            .for_each(|settings| in_order(settings));
        for settings in &variants {
            check_together(settings, trial.clone())?;
        }
        let pins = pin::parse_all(pins, recorded)?;
        Ok(Self {
            set,
            variants,
            pins,
        })
    }

    /// The settings of every variant.
    pub(crate) fn set(&self) -> &[Setting] {
        &self.set
    }

    /// The settings of all variants.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.variants.iter().flatten()
    }

    /// The variants that this recording can answer, and why it cannot answer others.
    ///
    /// # Errors
    ///
    /// [`Error::NotAnswerable`] if none is left.
    pub fn plans(&self, base: &Baseline) -> Result<(Vec<Plan>, Vec<String>), Error> {
        let mut reasons = Vec::new();
        let mut plans = Vec::new();
        for settings in &self.variants {
            let problems = settings.iter().filter_map(|setting| {
                answerable::check(setting, base)
                    .err()
                    .map(|error| error.to_string())
            });
            let lacks = fair_class::lacks(settings, base).into_iter();
            match lacks.chain(problems).next() {
                Some(reason) if reasons.contains(&reason) => {}
                Some(reason) => reasons.push(reason),
                None => plans.push(self.plan(settings)),
            }
        }
        if plans.is_empty() && !reasons.is_empty() {
            return Err(Error::NotAnswerable(reasons.join("; ")));
        }
        for plan in &plans {
            plan.prepare(base)?;
        }
        plans.retain(|plan| !plan.is_empty());
        Ok((plans, reasons))
    }

    fn plan(&self, settings: &[Setting]) -> Plan {
        let knobs = settings.iter().cloned().map(Change::Knob);
        let pins = self.pins.iter().cloned().map(Change::Pin);
        Plan::new(knobs.chain(pins).collect())
    }
}

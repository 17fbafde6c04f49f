//! From a scenario and a variant to one run's configuration.

use std::ops::Range;

use stealtime_simulator::config::{Config, ConfigError, Pinning, VmConfig};

use super::{Scenario, Setting, Variant, vary};
use crate::document::place;
use crate::error::{LoadError, Problem};
use crate::knobs::{KnobError, order};

/// The most vCPUs of a host.
const MOST_VCPUS: u64 = 1 << 18;

/// Why a configuration cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}")]
pub struct Refused {
    /// The setting at fault, under the names of the file.
    pub key: String,
    /// What is wrong.
    pub problem: String,
    /// There is nothing of that name at all.
    pub is_unknown: bool,
}

impl Refused {
    /// What is wrong with a setting, or with the whole.
    pub(crate) fn new(key: &str, problem: String) -> Self {
        Self {
            key: key.to_owned(),
            problem,
            is_unknown: false,
        }
    }
}

pub(super) fn config(
    scenario: &Scenario,
    variant: &Variant,
    seed: u64,
) -> Result<Config, LoadError> {
    assembled(scenario, variant, &[], seed)
        .map_err(|refused| wrong(scenario, variant, &refused.key, refused.problem))
}

pub(super) fn assembled(
    scenario: &Scenario,
    variant: &Variant,
    extra: &[Setting],
    seed: u64,
) -> Result<Config, Refused> {
    let mut config = scenario.template.clone();
    let mut counts = scenario.counts.clone();
    let mut settings: Vec<&Setting> = variant.settings.iter().chain(extra).collect();
    settings.sort_by_key(|set| order(&set.knob));
    for setting in settings {
        let set = vary::apply(&mut config, &mut counts, &setting.knob, &setting.value);
        set.map_err(|error| {
            let (problem, is_unknown) = match error {
                KnobError::Value { problem, .. } => (problem, false),
                KnobError::Unknown { help, .. } => (format!("there is no such knob; {help}"), true),
                KnobError::NoVm { help, .. } => (format!("there is no such VM; {help}"), true),
                KnobError::NoTask { help, .. } => (format!("there is no such task; {help}"), true),
            };
            Refused {
                key: setting.knob.clone(),
                problem,
                is_unknown,
            }
        })?;
    }
    let vcpus = config.vms.iter().zip(&counts);
    let vcpus: u64 = vcpus
        .map(|(vm, count)| u64::from(vm.vcpus) * u64::from(*count))
        .sum();
    if vcpus > MOST_VCPUS {
        return Err(Refused::new(
            "vm",
            format!("{vcpus} vCPUs in all: {MOST_VCPUS} at most"),
        ));
    }
    let (vms, groups) = expand(&config.vms, &counts);
    config.vms = vms;
    config.run.seed = seed;
    match config.check() {
        Ok(()) => Ok(config),
        Err(error) => Err(of_group(scenario, &error, &groups)),
    }
}

/// Each VM of each group, and which group each VM is of.
fn expand(groups: &[VmConfig], counts: &[u32]) -> (Vec<VmConfig>, Vec<usize>) {
    let mut vms = Vec::new();
    let mut indices = Vec::new();
    for (index, (group, &count)) in groups.iter().zip(counts).enumerate() {
        for n in 0..count {
            let name = match count {
                1 => group.name.clone(),
                _ => format!("{}-{}", group.name, n + 1),
            };
            vms.push(VmConfig {
                name,
                pinning: part(&group.pinning, group.vcpus, n, count),
                ..group.clone()
            });
            indices.push(index);
        }
    }
    (vms, indices)
}

/// The pinning of the `n`th VM: a list long enough for all VMs of the group is dealt out.
fn part(pinning: &Pinning, vcpus: u32, n: u32, count: u32) -> Pinning {
    let per_vm = vcpus as usize;
    match pinning {
        Pinning::OneToOne(cpus) if count > 1 && cpus.len() == per_vm * count as usize => {
            let part = cpus.iter().skip(n as usize * per_vm).take(per_vm);
            Pinning::OneToOne(part.copied().collect())
        }
        pinning => pinning.clone(),
    }
}

/// An error of [`Config::check`] under the names of the file.
fn of_group(scenario: &Scenario, error: &ConfigError, groups: &[usize]) -> Refused {
    let rest = error
        .key
        .strip_prefix("vm.")
        .and_then(|rest| rest.split_once('.'));
    let named = rest.and_then(|(vm, key)| {
        let group = *groups.get(vm.parse::<usize>().ok()?)?;
        Some(format!(
            "vm.{}.{key}",
            scenario.template.vms.get(group)?.name
        ))
    });
    Refused::new(named.as_ref().unwrap_or(&error.key), error.problem.clone())
}

fn wrong(scenario: &Scenario, variant: &Variant, key: &str, problem: String) -> LoadError {
    let (key, span) = find(scenario, variant, key);
    let problem = Problem {
        key,
        span,
        problem,
        help: None,
    };
    LoadError::Wrong(vec![problem.at(&scenario.file, &scenario.text)])
}

/// Where the file sets what `key` stands for: in the variant, under `[knobs]`, or at its own place.
fn find(scenario: &Scenario, variant: &Variant, key: &str) -> (String, Range<usize>) {
    let places = &scenario.places;
    let key = match key {
        "run.duration_ns" => "run.duration",
        "run.warmup_ns" => "run.warmup",
        "sched.hz" => "host.hz",
        key => key,
    };
    let in_variant = format!("variants.{}.{key}", variant.name);
    for key in [in_variant, format!("knobs.{key}")] {
        if let Some(span) = places.get(&key) {
            return (key, span.clone());
        }
    }
    let group_key = key.strip_prefix("vm.").and_then(|rest| {
        let (name, rest) = rest.split_once('.')?;
        let index = scenario
            .template
            .vms
            .iter()
            .position(|vm| vm.name == name)?;
        Some(format!("vm.{index}.{rest}"))
    });
    let profile = key
        .strip_prefix("profile.")
        .map(|rest| format!("host.profile.{rest}"));
    let group_key = group_key.or(profile).unwrap_or_else(|| key.to_owned());
    let span = match (group_key.as_str(), places.get("host.cpus")) {
        ("host.cores_per_llc", Some(span)) => span.clone(),
        _ => place(places, &group_key),
    };
    (key.to_owned(), span)
}

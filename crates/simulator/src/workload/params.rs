//! Parameters of workloads.

use std::collections::BTreeMap;

use super::Workload;
use crate::config::{ConfigError, ParamValue, WorkloadConfig};
use crate::fault::Sim;

/// A parameter: what it means and what it may be.
#[derive(Clone, Copy, Debug)]
pub struct ParamDoc {
    /// Its name.
    pub name: &'static str,
    /// Default; times are in ns.
    pub default: u64,
    /// Least value.
    pub min: u64,
    /// Greatest value.
    pub max: u64,
    /// Unit (`ns`, or nothing for a count).
    pub unit: &'static str,
    /// What it means, and where the default comes from.
    pub about: &'static str,
}

/// The parameters of a workload, defaults filled in.
#[derive(Clone, Debug)]
pub struct Params(BTreeMap<&'static str, u64>);

impl Params {
    /// The value of a parameter that the workload has.
    #[must_use]
    pub fn get(&self, name: &str) -> u64 {
        debug_assert!(self.0.contains_key(name), "no parameter {name}");
        self.0.get(name).copied().unwrap_or(0)
    }

    /// The same as a small count.
    #[must_use]
    pub fn count(&self, name: &str) -> u32 {
        u32::try_from(self.get(name)).unwrap_or(u32::MAX)
    }
}

/// Finds a workload and checks its parameters.
pub(super) fn resolve(config: &WorkloadConfig) -> Sim<(&'static Workload, Params)> {
    let wrong = |key: String, problem: String| Err(ConfigError { key, problem }.into());
    let Some(workload) = super::find(&config.name) else {
        let names: Vec<&str> = super::LIBRARY.iter().map(|w| w.name).collect();
        let problem = format!(
            "no workload {:?}; there are {}",
            config.name,
            names.join(", ")
        );
        return wrong("workload".to_owned(), problem);
    };
    let mut values: BTreeMap<&'static str, u64> = workload
        .params
        .iter()
        .map(|p| (p.name, p.default))
        .collect();
    for (name, value) in &config.params {
        let key = format!("workload.{name}");
        let Some(doc) = workload.params.iter().find(|p| p.name == name) else {
            let names: Vec<&str> = workload.params.iter().map(|p| p.name).collect();
            let problem = format!(
                "{} has no parameter {name:?}; it has {}",
                workload.name,
                names.join(", ")
            );
            return wrong(key, problem);
        };
        let number = match value {
            ParamValue::Int(number) => u64::try_from(*number).ok(),
            ParamValue::Bool(enabled) => Some(u64::from(*enabled)),
            ParamValue::Text(_) => None,
        };
        match number.filter(|n| (doc.min..=doc.max).contains(n)) {
            Some(number) => values.insert(doc.name, number),
            None => {
                let (min, max, unit) = (doc.min, doc.max, doc.unit);
                return wrong(
                    key,
                    format!("{value:?} is not a whole number within {min} to {max} {unit}"),
                );
            }
        };
    }
    Ok((workload, Params(values)))
}

//! What runs in a guest, by name and parameters.

use std::collections::BTreeMap;

/// A parameter of a workload.
#[derive(Clone, Debug, PartialEq)]
pub enum ParamValue {
    /// A whole number, or a time in ns.
    Int(i64),
    /// A word.
    Text(String),
    /// A switch.
    Bool(bool),
}

/// A workload of the library, with the parameters that differ from its defaults.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct WorkloadConfig {
    /// Its name (`hackbench`).
    pub name: String,
    /// Parameters by name.
    pub params: BTreeMap<String, ParamValue>,
}

impl WorkloadConfig {
    /// A workload with its defaults.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            params: BTreeMap::new(),
        }
    }

    /// With one parameter set.
    #[must_use]
    pub fn with(mut self, name: &str, value: ParamValue) -> Self {
        self.params.insert(name.to_owned(), value);
        self
    }
}

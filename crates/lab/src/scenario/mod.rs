//! Scenario files: a host, its guests, knobs, and variants that change some of them.
//!
//! ```
//! use stealtime_lab::scenario::Scenario;
//! let text = r#"
//! [host]
//! profile = "skylake-sp"
//! cpus = 4
//!
//! [[vm]]
//! name = "web"
//! vcpus = 4
//! workload = "hackbench"
//!
//! [variants.polling]
//! [variants.not]
//! kvm.halt_poll_ns = 0
//!
//! [run]
//! duration = "1s"
//! seeds = 5
//! "#;
//! let scenario = Scenario::from_text("example.toml", text)?;
//! let [polling, not] = &scenario.variants[..] else { panic!("two variants") };
//! assert_eq!(scenario.config(not, 1)?.knobs.kvm.halt_poll.halt_poll_ns, 0);
//! assert_eq!(scenario.config(polling, 1)?.knobs.kvm.halt_poll.halt_poll_ns, 200_000);
//! # Ok::<(), stealtime_lab::LoadError>(())
//! ```
//!
//! The format is described in `docs/scenarios.md`.

mod build;
mod guests;
mod host;
mod migration;
mod read;
mod settings;
mod vary;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use stealtime_simulator::config::Config;

use crate::document::read_text;
use crate::error::LoadError;
use crate::knobs::KnobError;
use crate::profile::Figure;

pub use build::Refused;
pub use guests::workloads;
pub use settings::Setting;
pub use vary::sizes;

/// The most seeds of a run.
pub const MOST_SEEDS: usize = 10_000;
/// The most variants of a scenario.
pub const MOST_VARIANTS: usize = 1_000;

/// What a variant is called that changes nothing and has no name of its own.
pub const BASE: &str = "base";

/// One of the configurations that are compared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// Its name.
    pub name: String,
    /// What it changes, in the order in which it is set.
    pub settings: Vec<Setting>,
}

/// A scenario.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The file, as the user named it.
    pub file: String,
    /// What it shows, in a sentence; may be empty.
    pub about: String,
    /// What is compared; the first one is what all others are compared with.
    pub variants: Vec<Variant>,
    /// Seeds of the runs of each variant, each once.
    pub seeds: Vec<u64>,
    /// Figures of the machine and where they come from.
    pub figures: Vec<Figure>,
    /// A VM of this stands for `counts` of it.
    template: Config,
    counts: Vec<u32>,
    /// What [`Scenario::set`] has set, in this order.
    sets: Vec<Setting>,
    text: String,
    places: BTreeMap<String, Range<usize>>,
}

impl Scenario {
    /// Reads a scenario file.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: all that is wrong, with its lines.
    pub fn load(path: &Path) -> Result<Self, LoadError> {
        let text = read_text(path)?;
        read::scenario(&path.display().to_string(), path, &text, None)
    }

    /// Reads a scenario from text; `file` is what messages call it and where machine profiles by
    /// path are looked for.
    ///
    /// # Errors
    ///
    /// As [`Scenario::load`].
    pub fn from_text(file: &str, text: &str) -> Result<Self, LoadError> {
        read::scenario(file, Path::new(file), text, None)
    }

    /// The text that it was read from.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Sets a knob for all variants that do not set it themselves.
    ///
    /// # Errors
    ///
    /// [`KnobError`]. Whether all variants can be run with it, [`Scenario::check`] says.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), KnobError> {
        settings::apply(&mut self.template, &mut self.counts, name, value)?;
        self.sets.push(Setting {
            knob: name.to_owned(),
            value: value.to_owned(),
        });
        Ok(())
    }

    /// The same on another machine: `name` replaces the profile that the file names, or its `base`.
    /// Figures that the file changes in place stay changed.
    ///
    /// # Errors
    ///
    /// [`LoadError`]: there is no such profile, or the scenario does not work on that machine.
    pub fn on_profile(&self, name: &str) -> Result<Self, LoadError> {
        let mut variant =
            read::scenario(&self.file, Path::new(&self.file), &self.text, Some(name))?;
        for set in &self.sets {
            // It could be set on the first machine; what a value may be does not depend on that.
            let _ = variant.set(&set.knob, &set.value);
        }
        variant.template.run = self.template.run;
        variant.seeds.clone_from(&self.seeds);
        Ok(variant)
    }

    /// The configuration before any variant; a VM stands for its group.
    pub(crate) const fn template(&self) -> &Config {
        &self.template
    }

    /// What [`Scenario::set`] has set, in this order.
    #[must_use]
    pub fn sets(&self) -> &[Setting] {
        &self.sets
    }

    /// How long a run is measured, in ns.
    #[must_use]
    pub fn duration_ns(&self) -> u64 {
        self.template.run.duration_ns
    }

    /// How long a run warms up before, in ns.
    #[must_use]
    pub fn warmup_ns(&self) -> u64 {
        self.template.run.warmup_ns
    }

    /// Changes how long a run is measured.
    pub fn set_duration_ns(&mut self, ns: u64) {
        self.template.run.duration_ns = ns;
    }

    /// Keeps `count` seeds: the first ones of the file, and what follows its last.
    pub fn set_seeds(&mut self, count: usize) {
        let count = count.clamp(1, MOST_SEEDS);
        self.seeds.truncate(count);
        let mut next = self.seeds.iter().max().copied().unwrap_or(0);
        while self.seeds.len() < count {
            next = next.wrapping_add(1);
            if !self.seeds.contains(&next) {
                self.seeds.push(next);
            }
        }
    }

    /// The configuration of one run.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with the line of what cannot be run.
    pub fn config(&self, variant: &Variant, seed: u64) -> Result<Config, LoadError> {
        build::config(self, variant, seed)
    }

    /// The configuration of one run with more settings than those of the variant: all knobs, and
    /// what only a sweep varies ([`sizes`]).
    ///
    /// # Errors
    ///
    /// [`Refused`]: which setting, or what of the whole, cannot be run.
    pub fn config_with(
        &self,
        variant: &Variant,
        extra: &[Setting],
        seed: u64,
    ) -> Result<Config, Refused> {
        build::assembled(self, variant, extra, seed)
    }

    /// Whether each variant can be run.
    ///
    /// # Errors
    ///
    /// [`LoadError`] with the line of what cannot be run.
    pub fn check(&self) -> Result<(), LoadError> {
        let seed = self.seeds.first().copied().unwrap_or(1);
        for variant in &self.variants {
            build::config(self, variant, seed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

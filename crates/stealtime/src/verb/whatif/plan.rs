//! What a variant is: knobs and pins.

use stealtime_replay::host::{self, Assumed};
use stealtime_simulator::config::{CfsKnobs, Config};
use stealtime_simulator::script::{ScriptConfig, ScriptGroup};

use super::Base;
use super::ask::{self, Setting};
use crate::error::CliError;

/// Knobs and pins that are changed together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) settings: Vec<Setting>,
    /// As `--pin` has them.
    pub(super) pins: Vec<String>,
}

impl Plan {
    /// Nothing but this knob.
    pub(super) fn knob(name: &str, value: impl ToString) -> Self {
        Self {
            settings: vec![(name.to_owned(), value.to_string())],
            pins: Vec::new(),
        }
    }

    /// Nothing but these pins.
    pub(super) fn pins(pins: Vec<String>) -> Self {
        Self {
            settings: Vec::new(),
            pins,
        }
    }

    /// Whether it changes nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.settings.is_empty() && self.pins.is_empty()
    }

    /// This after `first`.
    pub(super) fn on_top_of(&self, first: &Self) -> Self {
        let mut both = first.clone();
        both.settings.extend(self.settings.iter().cloned());
        both.pins.extend(self.pins.iter().cloned());
        both
    }

    /// `KNOB=VALUE … pin VM=CPUS …`
    pub(super) fn name(&self) -> String {
        let knobs = self.settings.iter();
        let knobs = knobs.map(|(name, value)| format!("{name}={value}"));
        let pins = self.pins.iter().map(|pin| format!("pin {pin}"));
        knobs.chain(pins).collect::<Vec<_>>().join(" ")
    }

    /// The arguments of `whatif` that ask for it.
    pub(super) fn arguments(&self) -> Vec<String> {
        let knobs = self.settings.iter();
        let knobs = knobs.flat_map(|(name, value)| ["--set".into(), format!("{name}={value}")]);
        let pins = self.pins.iter();
        let pins = pins.flat_map(|pin| ["--pin".into(), pin.clone()]);
        knobs.chain(pins).collect()
    }

    /// The plan as [`Prepared::config`] takes it, if this recording and its host can be asked that.
    pub(super) fn prepare(&self, base: &Base) -> Result<Prepared, CliError> {
        let mut assumed = base.assumed.clone();
        for pin in &self.pins {
            ask::pin(pin, &base.answers, &base.recording, &mut assumed)?;
        }
        let mut trial = base.config.clone();
        ask::apply(&mut trial, &self.settings, &base.vms)?;
        Ok(Prepared {
            assumed,
            settings: self.settings.clone(),
        })
    }
}

/// A plan that was found to be good.
#[derive(Debug)]
pub(super) struct Prepared {
    assumed: Assumed,
    settings: Vec<Setting>,
}

impl Prepared {
    /// Whether the host is with it what it is without.
    pub(super) fn changes_nothing(&self, base: &Base, without: &Self) -> Result<bool, CliError> {
        let (with, without) = (self.config(base, 0)?, without.config(base, 0)?);
        Ok(explicit(with) == explicit(without))
    }

    /// Whether some task may not run any more where it may without: its recorded affinity.
    pub(super) fn restricts(&self, base: &Base, without: &Self) -> Result<bool, CliError> {
        let (with, without) = (self.config(base, 0)?, without.config(base, 0)?);
        let allowed = |task: &ScriptConfig, cpu| task.cpus.is_empty() || task.cpus.contains(&cpu);
        let cpus = 0..base.recording.cpus;
        let tasks = with.scripts.tasks.iter().zip(&without.scripts.tasks);
        let loses = |(task, before): (&ScriptConfig, &ScriptConfig)| {
            let mut cpus = cpus.clone();
            cpus.any(|cpu| allowed(before, cpu) && !allowed(task, cpu))
        };
        Ok(tasks.into_iter().any(loses))
    }

    /// The host for a replay with this seed.
    pub(super) fn config(&self, base: &Base, seed: u64) -> Result<Config, CliError> {
        let knobs = base.config.knobs.clone();
        let mut config = host::as_recorded(&base.recording, knobs, &self.assumed, seed);
        // Of VMs it says what is no knob of the host.
        ask::apply(&mut config, &base.told, &base.vms)?;
        let before = weights(&config);
        ask::apply(&mut config, &self.settings, &base.vms)?;
        // With other weights load is elsewhere: the recorded moves would leave CPUs idle for which a balancer
        // finds somebody.
        config.scripts.idle_takes |= weights(&config) != before;
        Ok(config)
    }
}

/// The host with tunables written out that the kernel sets by the number of CPUs: the same value is the same
/// host.
fn explicit(mut config: Config) -> Config {
    let cpus = config.host.topology.cpus();
    let slice = host::base_slice_ns(&config);
    let sched = &mut config.knobs.sched;
    match &mut sched.cfs {
        Some(knobs) => {
            let cfs = knobs.on(cpus);
            *knobs = CfsKnobs {
                latency_ns: Some(cfs.latency_ns),
                min_granularity_ns: Some(cfs.min_granularity_ns),
                wakeup_granularity_ns: Some(cfs.wakeup_granularity_ns),
            };
        }
        None => sched.base_slice_ns = Some(slice),
    }
    config
}

/// `cpu.weight` of each VM that has a cgroup.
fn weights(config: &Config) -> Vec<Option<u32>> {
    let groups = config.scripts.groups.iter();
    let weight = |group: &Option<ScriptGroup>| Some(group.as_ref()?.cpu_weight);
    groups.map(weight).collect()
}

//! A variant: changes that are made together.

use std::borrow::Cow;

use stealtime_lab::knobs::Setting;
use stealtime_replay::host::{self, Assumed};
use stealtime_replay::{Counted, Counts, Guest, OnCpus, Recording, VmCopy};
use stealtime_simulator::config::{CfsKnobs, Config};
use stealtime_simulator::script::{ScriptConfig, ScriptGroup};

use crate::apply::apply;
use crate::baseline::Baseline;
use crate::count::{self, CountError};
use crate::error::Error;
use crate::pin::Pin;

/// One change of a host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// A knob has another value.
    Knob(Setting),
    /// Tasks may run on some CPUs only.
    Pin(Pin),
}

impl Change {
    /// The arguments of `whatif` that ask for it.
    fn arguments(&self) -> [String; 2] {
        match self {
            Self::Knob(setting) => ["--set".to_owned(), setting.to_string()],
            Self::Pin(pin) => ["--pin".to_owned(), pin.to_string()],
        }
    }
}

/// Changes that are made together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Knobs first, then pins: the order in which they are shown.
    changes: Vec<Change>,
}

impl Plan {
    /// A plan of these changes.
    #[must_use]
    pub fn new(mut changes: Vec<Change>) -> Self {
        changes.sort_by_key(|change| matches!(change, Change::Pin(_)));
        Self { changes }
    }

    /// Whether it changes nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    /// All changes, in the order in which they are shown.
    pub(crate) fn changes(&self) -> impl Iterator<Item = &Change> {
        self.changes.iter()
    }

    /// The knobs that it sets.
    pub(crate) fn settings(&self) -> impl Iterator<Item = &Setting> {
        self.changes.iter().filter_map(|change| match change {
            Change::Knob(setting) => Some(setting),
            Change::Pin(_) => None,
        })
    }

    /// The pins that it has.
    pub(crate) fn pins(&self) -> impl Iterator<Item = &Pin> {
        self.changes.iter().filter_map(|change| match change {
            Change::Pin(pin) => Some(pin),
            Change::Knob(_) => None,
        })
    }

    /// This after `first`.
    pub(crate) fn on_top_of(&self, first: &Self) -> Self {
        Self::new([first.changes.as_slice(), &self.changes].concat())
    }

    /// `KNOB=VALUE … pin VM=CPUS …`
    #[must_use]
    pub fn name(&self) -> String {
        let names = self.changes.iter().map(|change| match change {
            Change::Knob(setting) => setting.to_string(),
            Change::Pin(pin) => format!("pin {pin}"),
        });
        names.collect::<Vec<_>>().join(" ")
    }

    /// The arguments of `whatif` that ask for it.
    pub(crate) fn arguments(&self) -> Vec<String> {
        self.changes.iter().flat_map(Change::arguments).collect()
    }

    /// The plan applied to the recorded host.
    ///
    /// # Errors
    ///
    /// A knob that does not take its value on this host.
    pub fn prepare(&self, base: &Baseline) -> Result<Prepared, Error> {
        let mut assumed = base.assumed.clone();
        self.pins().for_each(|pin| pin.apply(&mut assumed));
        let settings: Vec<Setting> = self.settings().cloned().collect();
        let counts = count::counts(&settings, base)?;
        let cpus = count::host_cpus(&settings, &base.recorded)?;
        apply(&mut base.config.clone(), &settings, &base.recorded.vms)?;
        if let Some(cpus) = &cpus {
            let on_cpus = OnCpus::new(&base.recorded.recording, cpus.clone());
            on_cpus.assumed(&assumed).map_err(CountError::NoCpuLeft)?;
        }
        Ok(Prepared {
            assumed,
            settings,
            counts,
            cpus,
        })
    }
}

/// A plan that fits the recorded host.
#[derive(Debug)]
pub struct Prepared {
    pub(crate) assumed: Assumed,
    settings: Vec<Setting>,
    /// How many there are of each VM.
    pub(crate) counts: Counts,
    /// The recorded CPU that each CPU is like; `None` as recorded.
    pub(crate) cpus: Option<Vec<u32>>,
}

/// A host to replay, with the tasks that are on it.
#[derive(Debug)]
pub struct Host<'b> {
    /// The tasks.
    pub recording: Cow<'b, Recording>,
    /// The host.
    pub config: Config,
    /// Copies of VMs.
    pub copies: Vec<VmCopy>,
}

impl Prepared {
    /// Whether the host is the same with it as with `other`.
    pub(crate) fn is_same_host(&self, base: &Baseline, reference: &Self) -> Result<bool, Error> {
        let (changed, unchanged) = (self.config(base, 0)?, reference.config(base, 0)?);
        Ok(explicit(changed) == explicit(unchanged))
    }

    /// Whether it forbids some task a CPU that `other` allows.
    pub(crate) fn restricts(&self, base: &Baseline, reference: &Self) -> Result<bool, Error> {
        let (changed, unchanged) = (self.config(base, 0)?, reference.config(base, 0)?);
        // No list is all CPUs.
        let allowed = |task: &ScriptConfig, cpu| task.cpus.is_empty() || task.cpus.contains(&cpu);
        let cpus = 0..base.recorded.recording.cpus;
        let mut tasks = changed.scripts.tasks.iter().zip(&unchanged.scripts.tasks);
        Ok(tasks.any(|(task, free)| {
            let mut cpus = cpus.clone();
            cpus.any(|cpu| allowed(free, cpu) && !allowed(task, cpu))
        }))
    }

    /// The host for a replay with this seed.
    ///
    /// # Errors
    ///
    /// A knob that does not take its value on this host.
    pub fn config(&self, base: &Baseline, seed: u64) -> Result<Config, Error> {
        Ok(self.host(base, seed)?.config)
    }

    /// The host for a replay with this seed, and its tasks.
    ///
    /// # Errors
    ///
    /// A knob that does not take its value on this host, or a task without a CPU.
    pub fn host<'b>(&self, base: &'b Baseline, seed: u64) -> Result<Host<'b>, Error> {
        let mut recording = Cow::Borrowed(&base.recorded.recording);
        let mut assumed = Cow::Borrowed(&self.assumed);
        let mut vms = Cow::Borrowed(&base.recorded.vms);
        let mut copies = Vec::new();
        if let Some(cpus) = &self.cpus {
            let on_cpus = OnCpus::new(&recording, cpus.clone());
            assumed = Cow::Owned(on_cpus.assumed(&assumed).map_err(CountError::NoCpuLeft)?);
            recording = Cow::Owned(on_cpus.recording);
        }
        if !self.counts.is_as_recorded() {
            let demands: Vec<&Guest> = base.added.iter().map(|vm| &vm.demand).collect();
            let recorded = vms.len();
            let counted = Counted::with_guests(&recording, recorded, &demands, &self.counts, seed);
            assumed = Cow::Owned(counted.assumed(&assumed));
            // Settings of a VM are its copies' too.
            let mut names = base.names();
            let copied = counted.copies.iter();
            let copied: Vec<String> = copied
                .filter_map(|copy| names.get(copy.original).cloned())
                .collect();
            names.extend(copied);
            vms = Cow::Owned(names);
            copies = counted.copies;
            recording = Cow::Owned(counted.recording);
        }
        let knobs = base.config.knobs.clone();
        let mut config = host::as_recorded(&recording, knobs, &assumed, seed);
        // The knobs of the host are in `knobs` already; those of VMs are not.
        apply(&mut config, base.facts.settings(), &vms)?;
        let recorded_weights = weights(&config);
        apply(&mut config, &self.settings, &vms)?;
        // Other weights move load between CPUs. Recorded moves alone would leave CPUs idle that a
        // balancer finds work for.
        config.scripts.idle_takes |= weights(&config) != recorded_weights;
        Ok(Host {
            recording,
            config,
            copies,
        })
    }

    /// Whether it has other numbers of VMs or CPUs than recorded.
    pub(crate) fn changes_population(&self) -> bool {
        !self.counts.is_as_recorded() || self.cpus.is_some()
    }
}

/// The host with tunables written out that the kernel derives from the number of CPUs, so that equal
/// hosts compare equal.
pub(crate) fn explicit(mut config: Config) -> Config {
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

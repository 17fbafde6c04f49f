//! How a real host gets the value of a knob: the command, its undoing, and what restarts.

use std::fmt;

use stealtime_hypervisor::fair::{Feature, Features};

use super::value::{Kind, Value};
use super::vm::cpu_max;

/// How a real host gets the value of a knob.
#[derive(Clone, Copy, Debug)]
pub enum HostSetting {
    /// By a command or another step.
    Step(Step),
    /// Only the simulated host has it: the reason, as a clause.
    SimulationOnly(&'static str),
}

/// A step that sets a knob on a real host.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// The step. `{value}` stands for the value as the file or option takes it, and `{vm}` for the VM.
    /// `{tid}` stands for each thread of it in turn, `{tids}` for all of them.
    pub set: &'static str,
    /// What undoes it; `None`: the same with the former value.
    pub undo: Option<&'static str>,
    /// From when on it acts.
    pub acts: Acts,
    /// Conditions and equivalents; empty for none.
    pub note: &'static str,
    spelling: Spelling,
}

/// The undoing of a step without one of its own.
pub(super) const FORMER_VALUE: &str = "the same with the former value";

/// From when on a setting acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acts {
    /// At once.
    AtOnce,
    /// When the VM's process starts anew.
    VmRestart,
    /// When the module is loaded anew, for which all VMs stop.
    ModuleReload,
    /// When the guest boots.
    GuestBoot,
    /// When the host boots.
    HostBoot,
}

impl fmt::Display for Acts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtOnce => "at once",
            Self::VmRestart => "after a restart of the VM",
            Self::ModuleReload => "at once, but all VMs must be stopped for it",
            Self::GuestBoot => "after a reboot of the guest",
            Self::HostBoot => "after a reboot of the host",
        })
    }
}

/// How files and options write values.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    /// As one text; `None` where no text stands for the value.
    Text(fn(&Value) -> Option<String>),
    /// Features of the scheduler: each word is a step of its own.
    Features,
}

/// Threads of a VM that a step is for.
#[derive(Clone, Copy, Debug)]
pub struct Threads<'t> {
    /// The VM.
    pub vm: &'t str,
    /// Thread ids.
    pub tids: &'t [i32],
}

/// The steps of a change, and those that undo it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    /// What makes the change.
    pub set: Vec<String>,
    /// What undoes it.
    pub undo: Vec<String>,
}

impl HostSetting {
    const fn step(set: &'static str, acts: Acts, spell: fn(&Value) -> Option<String>) -> Self {
        Self::Step(Step {
            set,
            undo: None,
            acts,
            note: "",
            spelling: Spelling::Text(spell),
        })
    }

    /// A file of the running kernel, or a command that acts at once.
    pub(super) const fn live(set: &'static str) -> Self {
        Self::step(set, Acts::AtOnce, number)
    }

    /// The same for a word.
    pub(super) const fn live_word(set: &'static str) -> Self {
        Self::step(set, Acts::AtOnce, plain)
    }

    /// A quota and a period in µs.
    pub(super) const fn live_quota(set: &'static str) -> Self {
        Self::step(set, Acts::AtOnce, quota)
    }

    /// A switch that is 1 or 0.
    pub(super) const fn live_switch(set: &'static str) -> Self {
        Self::step(set, Acts::AtOnce, one_or_zero)
    }

    /// Features of the scheduler.
    pub(super) const fn features(set: &'static str) -> Self {
        Self::Step(Step {
            set,
            undo: None,
            acts: Acts::AtOnce,
            note: "YIELD_TO_LAG_CREDIT is of a series of patches that is not merged",
            spelling: Spelling::Features,
        })
    }

    /// A parameter that a module reads when it is loaded.
    pub(super) const fn module(set: &'static str) -> Self {
        Self::step(set, Acts::ModuleReload, number)
    }

    /// The same for a switch.
    pub(super) const fn module_switch(set: &'static str) -> Self {
        Self::step(set, Acts::ModuleReload, yes_or_no)
    }

    /// A boot parameter.
    pub(super) const fn boot(set: &'static str, undo: &'static str) -> Self {
        Self::step(set, Acts::HostBoot, plain).undone_by(undo)
    }

    /// Another kernel or boot parameter for each value.
    pub(super) const fn boot_by(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(set, Acts::HostBoot, spell)
    }

    /// An option of the VMM.
    pub(super) const fn vmm(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(set, Acts::VmRestart, spell)
    }

    /// A setting of the guest's kernel.
    pub(super) const fn guest(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(set, Acts::GuestBoot, spell)
    }

    pub(super) const fn undone_by(self, undo: &'static str) -> Self {
        match self {
            Self::Step(step) => Self::Step(Step {
                undo: Some(undo),
                ..step
            }),
            Self::SimulationOnly(_) => self,
        }
    }

    pub(super) const fn with_note(self, note: &'static str) -> Self {
        match self {
            Self::Step(step) => Self::Step(Step { note, ..step }),
            Self::SimulationOnly(_) => self,
        }
    }
}

impl Step {
    /// The step for a value, and what restores the former one.
    #[must_use]
    pub fn fill(&self, value: &Value, former: &Value, threads: &Threads<'_>) -> Steps {
        let steps = |template: &str, texts: Vec<String>| {
            let steps = texts.iter().map(|text| fill(template, text, threads));
            steps.collect()
        };
        Steps {
            set: steps(self.set, self.spelling.texts(value, former, false)),
            undo: steps(
                self.undo.unwrap_or(self.set),
                self.spelling.texts(value, former, true),
            ),
        }
    }

    /// The step as a reference has it, with capitals for what differs.
    #[must_use]
    pub fn template(&self) -> String {
        capitals(self.set)
    }

    /// The same of what undoes it.
    #[must_use]
    pub fn undo_template(&self) -> String {
        match self.undo {
            Some(undo) => capitals(undo),
            None => FORMER_VALUE.to_owned(),
        }
    }

    /// How values are written where that differs from the knob's own words.
    #[must_use]
    pub fn spellings(&self, kind: &Kind) -> Vec<(String, String)> {
        let Spelling::Text(spell) = self.spelling else {
            return Vec::new();
        };
        let values = match kind {
            Kind::Switch => vec![Value::Switch(true), Value::Switch(false)],
            Kind::Choice(words) => {
                let words = words().into_iter();
                words.map(|word| Value::Words(word.to_owned())).collect()
            }
            _ => Vec::new(),
        };
        let pairs = values
            .iter()
            .filter_map(|value| Some((value.to_string(), spell(value)?)));
        pairs.filter(|(word, spelled)| word != spelled).collect()
    }
}

impl Spelling {
    /// The texts of a value, or of the former one where the change is undone.
    fn texts(self, value: &Value, former: &Value, undo: bool) -> Vec<String> {
        match self {
            Self::Text(spell) => spell(if undo { former } else { value })
                .into_iter()
                .collect(),
            Self::Features => feature_words(value, undo.then_some(former)),
        }
    }
}

/// The words of a value of `sched.features`. With the former value, each as that has it.
fn feature_words(value: &Value, former: Option<&Value>) -> Vec<String> {
    let Value::Words(text) = value else {
        return Vec::new();
    };
    let words = text.split([',', ' ']).filter(|word| !word.is_empty());
    let Some(former) = former else {
        return words.map(str::to_owned).collect();
    };
    let mut features = Features::default();
    if let Value::Words(former) = former {
        for word in former.split([',', ' ']).filter(|word| !word.is_empty()) {
            // A value of the knob names known features only.
            let known = features.set(word);
            debug_assert!(known.is_ok(), "{word}");
        }
    }
    let restored = words.filter_map(|word| {
        let name = word.strip_prefix("NO_").unwrap_or(word);
        let feature = Feature::ALL.iter().find(|feature| feature.name() == name)?;
        let prefix = if features.has(*feature) { "" } else { "NO_" };
        Some(format!("{prefix}{name}"))
    });
    restored.collect()
}

fn fill(template: &str, value: &str, threads: &Threads<'_>) -> String {
    let tids: Vec<String> = threads.tids.iter().map(i32::to_string).collect();
    let filled = template
        .replace("{value}", value)
        .replace("{vm}", threads.vm)
        .replace("{tids}", &tids.join(" "));
    match tids.as_slice() {
        _ if !filled.contains("{tid}") => filled,
        [tid] => filled.replace("{tid}", tid),
        _ => {
            let command = filled.replace("{tid}", "$tid");
            format!("for tid in {}; do {command}; done", tids.join(" "))
        }
    }
}

fn capitals(template: &str) -> String {
    template
        .replace("{value}", "VALUE")
        .replace("{vm}", "NAME")
        .replace("{tids}", "TIDS")
        .replace("{tid}", "TID")
}

/// As the knob writes it; no text for `auto`, which only a boot restores.
pub(super) fn plain(value: &Value) -> Option<String> {
    let text = value.to_string();
    (text != "auto").then_some(text)
}

/// A whole number, of ns for a time.
pub(super) fn number(value: &Value) -> Option<String> {
    match value {
        Value::Ns(ns) => Some(ns.to_string()),
        value => plain(value),
    }
}

fn switch(value: &Value, words: [&str; 2]) -> Option<String> {
    match value {
        Value::Switch(true) => Some(words[0].to_owned()),
        Value::Switch(false) => Some(words[1].to_owned()),
        _ => None,
    }
}

fn yes_or_no(value: &Value) -> Option<String> {
    switch(value, ["Y", "N"])
}

fn one_or_zero(value: &Value) -> Option<String> {
    switch(value, ["1", "0"])
}

pub(super) fn on_or_off(value: &Value) -> Option<String> {
    switch(value, ["on", "off"])
}

pub(super) fn with_or_without(value: &Value) -> Option<String> {
    switch(value, ["with", "without"])
}

/// `cpu.max` as the cgroup's file has it: quota and period in µs.
fn quota(value: &Value) -> Option<String> {
    let limit = cpu_max(value);
    debug_assert!(limit.is_ok(), "{value}");
    match limit.ok()? {
        None => Some("max".to_owned()),
        Some((quota_ns, period_ns)) => Some(format!("{} {}", quota_ns / 1_000, period_ns / 1_000)),
    }
}

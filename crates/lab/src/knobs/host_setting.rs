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
    method: Method,
    /// What undoes it; `None`: the same with the former value.
    pub undo: Option<&'static str>,
    /// From when on it acts.
    pub acts: Acts,
    /// Conditions and equivalents; empty for none.
    pub note: &'static str,
    spelling: Spelling,
}

/// What a step does.
#[derive(Clone, Copy, Debug)]
enum Method {
    /// A command or an instruction. `{value}` stands for the value as the file or option takes it, and
    /// `{vm}` for the VM. `{tid}` stands for each thread of it in turn, `{tids}` for all of them.
    Template(&'static str),
    /// Another kernel is booted: its description with `{value}`.
    Kernel(&'static str),
    /// The value is written there.
    Write(&'static [Location]),
    /// The module is loaded anew with the value.
    Reload(&'static [Location]),
}

/// Where a running kernel has the value of a knob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Location {
    /// `/sys/module/MODULE/parameters/NAME`.
    Parameter {
        /// The module.
        module: &'static str,
        /// Its parameter.
        name: &'static str,
    },
    /// A file of `/sys/kernel/debug/sched`.
    Scheduler(&'static str),
    /// A name of sysctl(8).
    Sysctl(&'static str),
}

/// The vendor of a host's CPUs, which determines the module of KVM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vendor {
    /// VMX, by `kvm_intel`.
    #[default]
    Intel,
    /// SVM, by `kvm_amd`.
    Amd,
}

impl Vendor {
    /// Its module of KVM.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Intel => INTEL,
            Self::Amd => AMD,
        }
    }
}

const INTEL: &str = "kvm_intel";
const AMD: &str = "kvm_amd";

/// A parameter of the module `kvm`.
macro_rules! kvm {
    ($name:literal) => {
        &[$crate::knobs::Location::Parameter {
            module: "kvm",
            name: $name,
        }]
    };
}

/// A parameter of `kvm_intel` and, where there is one, the like of `kvm_amd`.
macro_rules! vendor {
    ($intel:literal $(, $amd:literal)?) => {
        &[
            $crate::knobs::Location::Parameter { module: "kvm_intel", name: $intel },
            $($crate::knobs::Location::Parameter { module: "kvm_amd", name: $amd },)?
        ]
    };
}

/// A file of the scheduler in debugfs.
macro_rules! scheduler {
    ($name:literal) => {
        &[$crate::knobs::Location::Scheduler($name)]
    };
}

pub(super) use {kvm, scheduler, vendor};

impl Location {
    /// Whether a host of this vendor has it.
    #[must_use]
    pub fn is_of(&self, vendor: Vendor) -> bool {
        match self {
            Self::Parameter { module: INTEL, .. } => vendor == Vendor::Intel,
            Self::Parameter { module: AMD, .. } => vendor == Vendor::Amd,
            _ => true,
        }
    }

    /// The step that writes a value there.
    fn write(&self) -> String {
        match self {
            Self::Parameter { module, name } => {
                format!("echo {{value}} > /sys/module/{module}/parameters/{name}")
            }
            Self::Scheduler(name) => format!("echo {{value}} > /sys/kernel/debug/sched/{name}"),
            Self::Sysctl(name) => format!("sysctl {name}={{value}}"),
        }
    }

    /// The step that loads its module with a value. The vendor's module uses `kvm`.
    fn reload(&self, vendor: Vendor) -> String {
        match self {
            Self::Parameter {
                module: "kvm",
                name,
            } => {
                let user = vendor.module();
                format!("modprobe -r {user} kvm; modprobe kvm {name}={{value}}; modprobe {user}")
            }
            Self::Parameter { module, name } => {
                format!("modprobe -r {module}; modprobe {module} {name}={{value}}")
            }
            Self::Scheduler(_) | Self::Sysctl(_) => {
                debug_assert!(false, "only modules are loaded: {self:?}");
                self.write()
            }
        }
    }
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

/// The feature that no released kernel has, and what a reader has to know of it.
const UNMERGED_FEATURE: &str = "YIELD_TO_LAG_CREDIT";
const UNMERGED: &str = "YIELD_TO_LAG_CREDIT is of a series of patches that is not merged";

/// How files and options write values.
#[derive(Clone, Copy, Debug)]
enum Spelling {
    /// As one text; `None` where no text stands for the value.
    Text(fn(&Value) -> Option<String>),
    /// Features of the scheduler: each word is a step of its own.
    Features,
}

/// What a step is for: a VM's threads, or the host where there are none.
#[derive(Clone, Copy, Debug, Default)]
pub struct StepTarget<'t> {
    /// Of the host.
    pub vendor: Vendor,
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
    const fn step(method: Method, acts: Acts, spell: fn(&Value) -> Option<String>) -> Self {
        Self::Step(Step {
            method,
            undo: None,
            acts,
            note: "",
            spelling: Spelling::Text(spell),
        })
    }

    /// A command that acts at once.
    pub(super) const fn live(set: &'static str) -> Self {
        Self::step(Method::Template(set), Acts::AtOnce, number)
    }

    /// The same for a word.
    pub(super) const fn live_word(set: &'static str) -> Self {
        Self::step(Method::Template(set), Acts::AtOnce, plain)
    }

    /// The same for a value that is spelled in another way.
    pub(super) const fn live_by(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(Method::Template(set), Acts::AtOnce, spell)
    }

    /// A quota and a period in µs.
    pub(super) const fn live_quota(set: &'static str) -> Self {
        Self::step(Method::Template(set), Acts::AtOnce, quota)
    }

    /// A number in a file of the running kernel.
    pub(super) const fn file(locations: &'static [Location]) -> Self {
        Self::step(Method::Write(locations), Acts::AtOnce, number)
    }

    /// A word in a file of the running kernel.
    pub(super) const fn word_file(locations: &'static [Location]) -> Self {
        Self::step(Method::Write(locations), Acts::AtOnce, plain)
    }

    /// A switch that is 1 or 0.
    pub(super) const fn sysctl(locations: &'static [Location]) -> Self {
        Self::step(Method::Write(locations), Acts::AtOnce, one_or_zero)
    }

    /// Features of the scheduler.
    pub(super) const fn features(locations: &'static [Location]) -> Self {
        Self::Step(Step {
            method: Method::Write(locations),
            undo: None,
            acts: Acts::AtOnce,
            note: UNMERGED,
            spelling: Spelling::Features,
        })
    }

    /// A parameter that a module reads when it is loaded.
    pub(super) const fn module(locations: &'static [Location]) -> Self {
        Self::step(Method::Reload(locations), Acts::ModuleReload, number)
    }

    /// The same for a switch.
    pub(super) const fn module_switch(locations: &'static [Location]) -> Self {
        Self::step(Method::Reload(locations), Acts::ModuleReload, yes_or_no)
    }

    /// A boot parameter.
    pub(super) const fn boot(set: &'static str, undo: &'static str) -> Self {
        Self::step(Method::Template(set), Acts::HostBoot, plain).undone_by(undo)
    }

    /// Another boot parameter for each value.
    pub(super) const fn boot_by(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(Method::Template(set), Acts::HostBoot, spell)
    }

    /// Another kernel for each value.
    pub(super) const fn kernel(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(Method::Kernel(set), Acts::HostBoot, spell)
    }

    /// An option of the VMM.
    pub(super) const fn vmm(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(Method::Template(set), Acts::VmRestart, spell)
    }

    /// A setting of the guest's kernel.
    pub(super) const fn guest(set: &'static str, spell: fn(&Value) -> Option<String>) -> Self {
        Self::step(Method::Template(set), Acts::GuestBoot, spell)
    }

    /// Another kernel of the guest.
    pub(super) const fn guest_kernel(
        set: &'static str,
        spell: fn(&Value) -> Option<String>,
    ) -> Self {
        Self::step(Method::Kernel(set), Acts::GuestBoot, spell)
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
    /// The step for a value, and what restores the former one. Empty if the host's vendor has no such
    /// setting.
    #[must_use]
    pub fn fill(&self, value: &Value, former: &Value, target: &StepTarget<'_>) -> Steps {
        let Some(set) = self.set(target.vendor) else {
            return Steps::default();
        };
        let steps = |template: &str, texts: Vec<String>| {
            let steps = texts.iter().map(|text| fill(template, text, target));
            steps.collect()
        };
        Steps {
            undo: steps(
                self.undo.unwrap_or(&set),
                self.spelling.texts(value, former, true),
            ),
            set: steps(&set, self.spelling.texts(value, former, false)),
        }
    }

    fn set(&self, vendor: Vendor) -> Option<String> {
        let location = self
            .locations()
            .iter()
            .find(|location| location.is_of(vendor));
        match self.method {
            Method::Template(set) | Method::Kernel(set) => Some(set.to_owned()),
            Method::Write(_) => location.map(Location::write),
            Method::Reload(_) => location.map(|location| location.reload(vendor)),
        }
    }

    /// Where a running kernel has the value; the first that a host has counts.
    #[must_use]
    pub fn locations(&self) -> &'static [Location] {
        match self.method {
            Method::Template(_) | Method::Kernel(_) => &[],
            Method::Write(locations) | Method::Reload(locations) => locations,
        }
    }

    /// A value as the file or option has it.
    #[must_use]
    pub fn text(&self, value: &Value) -> Option<String> {
        match self.spelling {
            Spelling::Text(spell) => spell(value),
            Spelling::Features => plain(value),
        }
    }

    /// The note for these steps: that of a feature only where they name it.
    #[must_use]
    pub fn note_for(&self, steps: &Steps) -> &'static str {
        let is_named = || steps.set.iter().any(|set| set.contains(UNMERGED_FEATURE));
        match self.spelling {
            Spelling::Features if !is_named() => "",
            Spelling::Features | Spelling::Text(_) => self.note,
        }
    }

    /// Whether another kernel must be booted for it.
    #[must_use]
    pub fn needs_kernel(&self) -> bool {
        matches!(self.method, Method::Kernel(_))
    }

    /// The step as a reference has it, with capitals for what differs.
    #[must_use]
    pub fn template(&self) -> String {
        let of_intel = self.set(Vendor::Intel).unwrap_or_default();
        match self.set(Vendor::Amd) {
            Some(of_amd) if of_amd != of_intel => {
                format!("{}, or {}", capitals(&of_intel), capitals(&of_amd))
            }
            _ => capitals(&of_intel),
        }
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

fn fill(template: &str, value: &str, target: &StepTarget<'_>) -> String {
    let tids: Vec<String> = target.tids.iter().map(i32::to_string).collect();
    let filled = template
        .replace("{value}", value)
        .replace("{vm}", target.vm)
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

//! Knobs by their real names: one table of all, read, written and documented alike.
//!
//! ```
//! use stealtime_lab::knobs;
//! # use stealtime_simulator::config::*;
//! # let machine = stealtime_lab::profile::builtin("skylake-sp").expect("it comes along");
//! # let mut config = Config {
//! #     host: HostConfig {
//! #         profile: machine.profile,
//! #         topology: Topology::flat(8),
//! #         hypervisor: Hypervisor::Kvm,
//! #         idle: IdleMethod::Mwait,
//! #         tasks: vec![],
//! #     },
//! #     vms: vec![VmConfig { name: "web".into(), ..VmConfig::default() }],
//! #     knobs: Knobs::default(),
//! #     run: RunConfig::default(),
//! #     scripts: Default::default(),
//! # };
//! knobs::set(&mut config, "kvm.halt_poll_ns", "50us")?;
//! knobs::set(&mut config, "vm.web.cpu_weight", "50")?;
//! assert_eq!(knobs::get(&config, "kvm.halt_poll_ns")?, "50us");
//! let error = knobs::set(&mut config, "kvm.halt_pol_ns", "0").expect_err("no such knob");
//! assert!(error.to_string().contains("kvm.halt_poll_ns"));
//! # Ok::<(), knobs::KnobError>(())
//! ```

mod host;
mod host_setting;
mod kvm;
mod name;
mod quote;
mod recording;
pub mod reference;
mod replay;
mod sched;
mod setting;
mod task;
mod value;
mod vm;

use stealtime_simulator::config::{Config, IdleMethod, Knobs, VmConfig};

pub use self::vm::cpu_max_ns;
pub use host_setting::{Acts, HostSetting, Location, Step, StepTarget, Steps, Vendor};
pub use name::{KnobError, get, order, replaces, set};
pub(crate) use name::{check_parameter, kind_of, parameter_value};
pub use quote::{quoted, split_setting, unquote, vm_knob, without_comment};
pub use replay::{FairClass, Part, Replay};
pub use setting::Setting;
pub use value::{Kind, Value, ValueError};
pub(crate) use vm::CLOCKS;

/// The origin of a knob's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// Upstream's: of this parameter, file or option.
    Upstream(&'static str),
    /// Ours, for what upstream has no name for.
    Ours(&'static str),
}

/// How a knob is read and written.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Access {
    /// One of all VMs and the host.
    Knobs(
        fn(&Knobs) -> Value,
        fn(&mut Knobs, &Value) -> Result<(), ValueError>,
    ),
    /// How idle CPUs of the host wait.
    Idle(
        fn(&IdleMethod) -> Value,
        fn(&mut IdleMethod, &Value) -> Result<(), ValueError>,
    ),
    /// One of a VM; its name is `vm.NAME.` and this knob's.
    Vm(
        fn(&VmConfig) -> Value,
        fn(&mut VmConfig, &Value) -> Result<(), ValueError>,
    ),
    /// One of replays alone, and of each VM or of the host: its value as recorded.
    Replay(fn() -> Value, Scope),
}

/// Of what a knob is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Of the host.
    Host,
    /// Of each VM; its name is `vm.NAME.` and this knob's.
    Vm,
}

/// A knob.
#[derive(Clone, Copy, Debug)]
pub struct Knob {
    /// Its name; of a VM's knob, what stands behind `vm.NAME.`.
    pub name: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// What it does, in a line.
    pub about: &'static str,
    /// The origin of its name.
    pub source: Source,
    /// What a replay of a recording can do with it.
    pub replay: Replay,
    /// The fair class that has it; `None` for both, and for what is no knob of a class.
    pub class: Option<FairClass>,
    /// How a real host gets its value.
    pub host: HostSetting,
    pub(crate) access: Access,
}

impl Knob {
    const fn of_class(self, class: FairClass) -> Self {
        Self {
            class: Some(class),
            ..self
        }
    }

    /// Its name as one writes it (`vm.NAME.cpu_weight`).
    #[must_use]
    pub fn full_name(&self) -> String {
        match self.is_per_vm() {
            true => format!("vm.NAME.{}", self.name),
            false => self.name.to_owned(),
        }
    }

    /// Whether each VM has its own.
    #[must_use]
    pub fn is_per_vm(&self) -> bool {
        matches!(self.access, Access::Vm(..) | Access::Replay(_, Scope::Vm))
    }

    /// Whether replays of recordings alone have it: a scenario has it in its file.
    #[must_use]
    pub fn is_of_recording(&self) -> bool {
        matches!(self.access, Access::Replay(..))
    }

    /// The value without a scenario's say.
    #[must_use]
    pub fn default(&self) -> Value {
        match self.access {
            Access::Knobs(get, _) => get(&Knobs::default()),
            Access::Idle(get, _) => get(&IdleMethod::default()),
            Access::Vm(get, _) => get(&VmConfig::default()),
            Access::Replay(recorded, _) => recorded(),
        }
    }

    /// The value in a configuration; `None` for one that each VM has.
    #[must_use]
    pub fn get(&self, config: &Config) -> Option<Value> {
        match self.access {
            Access::Knobs(get, _) => Some(get(&config.knobs)),
            Access::Idle(get, _) => Some(get(&config.host.idle)),
            Access::Replay(recorded, Scope::Host) => Some(recorded()),
            Access::Vm(..) | Access::Replay(_, Scope::Vm) => None,
        }
    }
}

/// All knobs, in the order in which those that depend on each other are set.
pub fn all() -> impl Iterator<Item = &'static Knob> {
    let parts = [
        kvm::KNOBS,
        sched::KNOBS,
        recording::OF_HOST,
        host::KNOBS,
        vm::KNOBS,
        recording::OF_VM,
    ];
    parts.into_iter().flatten()
}

/// The knob of this name, as [`Knob::name`] has it.
#[must_use]
pub fn find(name: &str) -> Option<&'static Knob> {
    all().find(|knob| knob.name == name)
}

/// The VM's knob of this name (without `vm.NAME.`).
pub(crate) fn of_vm(name: &str) -> Option<&'static Knob> {
    let mut knobs = vm::KNOBS.iter().chain(recording::OF_VM);
    knobs.find(|knob| knob.name == name)
}

/// Names of the VM's knobs, as scenarios have them.
pub(crate) fn names_of_vm() -> impl Iterator<Item = &'static str> {
    vm::KNOBS.iter().map(|knob| knob.name)
}

/// Makes a row of a table: getter and setter of one field.
macro_rules! knob {
    ($access:ident $name:expr, $kind:expr, $source:expr, $about:literal, $replay:expr, $host:expr,
     |$config:ident| $get:expr, |$target:ident, $value:ident| $set:expr) => {
        $crate::knobs::Knob {
            name: $name,
            kind: $kind,
            about: $about,
            source: $source,
            replay: $replay,
            class: None,
            host: $host,
            access: $crate::knobs::Access::$access(
                |$config| $get,
                |$target, $value| {
                    $set;
                    Ok(())
                },
            ),
        }
    };
}
pub(crate) use knob;

#[cfg(test)]
mod tests;

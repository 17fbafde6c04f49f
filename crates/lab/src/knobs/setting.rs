//! A knob with a value: text parsed once, applied to any number of configurations.

use std::fmt;

use stealtime_simulator::config::{Config, Hypervisor, ParamValue, VmConfig};

use super::name::{Target, check_parameter, parameter_value, target_on_host};
use super::task;
use super::vm::VmPattern;
use super::{Access, HostSetting, Knob, KnobError, StepTarget, Steps, Value, ValueError};

/// What a knob of replays needs.
const RECORDING: &str =
    "a recording, by `stealtime whatif`; scenarios have `count` in [[vm]] and `cpus` in [host]";

/// A knob with the value that it gets.
#[derive(Clone, Debug)]
pub struct Setting {
    name: String,
    text: String,
    change: Change,
}

/// What is set.
#[derive(Clone, Debug)]
enum Change {
    Host(&'static Knob, Value),
    Vm(VmPattern, &'static Knob, Value),
    Workload(VmPattern, String, ParamValue),
    /// Tasks are looked up when the setting is applied: a parsed setting may serve hosts with
    /// different tasks.
    Task,
}

impl PartialEq for Setting {
    // Name and text determine the change.
    fn eq(&self, setting: &Self) -> bool {
        (&self.name, &self.text) == (&setting.name, &setting.text)
    }
}

impl Eq for Setting {}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.name, self.text)
    }
}

impl Setting {
    /// Parses a value for the knob `name` of a host with the VMs of `config`.
    ///
    /// # Errors
    ///
    /// [`KnobError`] for an unknown knob or VM, or a value that the knob does not take.
    pub fn parse(config: &Config, name: &str, text: &str) -> Result<Self, KnobError> {
        Self::parse_with(&config.vms, name, text)
    }

    /// Parses a value for the knob `name` of a real host with VMs of these names.
    ///
    /// # Errors
    ///
    /// As [`Self::parse`].
    pub fn of_host(vms: &[String], name: &str, text: &str) -> Result<Self, KnobError> {
        let vm = |name: &String| VmConfig {
            name: name.clone(),
            ..VmConfig::default()
        };
        let vms: Vec<VmConfig> = vms.iter().map(vm).collect();
        Self::parse_with(&vms, name, text)
    }

    fn parse_with(vms: &[VmConfig], name: &str, text: &str) -> Result<Self, KnobError> {
        let read = |knob: &'static Knob| {
            knob.kind.read(text).map_err(|error| KnobError::Value {
                name: name.to_owned(),
                problem: error.to_string(),
            })
        };
        let change = if name.starts_with("task.") {
            Change::Task
        } else {
            match target_on_host(vms, name)? {
                Target::Whole(knob) => Change::Host(knob, read(knob)?),
                Target::Vm(vms, knob) => Change::Vm(vms, knob, read(knob)?),
                Target::Workload(vms, parameter) => {
                    Change::Workload(vms, parameter.to_owned(), parameter_value(text))
                }
                // Names of tasks begin with `task.`.
                Target::Task(_) => Change::Task,
            }
        };
        Ok(Self {
            name: name.to_owned(),
            text: text.to_owned(),
            change,
        })
    }

    /// The knob's name as given (`vm.web.cpu_weight`).
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The value as given.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The row of the knob table; `None` for a workload's parameter and for the host's tasks.
    #[must_use]
    pub fn knob(&self) -> Option<&'static Knob> {
        match self.change {
            Change::Host(knob, _) | Change::Vm(_, knob, _) => Some(knob),
            Change::Workload(..) | Change::Task => None,
        }
    }

    /// The value of a knob of the table.
    #[must_use]
    pub fn value(&self) -> Option<&Value> {
        match &self.change {
            Change::Host(_, value) | Change::Vm(_, _, value) => Some(value),
            Change::Workload(..) | Change::Task => None,
        }
    }

    /// The steps by which a real host makes this change, and those that restore `former`. `None`
    /// for what no command sets ([`super::HostSetting::SimulationOnly`], parameters, tasks).
    #[must_use]
    pub fn host_steps(&self, former: &Value, target: &StepTarget<'_>) -> Option<Steps> {
        let HostSetting::Step(step) = self.knob()?.host else {
            return None;
        };
        Some(step.fill(self.value()?, former, target))
    }

    /// The VM, the group of VMs or `*` that a VM's setting is for.
    #[must_use]
    pub fn vms(&self) -> Option<&str> {
        self.pattern().map(VmPattern::name)
    }

    fn pattern(&self) -> Option<&VmPattern> {
        match &self.change {
            Change::Vm(vms, ..) | Change::Workload(vms, ..) => Some(vms),
            Change::Host(..) | Change::Task => None,
        }
    }

    /// Whether it sets a knob or a parameter of this VM.
    #[must_use]
    pub fn is_for(&self, vm_name: &str) -> bool {
        self.pattern().is_some_and(|vms| vms.matches(vm_name))
    }

    /// Sets a knob of one VM; does nothing if it is not a VM's knob.
    ///
    /// # Errors
    ///
    /// [`KnobError::Value`] for a value that depends on another knob's.
    pub fn apply_to_vm(&self, vm: &mut VmConfig) -> Result<(), KnobError> {
        let Change::Vm(_, knob, value) = &self.change else {
            return Ok(());
        };
        if knob.is_of_recording() {
            return Err(self.wrong(ValueError::Requires(RECORDING)));
        }
        let Access::Vm(_, set) = knob.access else {
            debug_assert!(false, "{} is not a VM's knob", self.name);
            return Ok(());
        };
        set(vm, value).map_err(|error| self.wrong(error))
    }

    /// Sets it in a configuration; a VM's in each VM that it names.
    ///
    /// # Errors
    ///
    /// [`KnobError`] for a value that depends on another knob's, or an unknown task.
    pub fn apply(&self, config: &mut Config) -> Result<(), KnobError> {
        match &self.change {
            Change::Host(knob, value) => self.apply_to_host(config, knob, value),
            Change::Vm(..) => {
                let mut vms = config.vms.iter_mut();
                vms.try_for_each(|vm| match self.is_for(&vm.name) {
                    true => self.apply_to_vm(vm),
                    false => Ok(()),
                })
            }
            Change::Workload(_, parameter, value) => {
                let meant = |vm: &VmConfig| self.is_for(&vm.name);
                // All VMs are checked first: an error changes none.
                for vm in config.vms.iter().filter(|vm| meant(vm)) {
                    check_parameter(&vm.workload.name, parameter, value)
                        .map_err(|(problem, _)| self.wrong(ValueError::Parameter(problem)))?;
                }
                for vm in config.vms.iter_mut().filter(|vm| meant(vm)) {
                    let params = &mut vm.workload.params;
                    params.insert(parameter.clone(), value.clone());
                }
                Ok(())
            }
            Change::Task => {
                let tasks = &mut config.host.tasks;
                let task = task::target(tasks, &self.name)?;
                let set = task.set(tasks, &self.text);
                set.map_err(|error| self.wrong(error))
            }
        }
    }

    fn apply_to_host(
        &self,
        config: &mut Config,
        knob: &Knob,
        value: &Value,
    ) -> Result<(), KnobError> {
        match knob.access {
            Access::Knobs(..)
                if knob.name.starts_with("xen.") && config.host.hypervisor != Hypervisor::Xen =>
            {
                Err(self.wrong(ValueError::Requires("host.hypervisor = \"xen\"")))
            }
            Access::Knobs(_, set) => {
                // A setter may fail half way: the copy keeps the configuration whole.
                let mut knobs = config.knobs.clone();
                set(&mut knobs, value).map_err(|error| self.wrong(error))?;
                config.knobs = knobs;
                Ok(())
            }
            Access::Idle(_, set) => {
                set(&mut config.host.idle, value).map_err(|error| self.wrong(error))
            }
            Access::Replay(..) => Err(self.wrong(ValueError::Requires(RECORDING))),
            Access::Vm(..) => {
                debug_assert!(false, "{} is a VM's knob", self.name);
                Ok(())
            }
        }
    }

    fn wrong(&self, error: ValueError) -> KnobError {
        KnobError::Value {
            name: self.name.clone(),
            problem: error.to_string(),
        }
    }
}

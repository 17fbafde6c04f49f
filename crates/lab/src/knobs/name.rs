//! From a name and a text to a changed configuration, and back.

use stealtime_simulator::config::{Config, ParamValue, VmConfig};

use super::quote::{quoted, unquote};
use super::vm::VmPattern;
use super::{Access, Kind, Knob, Setting, all, names_of_vm, of_vm, task};
use crate::spelling::suggestion;
use crate::units::{Plain, show_time, time};

/// Why a knob cannot be read or set.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// There is none of this name.
    #[error("there is no knob {name}; {help}")]
    Unknown {
        /// The name.
        name: String,
        /// The nearest name, or where names are listed.
        help: String,
    },
    /// No task of this name.
    #[error("{name}: there is no such task; {help}")]
    NoTask {
        /// The name.
        name: String,
        /// The nearest task, or all.
        help: String,
    },
    /// No VM of this name.
    #[error("{name}: there is no such VM; {help}")]
    NoVm {
        /// The name.
        name: String,
        /// The nearest VM, or all.
        help: String,
    },
    /// The value does not fit.
    #[error("{name}: {problem}")]
    Value {
        /// The knob.
        name: String,
        /// What is wrong.
        problem: String,
    },
}

/// What a name stands for.
pub(super) enum Target<'n> {
    Whole(&'static Knob),
    /// VMs and the knob.
    Vm(VmPattern, &'static Knob),
    /// VMs and the parameter of the workload.
    Workload(VmPattern, &'n str),
    Task(task::Target<'n>),
}

/// The older name of a knob that [`Config::check`] uses.
const ALIASES: [(&str, &str); 2] = [
    ("sched.hz", "host.hz"),
    ("sched.timer_migration", "kernel.timer_migration"),
];

/// How names of knobs of all VMs begin.
const OF_ALL_VMS: &str = "vm.*.";

/// Whether `name` is the knob `knob`, under its own or another name.
fn matches(name: &str, knob: &str) -> bool {
    name == knob || ALIASES.contains(&(name, knob))
}

/// What a name stands for, on a host with the VMs and tasks of `config`.
pub(super) fn target<'n>(config: &Config, name: &'n str) -> Result<Target<'n>, KnobError> {
    match name.starts_with("task.") {
        true => task::target(&config.host.tasks, name).map(Target::Task),
        false => target_on_host(&config.vms, name),
    }
}

/// The same without tasks.
pub(super) fn target_on_host<'n>(vms: &[VmConfig], name: &'n str) -> Result<Target<'n>, KnobError> {
    if let Some(rest) = name.strip_prefix("vm.") {
        return target_of_vm(vms, name, rest);
    }
    let whole = |knob: &&Knob| !knob.is_per_vm() && matches(name, knob.name);
    if let Some(knob) = all().find(whole) {
        return Ok(Target::Whole(knob));
    }
    let names: Vec<&str> = all()
        .filter(|knob| !knob.is_per_vm())
        .map(|k| k.name)
        .collect();
    Err(KnobError::Unknown {
        name: name.to_owned(),
        help: help(name, &names),
    })
}

fn help(name: &str, names: &[&str]) -> String {
    match crate::spelling::closest(name, names.iter().copied()) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "`stealtime knobs` lists them".to_owned(),
    }
}

/// `NAME.KNOB` or `NAME.workload.PARAMETER`; names of VMs may have dots, and may be in quotes.
fn target_of_vm<'n>(
    vms: &[VmConfig],
    name: &'n str,
    rest: &'n str,
) -> Result<Target<'n>, KnobError> {
    if !rest.contains('.') {
        return Err(KnobError::Unknown {
            name: name.to_owned(),
            help: "a VM's knobs are vm.NAME.KNOB; `stealtime knobs` lists them".to_owned(),
        });
    }
    let Some((pattern, knob)) = split_vm(vms, rest) else {
        let mut names: Vec<&str> = vms.iter().map(|vm| vm.name.as_str()).collect();
        names.dedup();
        let unquoted = unquote(rest).map(|(vm_name, _)| vm_name);
        let wrong = unquoted.as_deref().or_else(|| rest.split('.').next());
        return Err(KnobError::NoVm {
            name: name.to_owned(),
            help: suggestion(wrong.unwrap_or(rest), &names),
        });
    };
    if let Some(parameter) = knob.strip_prefix("workload.") {
        return Ok(Target::Workload(pattern, parameter));
    }
    match of_vm(knob) {
        Some(knob) => Ok(Target::Vm(pattern, knob)),
        None => {
            let names = names_of_vm().chain(["count", "workload.PARAMETER"]);
            let help = match crate::spelling::closest(knob, names) {
                Some(knob) => {
                    format!("did you mean `vm.{}.{knob}`?", quoted(pattern.name()))
                }
                None => "`stealtime knobs` lists them".to_owned(),
            };
            Err(KnobError::Unknown {
                name: name.to_owned(),
                help,
            })
        }
    }
}

/// The VMs that a name begins with, and the knob behind them.
fn split_vm<'n>(vms: &[VmConfig], rest: &'n str) -> Option<(VmPattern, &'n str)> {
    let in_quotes = unquote(rest).and_then(|(vm_name, knob)| {
        let pattern = VmPattern::find(vms, &vm_name)?;
        Some((pattern, knob.strip_prefix('.')?))
    });
    let bare = || {
        let mut dots = rest.match_indices('.').map(|(dot, _)| rest.split_at(dot));
        dots.find_map(|(vm_name, knob)| {
            let pattern = VmPattern::find(vms, vm_name)?;
            Some((pattern, knob.trim_start_matches('.')))
        })
    };
    in_quotes.or_else(bare)
}

/// Sets a knob. A name that is no VM's is that of a group of VMs (`vm.web.cpu_weight` for `web-1`,
/// `web-2`…) and sets it in each, `vm.*.` in all.
///
/// # Errors
///
/// [`KnobError`]; nothing is changed then.
pub fn set(config: &mut Config, name: &str, text: &str) -> Result<(), KnobError> {
    Setting::parse(config, name, text)?.apply(config)
}

/// A workload's parameter from text: a number, a time, a switch or a word.
pub(crate) fn parameter_value(text: &str) -> ParamValue {
    if let Ok(number) = text.parse::<i64>() {
        return ParamValue::Int(number);
    }
    if let Some(ns) = time(text, Plain::Refused)
        .ok()
        .and_then(|ns| i64::try_from(ns).ok())
    {
        return ParamValue::Int(ns);
    }
    match text {
        "true" => ParamValue::Bool(true),
        "false" => ParamValue::Bool(false),
        _ => ParamValue::Text(text.to_owned()),
    }
}

/// Whether a workload of the library takes this parameter: what is wrong, and what to do.
pub(crate) fn check_parameter(
    workload: &str,
    name: &str,
    value: &ParamValue,
) -> Result<(), (String, Option<String>)> {
    let Some(workload) = stealtime_simulator::workload::find(workload) else {
        return Ok(());
    };
    let Some(doc) = workload.params.iter().find(|doc| doc.name == name) else {
        let names: Vec<&str> = workload.params.iter().map(|doc| doc.name).collect();
        let help = match names.is_empty() {
            true => "it has none".to_owned(),
            false => suggestion(name, &names),
        };
        let problem = format!("{} has no parameter {name}; {help}", workload.name);
        return Err((problem, None));
    };
    let number = match value {
        ParamValue::Int(number) => u64::try_from(*number).ok(),
        ParamValue::Bool(on) => Some(u64::from(*on)),
        ParamValue::Text(_) => None,
    };
    if number.is_some_and(|number| (doc.min..=doc.max).contains(&number)) {
        return Ok(());
    }
    let range = match doc.unit {
        "ns" => format!(
            "a time within {} to {}",
            show_time(doc.min),
            show_time(doc.max)
        ),
        unit => format!("a whole number within {} to {} {unit}", doc.min, doc.max),
    };
    let help = format!("{name}: {}", doc.about);
    Err((format!("must be {}", range.trim_end()), Some(help)))
}

/// Reads a knob as [`set`] writes it. Of several VMs, the first one's.
///
/// # Errors
///
/// [`KnobError`] for a name that is no knob's or no VM's.
pub fn get(config: &Config, name: &str) -> Result<String, KnobError> {
    let without_value = || KnobError::Unknown {
        name: name.to_owned(),
        help: "it has no value here".to_owned(),
    };
    match target(config, name)? {
        Target::Task(task) => task.get(&config.host.tasks).ok_or_else(without_value),
        Target::Whole(knob) => Ok(knob.get(config).ok_or_else(without_value)?.to_string()),
        Target::Vm(pattern, knob) => {
            let vm = config
                .vms
                .iter()
                .find(|vm| pattern.matches(&vm.name))
                .ok_or_else(without_value)?;
            match knob.access {
                Access::Vm(get, _) => Ok(get(vm).to_string()),
                Access::Replay(recorded, _) => Ok(recorded().to_string()),
                _ => Err(without_value()),
            }
        }
        Target::Workload(pattern, parameter) => {
            let vm = config
                .vms
                .iter()
                .find(|vm| pattern.matches(&vm.name))
                .ok_or_else(without_value)?;
            match vm
                .workload
                .params
                .get(parameter)
                .ok_or_else(without_value)?
            {
                ParamValue::Int(number) => Ok(number.to_string()),
                ParamValue::Text(text) => Ok(text.clone()),
                ParamValue::Bool(on) => Ok(on.to_string()),
            }
        }
    }
}

/// What values a knob takes; `None` for what is none, or a parameter.
pub(crate) fn kind_of(config: &Config, name: &str) -> Option<Kind> {
    match target(config, name) {
        Ok(Target::Whole(knob) | Target::Vm(_, knob)) if !knob.is_of_recording() => Some(knob.kind),
        _ => None,
    }
}

/// The place of a name in the order in which knobs are set. A knob comes after those it depends on, a
/// parameter after the workload, and a knob of one VM after that of all VMs.
#[must_use]
pub fn order(name: &str) -> impl Ord + use<> {
    let is_parameter = name.contains(".workload.");
    (rank(name), is_parameter, !name.starts_with(OF_ALL_VMS))
}

/// Whether a value of the knob `name`, set last, replaces any value of `earlier`.
#[must_use]
pub fn replaces(name: &str, earlier: &str) -> bool {
    let of_all = name.strip_prefix(OF_ALL_VMS);
    let is_of_vm = |knob: &str| {
        let vm = earlier.strip_prefix("vm.");
        let vm = vm.and_then(|rest| rest.strip_suffix(knob));
        vm.is_some_and(|rest| rest.ends_with('.'))
    };
    name == earlier || of_all.is_some_and(is_of_vm)
}

fn rank(name: &str) -> usize {
    let of_vm = name.starts_with("vm.");
    let is_it = |knob: &Knob| match knob.is_per_vm() {
        false => matches(name, knob.name),
        true => of_vm && name.ends_with(knob.name) && name.len() > knob.name.len() + 3,
    };
    let of_scenarios = all().filter(|knob| !knob.is_of_recording());
    of_scenarios
        .enumerate()
        .find(|(_, knob)| is_it(knob))
        .map_or(usize::MAX, |(rank, _)| rank)
}

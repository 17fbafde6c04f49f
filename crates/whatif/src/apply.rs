//! Settings on the host of a replay. Its VMs are scripts, not configured guests.

use std::collections::BTreeSet;

use stealtime_lab::knobs::{KnobError, Part, Setting};
use stealtime_simulator::config::{Config, VmConfig};
use stealtime_simulator::script::{ScriptConfig, ScriptGroup, Scripts};

use crate::{answerable, fair_class};

/// What a replay has of a VM's knobs.
#[derive(Debug, Clone, Copy)]
enum VmChange {
    Nice(i8),
    Weight(u32),
    /// Quota and period in ns.
    Limit(Option<(u64, u64)>),
}

impl VmChange {
    /// `None` for a knob that no replay has.
    fn new(setting: &Setting) -> Result<Option<Self>, KnobError> {
        let mut vm = VmConfig::default();
        setting.apply_to_vm(&mut vm)?;
        Ok(match answerable::part(setting) {
            Some(Part::Nice) => Some(Self::Nice(vm.nice)),
            Some(Part::Weight) => Some(Self::Weight(vm.cpu_weight)),
            Some(Part::Limit) => Some(Self::Limit(vm.cpu_max_ns)),
            _ => None,
        })
    }

    fn apply(self, scripts: &mut Scripts, vm: u32) {
        let Some(group) = scripts.groups.get_mut(vm as usize) else {
            // A VM of which nothing ran has no cgroup, but may have threads.
            if let Self::Nice(nice) = self {
                renice(scripts, vm, nice);
            }
            return;
        };
        match self {
            Self::Nice(nice) => renice(scripts, vm, nice),
            // A weight or a limit is a cgroup's, so the VM has one.
            Self::Weight(weight) => group.get_or_insert_default().cpu_weight = weight,
            Self::Limit(limit) => {
                // No limit needs no cgroup.
                if limit.is_some() || group.is_some() {
                    group.get_or_insert_default().cpu_max_ns = limit;
                }
            }
        }
    }
}

/// Applies settings to a host with these VMs.
pub(crate) fn apply(
    config: &mut Config,
    settings: &[Setting],
    vms: &[String],
) -> Result<(), KnobError> {
    fair_class::change(config, settings);
    let of_scenarios = |setting: &&Setting| !answerable::is_of_recording(setting);
    for setting in settings.iter().filter(of_scenarios) {
        if setting.vms().is_none() {
            setting.apply(config)?;
            continue;
        }
        let Some(change) = VmChange::new(setting)? else {
            continue;
        };
        for (vm, _) in (0u32..).zip(vms).filter(|(_, name)| setting.is_for(name)) {
            change.apply(&mut config.scripts, vm);
        }
    }
    Ok(())
}

/// Gives a nice value to the threads of a VM that have a vCPU's.
fn renice(scripts: &mut Scripts, vm: u32, nice: i8) {
    for index in reniced(&scripts.tasks, vm) {
        if let Some(task) = scripts.tasks.get_mut(index) {
            task.nice = nice;
        }
    }
}

/// The indices of the tasks that get a VM's nice value: its vCPUs, and its threads with a vCPU's nice
/// value. Threads that were set apart (an emulator at another nice value, a real-time I/O thread) keep
/// theirs.
pub(crate) fn reniced(tasks: &[ScriptConfig], vm: u32) -> Vec<usize> {
    let tasks = tasks.iter().enumerate();
    let threads = tasks.filter(|(_, task)| task.vm == Some(vm));
    let vcpus = threads.clone().filter(|(_, task)| task.vcpu.is_some());
    let values: BTreeSet<i8> = vcpus.map(|(_, task)| task.nice).collect();
    let reniced = threads.filter(|(_, task)| values.contains(&task.nice));
    reniced.map(|(index, _)| index).collect()
}

/// The cgroups of the VM of this name, or of all (`*`): `None` for a VM without one.
pub(crate) fn groups<'c>(
    name: &str,
    config: &'c Config,
    vms: &[String],
) -> Vec<Option<&'c ScriptGroup>> {
    let groups = config.scripts.groups.iter().map(Option::as_ref);
    // VMs of which nothing ran have none.
    let vms = vms.iter().zip(groups.chain(std::iter::repeat(None)));
    let named = vms.filter(|(vm, _)| name == "*" || *vm == name);
    named.map(|(_, group)| group).collect()
}

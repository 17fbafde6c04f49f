//! Settings on the host of a replay, whose VMs are scripts and not configured guests.

use std::collections::BTreeSet;

use stealtime_lab::knobs::{KnobError, Setting};
use stealtime_simulator::config::{Config, VmConfig};
use stealtime_simulator::script::{ScriptGroup, Scripts};

use crate::fair_class;

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
        Ok(match setting.knob().map(|knob| knob.name) {
            Some("nice") => Some(Self::Nice(vm.nice)),
            Some("cpu_weight") => Some(Self::Weight(vm.cpu_weight)),
            Some("cpu_max") => Some(Self::Limit(vm.cpu_max_ns)),
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
    for setting in settings {
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

/// Gives a nice value to a VM's vCPUs and to its other threads with a vCPU's nice value. Threads
/// that were set apart (an emulator at another nice value, a real-time I/O thread) keep theirs.
fn renice(scripts: &mut Scripts, vm: u32, nice: i8) {
    let tasks = scripts.tasks.iter_mut().filter(|task| task.vm == Some(vm));
    let mut tasks: Vec<_> = tasks.collect();
    let vcpus = tasks.iter().filter(|task| task.vcpu.is_some());
    let values: BTreeSet<i8> = vcpus.map(|task| task.nice).collect();
    for task in &mut tasks {
        if values.contains(&task.nice) {
            task.nice = nice;
        }
    }
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

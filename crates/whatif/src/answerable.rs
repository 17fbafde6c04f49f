//! Whether a recording says anything about a knob.

use stealtime_lab::knobs::{self, Knob, Part, Replay, Setting};

use crate::apply::groups;
use crate::baseline::Baseline;
use crate::question::{FEATURES, words};

/// The scheduler's feature that acts on directed yields.
const CREDIT: &str = "YIELD_TO_LAG_CREDIT";

/// The scenario with directed yields.
const YIELDS_SCENARIO: &str = "lock-holder.toml";

/// The part of a replay that a setting acts on; `None` if it has no effect there.
pub(crate) fn part(setting: &Setting) -> Option<Part> {
    let Replay::Shows(part) = setting.knob()?.replay else {
        return None;
    };
    let is_credit_alone =
        setting.name() == FEATURES && words(setting.text()).all(|word| word.ends_with(CREDIT));
    Some(match is_credit_alone {
        true => Part::DirectedYields,
        false => part,
    })
}

/// Whether it changes the numbers of VMs or CPUs, which no knob of the simulated host has.
pub(crate) fn is_of_recording(setting: &Setting) -> bool {
    setting.knob().is_some_and(Knob::is_of_recording)
}

/// Why a recording says nothing about a setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unanswerable {
    /// No vCPU yields.
    #[error(
        "{0}: no vCPU of this recording yields its CPU to another one, by an exit for PAUSE or by \
         KVM_HC_SCHED_YIELD; record kvm:kvm_exit and kvm:kvm_hypercall while guests wait for each \
         other. {instead}",
        instead = elsewhere(Some(YIELDS_SCENARIO))
    )]
    NoYields(String),
    /// No vCPU halts.
    #[error(
        "{0}: the recording has no halts of vCPUs; record kvm:kvm_exit, kvm:kvm_entry and \
         kvm:kvm_vcpu_wakeup on a host with guests that halt (no cpu_pm, no idle=poll)"
    )]
    NoHalts(String),
    /// Halts without their polling.
    #[error(
        "{0}: the recording does not tell polling in halts from other work; record \
         kvm:kvm_vcpu_wakeup and kvm:kvm_halt_poll_ns too"
    )]
    UnknownPolling(String),
    /// The setting is of cgroups, which the host is assumed not to have.
    #[error(
        "{0}: no cgroups are assumed, without which both methods to pick are one; say \
         `groups = true` in a --host file if the host has them"
    )]
    NoCgroups(String),
    /// The VM's cgroup hides the effect.
    #[error(
        "{0}: the VM is taken to be in a cgroup of its own, where nice values act within the VM \
         only; set vm.NAME.cpu_weight, or say `groups = false` in a --host file"
    )]
    OwnCgroup(String),
    /// The VM is configured to have no cgroup.
    #[error(
        "{0}: the --host file says `groups = false`, and the weight is that of a cgroup; set \
         vm.NAME.nice, or leave that line out"
    )]
    UngroupedVm(String),
    /// An option of its own has the effect.
    #[error("{name}: say {option}")]
    Instead {
        /// The knob.
        name: String,
        /// The option.
        option: &'static str,
    },
    /// No replay has the effect.
    #[error(
        "{name} does nothing in a replay yet, so this recording cannot answer it ({why}); {acting}. \
         {instead}"
    )]
    WithoutEffect {
        /// The knob.
        name: String,
        /// The reason, as a clause.
        why: &'static str,
        /// The knobs that have an effect.
        acting: String,
        /// The command that answers it.
        instead: String,
    },
}

/// Checks that this recording says anything about a setting.
pub(crate) fn check(setting: &Setting, base: &Baseline) -> Result<(), Unanswerable> {
    let recording = &base.recorded.recording;
    let name = || setting.name().to_owned();
    let Some(part) = part(setting) else {
        return Err(without_effect(setting));
    };
    match part {
        Part::Tasks | Part::Limit | Part::Count | Part::Cpus => Ok(()),
        Part::DirectedYields => match recording.yields {
            0 => Err(Unanswerable::NoYields(setting.to_string())),
            _ => Ok(()),
        },
        Part::Halts if recording.halts == 0 => Err(Unanswerable::NoHalts(name())),
        Part::Halts if recording.halts_told == 0 => Err(Unanswerable::UnknownPolling(name())),
        Part::Halts => Ok(()),
        Part::Cgroups => match base.config.scripts.groups.iter().any(Option::is_some) {
            true => Ok(()),
            false => Err(Unanswerable::NoCgroups(name())),
        },
        Part::Nice | Part::Weight => check_cgroups(setting, part, base),
    }
}

/// Where a knob is answered that has no effect in a replay.
fn elsewhere(scenario: Option<&str>) -> String {
    match scenario {
        Some(scenario) => {
            format!("Instead: `stealtime simulate scenarios/{scenario}`, with the host's figures")
        }
        None => "`stealtime simulate` has all knobs".to_owned(),
    }
}

/// Why a replay has no effect of a setting.
fn without_effect(setting: &Setting) -> Unanswerable {
    let name = setting.name().to_owned();
    let (reason, scenario) = match setting.knob().map(|knob| knob.replay) {
        Some(Replay::Instead(option)) => return Unanswerable::Instead { name, option },
        Some(Replay::Simulate {
            why: reason,
            scenario,
        }) => (reason, scenario),
        // Parameters of workloads, and tasks of scenarios.
        _ => ("recorded tasks have no workload", None),
    };
    let is_for_vm = setting.vms().is_some();
    let scope = if is_for_vm {
        "of a VM act"
    } else {
        "knobs that act"
    };
    Unanswerable::WithoutEffect {
        name,
        why: reason,
        acting: format!("{scope}: {}", acting(is_for_vm).join(", ")),
        instead: elsewhere(scenario),
    }
}

/// The knobs with an effect in a replay; those of a VM without its name. The details of a knob are
/// one entry.
fn acting(is_for_vm: bool) -> Vec<String> {
    let shows = |knob: &&Knob| matches!(knob.replay, Replay::Shows(_));
    let mut names: Vec<String> = Vec::new();
    for knob in knobs::all().filter(shows) {
        if is_for_vm && !knob.is_per_vm() {
            continue;
        }
        let name = match knob.name.rsplit_once('.') {
            _ if is_for_vm => knob.name.to_owned(),
            Some((details, _)) if details.contains('.') => format!("{details}.*"),
            _ => knob.full_name(),
        };
        if names.last() != Some(&name) {
            names.push(name);
        }
    }
    names
}

/// Checks that the VMs that are meant have the cgroups that a setting acts on, or lack those that
/// hide its effect.
fn check_cgroups(setting: &Setting, part: Part, base: &Baseline) -> Result<(), Unanswerable> {
    let name = || setting.name().to_owned();
    let vms = setting.vms().unwrap_or_default();
    let groups = groups(vms, &base.config, &base.recorded.vms);
    let are_grouped = !groups.is_empty() && groups.iter().all(Option::is_some);
    let are_ungrouped = !groups.is_empty() && groups.iter().all(Option::is_none);
    match part {
        Part::Nice if are_grouped => Err(Unanswerable::OwnCgroup(name())),
        Part::Weight if are_ungrouped => Err(Unanswerable::UngroupedVm(name())),
        _ => Ok(()),
    }
}

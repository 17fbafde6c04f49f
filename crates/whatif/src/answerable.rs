//! Whether a recording says anything about a knob.

use stealtime_lab::knobs::Setting;
use stealtime_simulator::script::ScriptGroup;

use crate::apply::groups;
use crate::baseline::Baseline;
use crate::question::{FEATURES, words};

/// Knobs that change something in a replay.
const ACT: [&str; 14] = [
    "kvm.halt_poll_ns",
    "kvm.halt_poll_ns_grow",
    "kvm.halt_poll_ns_grow_start",
    "kvm.halt_poll_ns_shrink",
    "sched.fair",
    "sched.features",
    "sched.latency_ns",
    "sched.min_granularity_ns",
    "sched.wakeup_granularity_ns",
    "sched.base_slice_ns",
    "sched.pick",
    "sched.preempt",
    "sched.yield_forfeits",
    "host.hz",
];

/// Knobs of a VM (`vm.NAME.KNOB`) that change something in a replay.
const ACT_OF_VM: [&str; 3] = ["nice", "cpu_weight", "cpu_max"];

/// The scheduler's feature that acts on directed yields.
const CREDIT: &str = "YIELD_TO_LAG_CREDIT";

/// The knob of a cgroup's weight.
pub(crate) const WEIGHT: &str = "cpu_weight";

/// Whether this recording says anything about a setting; if not, why, and what to do.
pub(crate) fn check(setting: &Setting, base: &Baseline) -> Result<(), String> {
    let recording = &base.recorded.recording;
    let name = setting.name();
    if acts_on_yields(setting) {
        return match recording.yields {
            0 => Err(format!(
                "{setting}: no vCPU of this recording yields its CPU to another one, by an exit for \
                 PAUSE or by KVM_HC_SCHED_YIELD; record kvm:kvm_exit and kvm:kvm_hypercall while guests \
                 wait for each other. {}",
                elsewhere("sched.lag_credit")
            )),
            _ => Ok(()),
        };
    }
    if let Some((vm, knob)) = knob_of_vm(name) {
        return check_of_vm(name, knob, &groups(vm, &base.config, &base.recorded.vms));
    }
    if !ACT.contains(&name) {
        let of_vm = ACT_OF_VM.map(|knob| format!("vm.NAME.{knob}")).join(", ");
        return Err(format!(
            "{name} does nothing in a replay yet, so this recording cannot answer it; \
             knobs that act: {}, {of_vm}. {}",
            ACT.join(", "),
            elsewhere(name)
        ));
    }
    if name.starts_with("kvm.halt_poll") && recording.halts == 0 {
        return Err(format!(
            "{name}: the recording has no halts of vCPUs; record kvm:kvm_exit, kvm:kvm_entry and \
             kvm:kvm_vcpu_wakeup on a host whose guests halt (no cpu_pm, no idle=poll)"
        ));
    }
    if name.starts_with("kvm.halt_poll") && recording.halts_told == 0 {
        return Err(format!(
            "{name}: the recording does not tell polling in halts from other work; record \
             kvm:kvm_vcpu_wakeup and kvm:kvm_halt_poll_ns too"
        ));
    }
    if name == "sched.pick" && !base.config.scripts.groups.iter().any(Option::is_some) {
        return Err(format!(
            "{name}: no cgroups are assumed, without which both ways to pick are one; say \
             `groups = true` in a --host file if the host has them"
        ));
    }
    Ok(())
}

/// Whether a setting acts on directed yields and on nothing else.
fn acts_on_yields(setting: &Setting) -> bool {
    let name = setting.name();
    name.starts_with("sched.lag_credit.")
        || name == "sched.yield_forfeits"
        || name == FEATURES && words(setting.text()).all(|word| word.ends_with(CREDIT))
}

/// Scenarios that show the effect of a knob that no replay has, by the beginning of its name.
const SHOWN_BY: [(&str, &str); 9] = [
    ("kvm.ple", "lock-holder.toml"),
    ("kvm.enable_relaxed_boost", "lock-holder.toml"),
    ("kvm.ipi", "lock-holder.toml"),
    ("sched.lag_credit", "lock-holder.toml"),
    ("kvm.pi_inject_timer", "posted-timers.toml"),
    ("kvm.timer", "posted-timers.toml"),
    ("host.nohz_full", "posted-timers.toml"),
    ("kvm.suppress_notification", "suppressed-notifications.toml"),
    ("xen.", "xen-broadcast.toml"),
];

/// Where a knob is answered that no replay has.
fn elsewhere(name: &str) -> String {
    let shown = SHOWN_BY.iter().find(|known| name.starts_with(known.0));
    match shown {
        Some((_, scenario)) => {
            format!("Instead: `stealtime simulate scenarios/{scenario}`, with the host's figures")
        }
        None => "`stealtime simulate` has all knobs".to_owned(),
    }
}

/// NAME and KNOB of `vm.NAME.KNOB`.
fn knob_of_vm(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("vm.")?.rsplit_once('.')
}

/// `groups`: the cgroup of each VM that is meant.
fn check_of_vm(name: &str, knob: &str, groups: &[Option<&ScriptGroup>]) -> Result<(), String> {
    let all = !groups.is_empty() && groups.iter().all(Option::is_some);
    let any = groups.iter().any(Option::is_some);
    match knob {
        "nice" if all => Err(format!(
            "{name}: the VM is taken to be in a cgroup of its own, where nice values act within the \
             VM only; set vm.NAME.cpu_weight, or say `groups = false` in a --host file"
        )),
        WEIGHT if !any && !groups.is_empty() => Err(format!(
            "{name}: the --host file says `groups = false`, and the weight is that of a cgroup; set \
             vm.NAME.nice, or leave that line out"
        )),
        "pinning" => Err(format!("{name}: say --pin NAME=CPUS")),
        knob if ACT_OF_VM.contains(&knob) => Ok(()),
        _ => Err(format!(
            "{name} does nothing in a replay yet, so this recording cannot answer it; of a VM act: \
             {}. {}",
            ACT_OF_VM.join(", "),
            elsewhere(name)
        )),
    }
}

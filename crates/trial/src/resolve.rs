//! From settings and a snapshot to files and threads.

use serde::Serialize;
use stealtime_host::{Policy, Snapshot, Thread, ThreadKind, Vm, cpulist};
use stealtime_lab::knobs::{Acts, HostSetting, Knob, Location, Setting, Step, Value, Vendor};

use crate::target::Target;

/// The version of control groups with `cpu.weight` and `cpu.max`.
const VERSION_2: &str = "v2";

/// A value that a target is to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The knob, as named by the user.
    pub knob: String,
    /// What gets it.
    pub target: Target,
    /// The value, as the kernel takes it.
    pub value: String,
}

/// A knob that cannot be turned on this host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Refusal {
    /// The knob.
    pub knob: String,
    /// Why, as a clause.
    pub reason: String,
}

/// Why a knob cannot be turned while the host and its VMs run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum CannotTurn {
    #[error("it is part of a simulated guest or task")]
    Simulated,
    #[error("simulation only: {0}")]
    SimulationOnly(&'static str),
    #[error("it acts {acts}: {step}")]
    Later { acts: Acts, step: String },
    #[error("KVM of this host's vendor has no such parameter")]
    NoParameter,
    #[error("it is no file of the host: {0}")]
    ByCommand(String),
    #[error("no text stands for {0} in the running kernel")]
    NoText(String),
    #[error("no VM of this name runs on the host")]
    NoVm,
    #[error("it is not set on the host: {0}")]
    NotOnHost(String),
    #[error("it needs control groups of version 2, and this host has {0}")]
    GroupVersion(String),
    #[error("{0:?} has no control group of its own")]
    NoGroup(String),
    #[error("thread {tid} of {vm:?} has another policy than SCHED_OTHER: nice does nothing there")]
    RealTime { tid: i32, vm: String },
    #[error("{0:?} has no vCPU threads")]
    NoVcpus(String),
    #[error("{0:?} is no list of CPUs: give 3, 0-3 or 0-3,8")]
    NoCpus(String),
    #[error("CPU {0} is not online")]
    Offline(u32),
}

/// Where settings are on a host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// What gets which value.
    pub wanted: Vec<Wanted>,
    /// Knobs that cannot be turned.
    pub refusals: Vec<Refusal>,
    /// What else changes with them, a sentence each.
    pub notes: Vec<String>,
}

/// Finds the targets of settings.
#[must_use]
pub fn resolve(snapshot: &Snapshot, settings: &[Setting]) -> Resolved {
    let mut resolved = Resolved::default();
    for setting in settings {
        let mut found = Vec::new();
        match targets(snapshot, setting, &mut found, &mut resolved.notes) {
            Ok(()) => {
                let wanted = found.into_iter().map(|(target, value)| Wanted {
                    knob: setting.name().to_owned(),
                    target,
                    value,
                });
                resolved.wanted.extend(wanted);
            }
            Err(reason) => resolved.refusals.push(Refusal {
                knob: setting.name().to_owned(),
                reason: reason.to_string(),
            }),
        }
    }
    resolved
}

type Found = Vec<(Target, String)>;

fn targets(
    snapshot: &Snapshot,
    setting: &Setting,
    found: &mut Found,
    notes: &mut Vec<String>,
) -> Result<(), CannotTurn> {
    let (Some(knob), Some(value)) = (setting.knob(), setting.value()) else {
        return Err(CannotTurn::Simulated);
    };
    let step = match knob.host {
        HostSetting::Step(step) => step,
        HostSetting::SimulationOnly(reason) => return Err(CannotTurn::SimulationOnly(reason)),
    };
    if step.acts != Acts::AtOnce || step.needs_kernel() {
        return Err(CannotTurn::Later {
            acts: step.acts,
            step: step.template(),
        });
    }
    if knob.name == "sched.policy" {
        found.push((Target::Scheduler, value.to_string()));
        return Ok(());
    }
    match knob.is_per_vm() {
        true => of_vms(snapshot, setting, knob, &step, value, found, notes),
        false => of_host(snapshot, &step, value, found),
    }
}

fn of_host(
    snapshot: &Snapshot,
    step: &Step,
    value: &Value,
    found: &mut Found,
) -> Result<(), CannotTurn> {
    let vendor = match snapshot.kvm.modules.contains_key(Vendor::Amd.module()) {
        true => Vendor::Amd,
        false => Vendor::Intel,
    };
    if step.locations().is_empty() {
        return Err(CannotTurn::ByCommand(step.template()));
    }
    let mut locations = step.locations().iter();
    let location = locations.find(|location| location.is_of(vendor));
    let Some(location) = location else {
        return Err(CannotTurn::NoParameter);
    };
    let text = step.text(value);
    let text = text.ok_or_else(|| CannotTurn::NoText(value.to_string()))?;
    match location {
        Location::Scheduler("features") => {
            let path = "/sys/kernel/debug/sched/features".to_owned();
            for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
                let feature = word.strip_prefix("NO_").unwrap_or(word).to_owned();
                let path = path.clone();
                found.push((Target::Feature { path, feature }, word.to_owned()));
            }
        }
        Location::Scheduler(name @ "preempt") => {
            let path = format!("/sys/kernel/debug/sched/{name}");
            found.push((Target::Choice { path }, text));
        }
        location => {
            let path = path(location);
            found.push((Target::File { path }, text));
        }
    }
    Ok(())
}

fn path(location: &Location) -> String {
    match location {
        Location::Parameter { module, name } => format!("/sys/module/{module}/parameters/{name}"),
        Location::Scheduler(name) => format!("/sys/kernel/debug/sched/{name}"),
        Location::Sysctl(name) => format!("/proc/sys/{}", name.replace('.', "/")),
    }
}

fn of_vms(
    snapshot: &Snapshot,
    setting: &Setting,
    knob: &Knob,
    step: &Step,
    value: &Value,
    found: &mut Found,
    notes: &mut Vec<String>,
) -> Result<(), CannotTurn> {
    let vms: Vec<&Vm> = snapshot
        .vms
        .iter()
        .filter(|vm| setting.is_for(&vm.name))
        .collect();
    if vms.is_empty() {
        return Err(CannotTurn::NoVm);
    }
    for vm in &vms {
        match knob.name {
            name @ ("cpu_weight" | "cpu_max") => {
                let text = step.text(value);
                let text = text.ok_or_else(|| CannotTurn::NoText(value.to_string()))?;
                let file = match name {
                    "cpu_weight" => "cpu.weight",
                    _ => "cpu.max",
                };
                let path = group_file(snapshot, vm, file)?;
                let sharers = sharers(snapshot, vm, &vms);
                if !sharers.is_empty() {
                    let sharers = sharers.join(", ");
                    notes.push(format!(
                        "the control group of {} has also threads of {sharers}, which change with it",
                        vm.name
                    ));
                }
                found.push((Target::File { path }, text));
            }
            "nice" => {
                for thread in reniced(vm)? {
                    let nice = step.text(value).unwrap_or_else(|| value.to_string());
                    found.push((Target::Nice { tid: thread.tid }, nice));
                }
            }
            "pinning" => pins(snapshot, vm, &value.to_string(), found)?,
            _ => return Err(CannotTurn::NotOnHost(step.template())),
        }
    }
    Ok(())
}

/// A file of the control group of a whole VM.
fn group_file(snapshot: &Snapshot, vm: &Vm, file: &str) -> Result<String, CannotTurn> {
    let info = &snapshot.cgroup;
    if info.version != VERSION_2 {
        return Err(CannotTurn::GroupVersion(info.version.clone()));
    }
    let group = vm.whole_group().filter(|group| *group != "/");
    match (&info.cpu_mount, group) {
        (Some(mount), Some(group)) => Ok(format!("{mount}{group}/{file}")),
        _ => Err(CannotTurn::NoGroup(vm.name.clone())),
    }
}

/// Other VMs with threads in the control group of a VM.
fn sharers<'s>(snapshot: &'s Snapshot, vm: &Vm, named: &[&Vm]) -> Vec<&'s str> {
    let group = vm.whole_group().unwrap_or("/");
    let is_inside = |path: &str| {
        let rest = path.strip_prefix(group);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let foreign = snapshot.vms.iter().filter(|candidate| {
        let is_named = named.iter().any(|vm| vm.process == candidate.process);
        let mut groups = candidate
            .threads
            .iter()
            .filter_map(|thread| thread.cgroup.as_deref());
        !is_named && groups.any(is_inside)
    });
    foreign.map(|vm| vm.name.as_str()).collect()
}

/// The threads that get a VM's nice value, as replays have it: vCPUs, and threads with a nice value of one.
fn reniced(vm: &Vm) -> Result<Vec<&Thread>, CannotTurn> {
    let values: Vec<Option<i64>> = vm.vcpus().map(|thread| thread.nice).collect();
    let is_own = |thread: &&Thread| thread.kind != ThreadKind::Kernel;
    let threads = vm.threads.iter().filter(is_own);
    let threads: Vec<&Thread> = threads
        .filter(|thread| values.contains(&thread.nice))
        .collect();
    let real_time = threads
        .iter()
        .find(|thread| !matches!(thread.policy, None | Some(Policy::Other | Policy::Batch)));
    match real_time {
        Some(thread) => Err(CannotTurn::RealTime {
            tid: thread.tid,
            vm: vm.name.clone(),
        }),
        None if threads.is_empty() => Err(CannotTurn::NoVcpus(vm.name.clone())),
        None => Ok(threads),
    }
}

/// CPUs of each vCPU: `0-3` of each, `1:1 0-3` one in turn, `none` all.
fn pins(snapshot: &Snapshot, vm: &Vm, text: &str, found: &mut Found) -> Result<(), CannotTurn> {
    let online = snapshot.cpu.online.as_deref().unwrap_or_default();
    let in_turn = text.strip_prefix("1:1 ");
    let list = match text {
        "none" => online,
        text => in_turn.unwrap_or(text),
    };
    let cpus = cpulist::parse(list).filter(|cpus| !cpus.is_empty());
    let cpus = cpus.ok_or_else(|| CannotTurn::NoCpus(list.to_owned()))?;
    if let Some(online) = cpulist::parse(online)
        && let Some(offline) = cpus.iter().find(|cpu| !online.contains(cpu))
    {
        return Err(CannotTurn::Offline(*offline));
    }
    let vcpus: Vec<&Thread> = vm.vcpus().collect();
    if vcpus.is_empty() {
        return Err(CannotTurn::NoVcpus(vm.name.clone()));
    }
    let in_order: Vec<u32> = cpus.iter().copied().collect();
    for (index, thread) in vcpus.iter().enumerate() {
        let value = match in_turn {
            Some(_) => in_order[index % in_order.len()].to_string(),
            None => cpulist::format(&cpus),
        };
        found.push((Target::Affinity { tid: thread.tid }, value));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use stealtime_host::CgroupInfo;

    use super::*;

    fn vm(name: &str, group: &str, tid: i32) -> Vm {
        let thread = |tid, kind| Thread {
            tid,
            kind,
            nice: Some(0),
            policy: Some(Policy::Other),
            cgroup: Some(group.to_owned()),
            ..Thread::default()
        };
        Vm {
            name: name.to_owned(),
            process: stealtime_host::Process {
                pid: tid,
                ..stealtime_host::Process::default()
            },
            cgroup: Some(group.to_owned()),
            threads: vec![
                thread(tid, ThreadKind::Emulator),
                thread(tid + 1, ThreadKind::Vcpu),
                thread(tid + 2, ThreadKind::Vcpu),
            ],
            ..Vm::default()
        }
    }

    fn host() -> Snapshot {
        let mut snapshot = Snapshot {
            vms: vec![vm("web", "/vms/web", 100), vm("db", "/", 200)],
            cgroup: CgroupInfo {
                version: "v2".to_owned(),
                cpu_mount: Some("/sys/fs/cgroup".to_owned()),
                ..CgroupInfo::default()
            },
            ..Snapshot::default()
        };
        snapshot.cpu.online = Some("0-3".to_owned());
        let modules = &mut snapshot.kvm.modules;
        modules.insert("kvm_amd".to_owned(), BTreeMap::new());
        snapshot
    }

    /// What a setting turns, or why not.
    fn of(snapshot: &Snapshot, name: &str, value: &str) -> (Vec<String>, String) {
        let vms: Vec<String> = snapshot.vms.iter().map(|vm| vm.name.clone()).collect();
        let setting = Setting::of_host(&vms, name, value).expect(name);
        let resolved = resolve(snapshot, &[setting]);
        let wanted = resolved.wanted.iter();
        let wanted = wanted.map(|wanted| format!("{}={}", wanted.target, wanted.value));
        let refusals = resolved.refusals.into_iter().map(|refusal| refusal.reason);
        let rest: Vec<String> = refusals.chain(resolved.notes).collect();
        (wanted.collect(), rest.join("; "))
    }

    #[test]
    fn knobs_have_their_files_and_threads() {
        let host = host();
        for (name, value, targets) in [
            (
                "kvm.halt_poll_ns",
                "50us",
                &["/sys/module/kvm/parameters/halt_poll_ns=50000"][..],
            ),
            (
                "sched.base_slice_ns",
                "1ms",
                &["/sys/kernel/debug/sched/base_slice_ns=1000000"],
            ),
            (
                "sched.features",
                "NO_RUN_TO_PARITY,WAKEUP_PREEMPTION",
                &[
                    "/sys/kernel/debug/sched/features (RUN_TO_PARITY)=NO_RUN_TO_PARITY",
                    "/sys/kernel/debug/sched/features (WAKEUP_PREEMPTION)=WAKEUP_PREEMPTION",
                ],
            ),
            (
                "kernel.timer_migration",
                "off",
                &["/proc/sys/kernel/timer_migration=0"],
            ),
            (
                "sched.policy",
                "scx-stealtime",
                &["scheduler of sched_ext=scx-stealtime"],
            ),
            (
                "vm.web.cpu_weight",
                "300",
                &["/sys/fs/cgroup/vms/web/cpu.weight=300"],
            ),
            (
                "vm.web.cpu_max",
                "50ms 100ms",
                &["/sys/fs/cgroup/vms/web/cpu.max=50000 100000"],
            ),
            (
                "vm.web.cpu_max",
                "max",
                &["/sys/fs/cgroup/vms/web/cpu.max=max"],
            ),
            (
                "vm.web.nice",
                "5",
                &[
                    "nice of thread 100=5",
                    "nice of thread 101=5",
                    "nice of thread 102=5",
                ],
            ),
            (
                "vm.web.pinning",
                "1:1 2-3",
                &["CPUs of thread 101=2", "CPUs of thread 102=3"],
            ),
            (
                "vm.web.pinning",
                "none",
                &["CPUs of thread 101=0-3", "CPUs of thread 102=0-3"],
            ),
        ] {
            let (found, rest) = of(&host, name, value);
            assert_eq!(found, targets, "{name}");
            assert_eq!(rest, "", "{name}");
        }
    }

    #[test]
    fn what_no_file_has_is_refused() {
        let mut host = host();
        for (name, value, reason) in [
            (
                "vm.db.cpu_weight",
                "300",
                "\"db\" has no control group of its own",
            ),
            ("vm.web.pinning", "2-4", "CPU 4 is not online"),
            ("vm.web.vcpus", "4", "it acts after a restart of the VM"),
            ("kvm.ple_gap", "0", "all VMs must be stopped for it"),
        ] {
            let (found, refusal) = of(&host, name, value);
            assert_eq!(found, [""; 0], "{name}");
            assert!(refusal.contains(reason), "{name}: {refusal}");
        }
        host.vms[0].threads[1].policy = Some(Policy::Fifo);
        let refusal = of(&host, "vm.web.nice", "5").1;
        assert!(
            refusal.starts_with("thread 101 of \"web\" has another policy"),
            "{refusal}"
        );
        host.vms.push(vm("api", "/vms/web/api", 300));
        let note = of(&host, "vm.web.cpu_weight", "300").1;
        assert!(note.contains("has also threads of api"), "{note}");
        host.cgroup.version = "hybrid".to_owned();
        let refusal = of(&host, "vm.web.cpu_weight", "300").1;
        assert!(refusal.ends_with("this host has hybrid"), "{refusal}");
    }
}

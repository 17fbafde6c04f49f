//! Rules about VMs.

use std::collections::BTreeSet;

use stealtime_host::{Cgroup, Snapshot, ThreadKind, Vm, cpulist};

use crate::change::Change;
use crate::manager;
use crate::view::{View, affinity};
use crate::{Finding, Urgency};

/// Periods with a used-up quota, in percent, from which a limit costs.
const THROTTLED_PERCENT: u64 = 1;
/// Halt polls from which their success says something.
const MIN_POLLS: u64 = 100;
/// Successful polls, in percent, below which polling is mostly wasted.
const SUCCESSFUL_PERCENT: u64 = 30;
/// Wasted polling in per mille of the vCPUs' time on CPUs from which it costs.
const WASTED_PER_MILLE: u64 = 5;
/// Waiting in percent of the vCPUs' time running or ready from which it costs.
const WAIT_PERCENT: u64 = 5;
/// VMs with the same finding that are shown one by one: a host with 500 must stay readable.
const MOST_VMS: usize = 20;

pub(crate) fn findings(view: &View<'_>) -> Vec<Finding> {
    let rules: [fn(&View<'_>, &Vm) -> Option<Finding>; 7] = [
        throttled,
        waits,
        polls_wasted,
        emulator_with_vcpus,
        idle_without_exits,
        tsc_offsets,
        clocks_hidden,
    ];
    let mut findings = Vec::new();
    for rule in rules {
        let found = view.snapshot.vms.iter().filter_map(|vm| rule(view, vm));
        findings.extend(bounded(found.collect()));
    }
    findings
}

/// The first findings of a rule, and one for all others.
fn bounded(mut findings: Vec<Finding>) -> Vec<Finding> {
    if findings.len() > MOST_VMS {
        let rest = findings.split_off(MOST_VMS);
        if let Some(last) = findings.last_mut() {
            last.vms
                .extend(rest.into_iter().flat_map(|finding| finding.vms));
        }
    }
    findings
}

/// The group with the tightest quota that a VM's vCPUs are in.
fn tightest<'t>(snapshot: &'t Snapshot, vm: &'t Vm) -> Option<&'t Cgroup> {
    let paths: BTreeSet<&str> = vm
        .vcpus()
        .filter_map(|vcpu| vcpu.cgroup.as_deref())
        .collect();
    let groups = paths.iter().flat_map(|path| snapshot.groups_above(path));
    let throttling = groups.filter(|group| {
        let (periods, throttled) = (
            group.periods.unwrap_or(0),
            group.throttled_periods.unwrap_or(0),
        );
        throttled > 0 && throttled * 100 >= periods * THROTTLED_PERCENT
    });
    throttling.max_by_key(|group| group.throttled_us)
}

fn throttled(view: &View<'_>, vm: &Vm) -> Option<Finding> {
    let group = tightest(view.snapshot, vm)?;
    let limit_cpus = group.limit_cpus()?;
    let (periods, throttled) = (group.periods?, group.throttled_periods?);
    let change = manager::limit(vm, view.snapshot, group, None);
    let title = format!(
        "{} is throttled by its quota of {limit_cpus:.2} CPUs",
        vm.name
    );
    Some(
        Finding::new("throttled", Urgency::Costs, title)
            .about(&vm.name)
            .losing(group.throttled_us.unwrap_or(0))
            .shown_by(format!(
                "{}: {throttled} of {periods} periods, {} ms in all",
                group.path,
                group.throttled_us.unwrap_or(0) / 1000
            ))
            .advising(
                "Raise the quota or lift it, unless the VM shall have no more; the commands lift it",
            )
            .changing(change),
    )
}

fn waits(_: &View<'_>, vm: &Vm) -> Option<Finding> {
    let sum = |value: fn(&stealtime_host::Thread) -> Option<u64>| {
        vm.vcpus().filter_map(value).fold(0, u64::saturating_add)
    };
    let (run, wait) = (sum(|vcpu| vcpu.run_ns), sum(|vcpu| vcpu.wait_ns));
    let total = run.saturating_add(wait);
    (wait > 0 && wait / WAIT_PERCENT >= total / 100).then(|| {
        let title = format!("vCPUs of {} wait for a CPU", vm.name);
        let percent = wait / (total / 100).max(1);
        Finding::new("waits", Urgency::Costs, title)
            .about(&vm.name)
            .losing(wait / 1_000)
            .shown_by(format!(
                "ready {} ms, running {} ms since the start: {percent} %",
                wait / 1_000_000,
                run / 1_000_000
            ))
            .advising(
                "Record the host and run `stealtime analyze`: it names the tasks that run instead",
            )
    })
}

fn polls_wasted(view: &View<'_>, vm: &Vm) -> Option<Finding> {
    let stat = |name: &str| vm.kvm_stats.get(name).copied();
    let (polls, successful) = (stat("halt_attempted_poll")?, stat("halt_successful_poll")?);
    let wasted_ns = stat("halt_poll_fail_ns")?;
    let run_ns = vm
        .vcpus()
        .filter_map(|vcpu| vcpu.run_ns)
        .fold(0, u64::saturating_add);
    let is_rare = successful * 100 < polls * SUCCESSFUL_PERCENT;
    let costs = wasted_ns / WASTED_PER_MILLE > run_ns / 1000 && run_ns > 0;
    let value = view.parameter("kvm", "halt_poll_ns")?;
    (polls >= MIN_POLLS && is_rare && costs).then(|| {
        let title = format!("Halt polling of {} mostly ends in sleep", vm.name);
        Finding::new("polls_wasted", Urgency::Costs, title)
            .about(&vm.name)
            .losing(wasted_ns / 1_000)
            .shown_by(format!(
                "{successful} of {polls} polls end in time; {} ms wasted, halt_poll_ns {value}",
                wasted_ns / 1_000_000
            ))
            .advising(
                "Poll shorter; `stealtime whatif --set kvm.halt_poll_ns=50us` shows the effect",
            )
            .changing(Change::knob(
                view.vendor,
                "kvm.halt_poll_ns",
                "50000",
                value,
            ))
    })
}

/// The device model has only CPUs that vCPUs are bound to: each of its wakeups preempts one.
fn emulator_with_vcpus(view: &View<'_>, vm: &Vm) -> Option<Finding> {
    let vcpus: BTreeSet<u32> = vm
        .vcpus()
        .map(affinity)
        .filter(|cpus| cpus.len() == 1)
        .flatten()
        .collect();
    let workers = vm.threads.iter().filter(|thread| {
        let cpus = affinity(thread);
        let is_own = !matches!(thread.kind, ThreadKind::Vcpu | ThreadKind::Kernel);
        is_own && !cpus.is_empty() && cpus.is_subset(&vcpus)
    });
    let workers: Vec<_> = workers.collect();
    let first = workers.first()?;
    // One command undoes the change: threads with other CPUs need one of their own.
    let workers = workers.iter();
    let workers: Vec<_> = workers
        .filter(|thread| thread.affinity == first.affinity)
        .collect();
    let is_free = |cpu: &&u32| {
        !view.pinned.contains_key(*cpu)
            && !view.isolated.contains(*cpu)
            && !view.nohz_full.contains(*cpu)
    };
    let free: BTreeSet<u32> = view.online.iter().filter(is_free).copied().collect();
    let tids: Vec<i32> = workers.iter().map(|thread| thread.tid).collect();
    let cpus = cpulist::format(&free);
    let former = first.affinity.as_deref().unwrap_or_default();
    let change = (!free.is_empty()).then(|| manager::pin_emulator(vm, &tids, &cpus, former));
    let names: BTreeSet<&str> = workers.iter().map(|thread| thread.name.as_str()).collect();
    let names: Vec<&str> = names.into_iter().collect();
    let title = format!(
        "{}'s device model has only CPUs of its bound vCPUs",
        vm.name
    );
    Some(
        Finding::new("emulator_with_vcpus", Urgency::Likely, title)
            .about(&vm.name)
            .shown_by(format!(
                "{} on CPUs {former}; vCPUs are bound to {}",
                names.join(", "),
                cpulist::format(&vcpus)
            ))
            .advising("Bind them to CPUs without bound vCPUs")
            .changing(change),
    )
}

/// A guest that keeps its CPU while it idles takes it from all others there.
fn idle_without_exits(view: &View<'_>, vm: &Vm) -> Option<Finding> {
    if vm.cpu_pm != Some(true) {
        return None;
    }
    let shared = vm.vcpus().any(|vcpu| {
        let cpus = affinity(vcpu);
        let alone = cpus.first().and_then(|cpu| view.pinned.get(cpu));
        cpus.len() != 1 || alone.is_some_and(|pins| pins.len() > 1)
    });
    shared.then(|| {
        let title = format!(
            "{} keeps CPUs while it idles, and has none of its own",
            vm.name
        );
        Finding::new("cpu_pm_shared", Urgency::Likely, title)
            .about(&vm.name)
            .shown_by("cpu-pm=on, and vCPUs that are not bound to a CPU each")
            .advising("Bind each vCPU to a CPU of its own, or start the VM without cpu-pm=on")
    })
}

fn tsc_offsets(_: &View<'_>, vm: &Vm) -> Option<Finding> {
    let offsets: BTreeSet<i64> = vm.vcpus().filter_map(|vcpu| vcpu.tsc_offset).collect();
    (offsets.len() > 1).then(|| {
        let title = format!(
            "vCPUs of {} have unequal TSC offsets: no master clock",
            vm.name
        );
        let offsets: Vec<String> = offsets.iter().take(4).map(i64::to_string).collect();
        Finding::new("tsc_offsets_differ", Urgency::Likely, title)
            .about(&vm.name)
            .shown_by(format!("offsets {}", offsets.join(", ")))
            .advising("Restore clocks by offsets: `stealtime clock --help`, docs/guest-clocks.md")
    })
}

fn clocks_hidden(_: &View<'_>, vm: &Vm) -> Option<Finding> {
    let hidden = [
        ("kvmclock", vm.kvmclock == Some(false)),
        ("kvm-steal-time", vm.steal_clock == Some(false)),
    ];
    let hidden: Vec<&str> = hidden
        .iter()
        .filter(|(_, is_hidden)| *is_hidden)
        .map(|(name, _)| *name)
        .collect();
    (!hidden.is_empty()).then(|| {
        let title = format!("{} is started without {}", vm.name, hidden.join(" and "));
        Finding::new("clocks_hidden", Urgency::Depends, title)
            .about(&vm.name)
            .shown_by(format!(
                "-cpu {}",
                vm.cpu_option.as_deref().unwrap_or_default()
            ))
            .advising(
                "Without steal time a guest takes waiting for its own work, and its scheduler \
                 balances by it; start the VM with it, unless the guest must not see KVM",
            )
    })
}

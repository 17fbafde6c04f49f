//! What a replay takes for true, and where it is from.

use stealtime_replay::host::{self, Placement};
use stealtime_simulator::script::ScriptGroup;

use crate::baseline::Baseline;
use crate::host_file::FROM_SNAPSHOT;
use crate::preempt::PreemptSource;
use crate::question::FEATURES;

/// As sentences.
pub(crate) fn lines(base: &Baseline) -> Vec<String> {
    let knobs = &base.config.knobs;
    let (recording, assumed) = (&base.recorded.recording, &base.assumed);
    let source = |knob: &str, shown: bool, evidence: &str| match (base.facts.has(knob), shown) {
        (true, _) => base.facts.source(knob).to_owned(),
        (false, true) => format!("as {evidence} shows"),
        (false, false) => "the default; --host FILE sets it".to_owned(),
    };
    let placed = assumed
        .placement
        .unwrap_or_else(|| host::placement(recording));
    let placement = match placed {
        Placement::Recorded if assumed.timed_moves => {
            "tasks move between CPUs at the recorded times"
        }
        Placement::Recorded => "tasks move between CPUs as recorded",
        Placement::Simulated => "tasks are placed by the simulated scheduler",
    };
    let lines = [
        Some(format!(
            "kvm.halt_poll_ns={} ({})",
            knobs.kvm.halt_poll.halt_poll_ns,
            source(
                "kvm.halt_poll_ns",
                recording.halt_poll_ns.is_some(),
                "its polling"
            )
        )),
        Some(format!(
            "host.hz={} ({})",
            knobs.sched.hz,
            source("host.hz", recording.hz.is_some(), "its tick")
        )),
        Some(format!(
            "sched.preempt={} ({})",
            preempt_name(base),
            match base.preempt {
                Some(PreemptSource::Configured(_)) => base.facts.source("sched.preempt"),
                Some(PreemptSource::Shown(_)) => "as its wakeups show",
                Some(PreemptSource::OnlyMode(_)) => "as its kernel has no other mode",
                Some(PreemptSource::Implied(_)) => "as the other is asked for; --host FILE sets it",
                None => "fits best, unless given",
            }
        )),
        cfs(base),
        slice(base),
        features(base),
        Some(groups(base)),
        shared_groups(base),
        Some(format!(
            "{placement} (fits best, unless given; {} moves in {} switches)",
            recording.migrations, recording.switches
        )),
        bound(base),
        Some(balanced(base).to_owned()),
        assumed.stalls.then(|| {
            "tasks stall with their CPU, where it has no events while a timer is due (fits best)".to_owned()
        }),
        Some(match recording.idle_wake_ns {
            Some(ns) if ns < 10_000 => format!("an idle CPU wakes in {ns} ns (median)"),
            Some(ns) => format!("an idle CPU wakes in {} us (median)", ns / 1_000),
            None => "an idle CPU wakes in 2 us (none was idle)".to_owned(),
        }),
    ];
    let unused = base.facts.snapshot().unused.iter().cloned();
    lines.into_iter().flatten().chain(unused).collect()
}

/// vCPUs that replays keep on one CPU.
fn bound(base: &Baseline) -> Option<String> {
    let tasks = base.recorded.recording.tasks.iter();
    let vcpus = tasks.filter(|task| task.vcpu.is_some());
    let affinity = &base.assumed.affinity;
    let (known, unknown): (Vec<_>, Vec<_>) =
        vcpus.partition(|task| affinity.contains_key(&task.tid));
    let total = known.len() + unknown.len();
    let cpus = base.recorded.recording.cpus as usize;
    let bound = unknown.iter().filter(|task| host::is_bound(task)).count();
    let limited = known
        .iter()
        .filter(|task| affinity[&task.tid].len() < cpus)
        .count();
    let mut lines = Vec::new();
    if !known.is_empty() {
        let source = match known.len() == total {
            true => FROM_SNAPSHOT.to_owned(),
            false => format!("{FROM_SNAPSHOT} of {}", known.len()),
        };
        lines.push(format!(
            "{limited} of {total} vCPUs may not run on all CPUs ({source}; --pin asks for more)"
        ));
    }
    if bound > 0 {
        lines.push(format!(
            "{bound} of {total} vCPUs may run on one CPU only (they ran on no other; --pin asks for more)"
        ));
    }
    (!lines.is_empty()).then(|| lines.join("; "))
}

/// `sched.base_slice_ns`, where it is not the kernel's choice.
fn slice(base: &Baseline) -> Option<String> {
    let ns = base.config.knobs.sched.base_slice_ns?;
    let source = match (
        base.facts.has("sched.base_slice_ns"),
        base.recorded.recording.release,
    ) {
        (true, _) => base.facts.source("sched.base_slice_ns").to_owned(),
        (false, Some(release)) if host::recorded_slice_ns(&base.recorded.recording).is_none() => {
            format!("as {release} sets it")
        }
        (false, _) => "as its slice timers show".to_owned(),
    };
    Some(format!("sched.base_slice_ns={ns} ({source})"))
}

/// The tunables of CFS, on a host that has it.
fn cfs(base: &Baseline) -> Option<String> {
    let cfs = base
        .config
        .knobs
        .sched
        .cfs?
        .on(base.config.host.topology.cpus());
    let source = match (
        base.facts.has("sched.fair"),
        base.recorded.recording.release,
    ) {
        (false, Some(release)) => format!("as {release} schedules"),
        _ => "as given".to_owned(),
    };
    Some(format!(
        "sched.fair=cfs ({source}), with sched.latency_ns={}, min_granularity_ns={}, wakeup_granularity_ns={} \
         (the kernel's for so many CPUs, unless given)",
        cfs.latency_ns, cfs.min_granularity_ns, cfs.wakeup_granularity_ns
    ))
}

/// `sched.features`, and the release that they are of where it is not a kernel of today.
fn features(base: &Baseline) -> Option<String> {
    let sched = &base.config.knobs.sched;
    let (features, release) = (sched.features, base.recorded.recording.release);
    if sched.cfs.is_some() {
        let switched_on = host::wakeups_preempt(sched);
        return (!switched_on).then(|| "sched.features=NO_WAKEUP_PREEMPTION".to_owned());
    }
    if base.facts.snapshot().settings.contains(FEATURES) {
        return Some(format!("sched.features={features} ({FROM_SNAPSHOT})"));
    }
    Some(
        match release.filter(|release| !release.has_features_of_today()) {
            Some(release) if release.has_eevdf() => {
                format!("sched.features={features} (as {release} has them)")
            }
            _ => format!("sched.features={features}"),
        },
    )
}

fn balanced(base: &Baseline) -> &'static str {
    match base.assumed.balanced {
        Some(true) => {
            "guests give idle vCPUs the work of others (fits best, unless given): a vCPU halts until its VM \
             has computed as much as during the recorded halt"
        }
        _ => {
            "the work of guests stays on its vCPU (fits best, unless given): a vCPU halts until its waker \
             reaches the recorded point"
        }
    }
}

fn groups(base: &Baseline) -> String {
    let is_configured = base.assumed.groups == Some(true);
    let groups = base.config.scripts.groups.iter().enumerate();
    let weights = groups
        .zip(&base.recorded.answers.vms)
        .filter_map(|((index, group), vm)| {
            let details = details(base, index, group.as_ref()?);
            match details.is_empty() {
                true => (!is_configured).then(|| vm.vm.clone()),
                false => Some(format!("{} with {}", vm.vm, details.join(" and "))),
            }
        });
    let weights = weights.collect::<Vec<String>>().join(", ");
    let layout = match (
        is_configured,
        base.config.scripts.vcpu_groups,
        weights.is_empty(),
    ) {
        (true, true, _) => {
            "each VM in a cgroup of its own, and in it each vCPU, as libvirt has them"
        }
        (true, false, _) => "each VM in a cgroup of its own",
        (false, _, true) => "no cgroups",
        (false, true, false) => "in cgroups of their own, and in those each vCPU",
        (false, false, false) => "in cgroups of their own",
    };
    let source = match base.groups_asked {
        _ if base.facts.snapshot().cgroups.is_some() => FROM_SNAPSHOT,
        true => "as a weight is asked for; --host FILE sets it",
        false => "fits best, unless given",
    };
    match weights.is_empty() {
        true => format!("{layout} ({source})"),
        false => format!("{layout} ({source}): {weights}"),
    }
}

/// Cgroups of several VMs.
fn shared_groups(base: &Baseline) -> Option<String> {
    let cgroups = base.facts.snapshot().cgroups.as_ref()?;
    let text = cgroups.shared_text()?;
    Some(format!("VMs share cgroups: {text} ({FROM_SNAPSHOT})"))
}

/// What a VM's cgroup has that is not the default.
fn details(base: &Baseline, vm: usize, group: &ScriptGroup) -> Vec<String> {
    let mut details = Vec::new();
    let is_of_snapshot = base.facts.snapshot().cgroups.is_some();
    if group.cpu_weight != ScriptGroup::default().cpu_weight {
        let source = match base.assumed.weights.get(&vm) == Some(&group.cpu_weight) {
            true if is_of_snapshot => FROM_SNAPSHOT,
            true => "fits best, unless given",
            false => "as given",
        };
        details.push(format!("cpu.weight {} ({source})", group.cpu_weight));
    }
    if let Some(limit) = group.cpu_max_ns {
        let (quota, period) = (limit.0 / 1_000, limit.1 / 1_000);
        let source = match base.recorded.recording.limits.get(&vm) == Some(&limit) {
            true if is_of_snapshot => FROM_SNAPSHOT,
            true => "as its stops show",
            false => "as given",
        };
        details.push(format!("cpu.max {quota} {period} ({source})"));
    }
    details
}

fn preempt_name(base: &Baseline) -> String {
    stealtime_lab::knobs::get(&base.config, "sched.preempt").unwrap_or_default()
}

//! What is asked: knobs, grids of them, pins, a file about the host.

use std::path::Path;

use stealtime_analysis::Answers;
use stealtime_lab::knobs;
use stealtime_replay::Recording;
use stealtime_replay::host::{Assumed, Placement};
use stealtime_simulator::config::Config;

use crate::error::CliError;

/// Knobs that change something in a replay.
const ACT: [&str; 9] = [
    "kvm.halt_poll_ns",
    "kvm.halt_poll_ns_grow",
    "kvm.halt_poll_ns_grow_start",
    "kvm.halt_poll_ns_shrink",
    "sched.features",
    "sched.base_slice_ns",
    "sched.pick",
    "sched.preempt",
    "host.hz",
];

/// Most variants of one call.
const MOST_VARIANTS: usize = 1_000;

/// A knob and the value that it is to have.
pub(super) type Setting = (String, String);

/// `KNOB=VALUE`.
pub(super) fn setting(text: &str) -> Result<Setting, CliError> {
    match text.split_once('=') {
        Some((name, value)) if !name.trim().is_empty() && !value.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(CliError::WhatIf(format!("{text:?}: expected KNOB=VALUE"))),
    }
}

/// Every combination of the values of `--vary`, each with what `--set` says; without either the
/// one variant of the pins alone.
pub(super) fn variants(set: &[String], vary: &[String]) -> Result<Vec<Vec<Setting>>, CliError> {
    let mut all = vec![
        set.iter()
            .map(|text| setting(text))
            .collect::<Result<_, _>>()?,
    ];
    for text in vary {
        let (name, values) = setting(text)?;
        let values: Vec<&str> = values.split(',').map(str::trim).collect();
        if values.iter().any(|value| value.is_empty()) {
            let wrong = format!("--vary {text}: a value between the commas is empty");
            return Err(CliError::WhatIf(wrong));
        }
        let with = |variant: &Vec<Setting>, value: &str| {
            let mut variant = variant.clone();
            variant.push((name.clone(), value.to_owned()));
            variant
        };
        all = all
            .iter()
            .flat_map(|variant| values.iter().map(move |value| (variant, *value)))
            .map(|(variant, value)| with(variant, value))
            .collect();
        if all.len() > MOST_VARIANTS {
            let wrong = format!("{} variants are more than {MOST_VARIANTS}", all.len());
            return Err(CliError::WhatIf(wrong));
        }
    }
    Ok(all)
}

/// Whether this recording can say anything about a knob; if not, why, and what to do.
pub(super) fn answerable(name: &str, recording: &Recording) -> Result<(), String> {
    if !ACT.contains(&name) {
        return Err(format!(
            "{name} does nothing in a replay yet, so this recording cannot answer it; \
             knobs that act: {}. `stealtime simulate` has all knobs",
            ACT.join(", ")
        ));
    }
    if name.starts_with("kvm.halt_poll") && recording.halts == 0 {
        return Err(format!(
            "{name}: the recording has no halts of vCPUs; record kvm:kvm_exit, kvm:kvm_entry and \
             kvm:kvm_vcpu_wakeup on a host whose guests halt (no cpu_pm, no idle=poll)"
        ));
    }
    Ok(())
}

/// Sets knobs of a host.
pub(super) fn apply(config: &mut Config, settings: &[Setting]) -> Result<(), CliError> {
    for (name, value) in settings {
        knobs::set(config, name, value).map_err(|error| CliError::WhatIf(error.to_string()))?;
    }
    Ok(())
}

/// A pin: which vCPU may run on which CPUs.
type Pin = ((usize, u32), Vec<u32>);

/// `VM/VCPU=CPUS`, or `VM=CPUS` for all vCPUs of a VM; CPUs as `0,2-3`.
pub(super) fn pins(text: &str, answers: &Answers, cpus: u32) -> Result<Vec<Pin>, CliError> {
    let wrong = |problem: String| CliError::WhatIf(format!("--pin {text}: {problem}"));
    let (who, list) = text
        .split_once('=')
        .ok_or_else(|| wrong("expected VM/VCPU=CPUS".to_owned()))?;
    let list = cpu_list(list, cpus).map_err(wrong)?;
    let whole = answers.vms.iter().position(|vm| vm.vm == who);
    let (name, number) = match who.rsplit_once('/') {
        Some((name, number)) if whole.is_none() => (name, Some(number)),
        _ => (who, None),
    };
    let Some(vm) = answers.vms.iter().position(|vm| vm.vm == name) else {
        let there: Vec<&str> = answers.vms.iter().map(|vm| vm.vm.as_str()).collect();
        let there = there.join(", ");
        return Err(wrong(format!("no VM {name:?}; there are: {there}")));
    };
    let number = match number.map(str::parse::<u32>) {
        None => None,
        Some(Ok(number)) => Some(number),
        Some(Err(_)) => return Err(wrong("the vCPU is not a number".to_owned())),
    };
    let of_vm = answers.vcpus.iter().filter(|time| time.vm == name);
    let found: Vec<Pin> = of_vm
        .filter(|time| number.is_none_or(|number| number == time.vcpu))
        .map(|time| ((vm, time.vcpu), list.clone()))
        .collect();
    if found.is_empty() {
        return Err(wrong(format!("VM {name:?} has no such vCPU")));
    }
    Ok(found)
}

fn cpu_list(text: &str, cpus: u32) -> Result<Vec<u32>, String> {
    let mut list = Vec::new();
    for part in text.split(',') {
        let (from, to) = part.split_once('-').unwrap_or((part, part));
        let number = |text: &str| text.trim().parse::<u32>();
        let (Ok(from), Ok(to)) = (number(from), number(to)) else {
            return Err(format!("{part:?} is no CPU and no range of CPUs"));
        };
        if from > to || to >= cpus {
            return Err(format!("{part}: the host has CPUs 0-{}", cpus - 1));
        }
        list.extend(from..=to);
    }
    list.sort_unstable();
    list.dedup();
    Ok(list)
}

/// What a file about the host says: lines of `KEY = VALUE`, where KEY is a knob, `groups` (whether
/// VMs are in cgroups of their own: true, false) or `placement` (recorded, simulated).
pub(super) fn host_file(path: &Path, assumed: &mut Assumed) -> Result<Vec<Setting>, CliError> {
    let wrong = |line: usize, problem: &str| {
        CliError::WhatIf(format!("{}:{line}: {problem}", path.display()))
    };
    let text = std::fs::read_to_string(path)
        .map_err(|error| CliError::WhatIf(format!("{}: {error}", path.display())))?;
    let mut settings = Vec::new();
    for (n, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let (key, value) = line
            .split_once('=')
            .ok_or_else(|| wrong(n + 1, "expected KEY = VALUE"))?;
        let unquoted = |text: &str| text.trim().trim_matches('"').to_owned();
        let (key, value) = (unquoted(key), unquoted(value));
        match (key.as_str(), value.as_str()) {
            ("groups", "true") => assumed.groups = Some(true),
            ("groups", "false") => assumed.groups = Some(false),
            ("groups", _) => return Err(wrong(n + 1, "groups is true or false")),
            ("placement", "recorded") => assumed.placement = Some(Placement::Recorded),
            ("placement", "simulated") => assumed.placement = Some(Placement::Simulated),
            ("placement", _) => {
                return Err(wrong(n + 1, "placement is recorded or simulated"));
            }
            _ => settings.push((key, value)),
        }
    }
    Ok(settings)
}

/// Why a recording cannot be replayed at all.
pub(super) fn replayable(answers: &Answers) -> Result<(), CliError> {
    let has = |name: &str| answers.events.iter().any(|event| event.is(name));
    if !has("sched_switch") {
        return Err(CliError::WhatIf(
            "the recording has no sched_switch events, so nothing can be replayed; record \
             sched:sched_switch, sched:sched_waking, sched:sched_migrate_task, kvm and \
             timer:hrtimer_* events. `stealtime analyze` answers what it can of this one"
                .to_owned(),
        ));
    }
    if answers.vcpus.is_empty() {
        return Err(CliError::WhatIf(
            "the recording has no vCPU that ran; record kvm:kvm_entry and kvm:kvm_exit while the \
             guests run"
                .to_owned(),
        ));
    }
    Ok(())
}

/// What the recording lacks, which makes a replay worse.
pub(super) fn lacks(answers: &Answers) -> Vec<String> {
    let has = |name: &str| answers.events.iter().any(|event| event.is(name));
    let mut lacks = Vec::new();
    let mut note = |missing: bool, text: &str| {
        if missing {
            lacks.push(text.to_owned());
        }
    };
    note(
        !has("sched_waking"),
        "no sched_waking: nobody knows who woke whom, so that all waits end at recorded times",
    );
    note(
        !has("hrtimer_start") || !has("hrtimer_expire_entry"),
        "no hrtimer events: waits that timers end keep their recorded times",
    );
    note(
        !has("kvm_vcpu_wakeup"),
        "no kvm_vcpu_wakeup: where polling in halts ended is not known",
    );
    if answers.source.lost > 0 || answers.source.lost_gaps > 0 {
        lacks.push(format!(
            "events were lost ({} in {} gaps): tasks wait over the gaps, and what nobody knows of \
             is not part of the error; a larger buffer (trace-cmd record -b, perf record -m) loses \
             less",
            answers.source.lost, answers.source.lost_gaps
        ));
    }
    lacks
}

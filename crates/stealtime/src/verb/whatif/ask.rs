//! What is asked: knobs, grids of them, pins, a file about the host.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::path::Path;

use stealtime_analysis::Answers;
use stealtime_lab::knobs;
use stealtime_replay::Recording;
use stealtime_replay::host::{Assumed, Placement, Preempt};
use stealtime_simulator::config::{CfsKnobs, Config, VmConfig};
use stealtime_simulator::script::{ScriptGroup, Scripts};

use super::{Base, WhatIf, class};
use crate::args::CpuRange;
use crate::error::CliError;

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

/// Most variants of one call.
const MOST_VARIANTS: usize = 100_000;

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

/// The knob of the scheduler's features.
const FEATURES: &str = "sched.features";

/// Features that are switched on or off by a value of [`FEATURES`], or by several.
fn features(value: &str) -> BTreeSet<String> {
    let words = value.split([' ', ',']).filter(|word| !word.is_empty());
    words
        .map(|word| word.strip_prefix("NO_").unwrap_or(word).to_owned())
        .collect()
}

/// Every combination of the values of `--vary`, each with what `--set` says; without either the
/// one variant of the pins alone.
pub(super) fn variants(set: &[String], vary: &[String]) -> Result<Vec<Vec<Setting>>, CliError> {
    let mut names = BTreeSet::new();
    for text in set.iter().chain(vary) {
        let (name, value) = setting(text)?;
        // Features are switched one by one, each of them once.
        let parts = match name == FEATURES {
            true => features(&value),
            false => BTreeSet::from([name.clone()]),
        };
        if let Some(twice) = parts.iter().find(|part| names.contains(*part)) {
            let wrong = format!("{twice} is set twice; for a variant each: --vary {name}=A,B");
            return Err(CliError::WhatIf(wrong));
        }
        names.extend(parts);
    }
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
        let mut before = BTreeSet::new();
        if let Some(twice) = values.iter().find(|value| !before.insert(**value)) {
            let wrong = format!("--vary {text}: the value {twice} is there twice");
            return Err(CliError::WhatIf(wrong));
        }
        let count = all.len().saturating_mul(values.len());
        if count > MOST_VARIANTS {
            let wrong = format!("{count} variants are more than {MOST_VARIANTS}");
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
    }
    Ok(all)
}

/// Whether there are such knobs that take such values, on a host like `trial`: a slip of the pen is not what
/// a recording cannot tell of.
pub(super) fn known(settings: &[Setting], mut trial: Config) -> Result<(), CliError> {
    // Whether a host has what only CFS has is another question.
    trial.knobs.sched.cfs = Some(CfsKnobs::default());
    for (name, value) in settings {
        match knobs::set(&mut trial, name, value) {
            // Tasks are those of a scenario: a recording has its own, of which no knob speaks.
            Ok(()) | Err(knobs::KnobError::NoTask { .. }) => {}
            Err(error) => return Err(CliError::WhatIf(error.to_string())),
        }
    }
    Ok(())
}

/// Whether this recording can say anything about a knob; if not, why, and what to do. The knob is
/// [`known`].
pub(super) fn answerable((name, value): &Setting, base: &Base) -> Result<(), String> {
    let recording = &base.recording;
    if acts_on_yields(name, value) {
        return match recording.yields {
            0 => Err(format!(
                "{name}={value}: no vCPU of this recording yields its CPU to another one, by an exit for \
                 PAUSE or by KVM_HC_SCHED_YIELD; record kvm:kvm_exit and kvm:kvm_hypercall while guests \
                 wait for each other. {}",
                elsewhere("sched.lag_credit")
            )),
            _ => Ok(()),
        };
    }
    if let Some((vm, knob)) = knob_of_vm(name) {
        return answerable_of_vm(name, knob, &groups(vm, &base.config, &base.vms));
    }
    if !ACT.contains(&name.as_str()) {
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
fn acts_on_yields(name: &str, value: &str) -> bool {
    let mut features = value.split([' ', ',']).filter(|word| !word.is_empty());
    name.starts_with("sched.lag_credit.")
        || name == "sched.yield_forfeits"
        || name == FEATURES && features.all(|word| word.ends_with(CREDIT))
}

/// The scheduler's feature that acts on directed yields.
const CREDIT: &str = "YIELD_TO_LAG_CREDIT";

/// Scenarios that show what a knob does which a replay cannot tell of, by how its name begins.
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

/// Where a knob is answered that a replay cannot tell of.
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

/// The cgroup of its own that the VM of this name, or each of all (`*`), is taken to have.
pub(super) fn groups<'c>(
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

/// The knob of a cgroup's weight.
const WEIGHT: &str = "cpu_weight";

/// Whether a weight is asked for of VMs of which this host has none in a cgroup: the question says that
/// they are in some.
pub(super) fn weighs_ungrouped(asked: &WhatIf, config: &Config, vms: &[String]) -> bool {
    let settings = asked.set.iter().chain(&asked.vary);
    let mut settings = settings.flat_map(|text| setting(text));
    settings.any(|(name, _)| {
        let vm = knob_of_vm(&name).filter(|knob| knob.1 == WEIGHT);
        let groups = vm.map_or_else(Vec::new, |knob| groups(knob.0, config, vms));
        !groups.is_empty() && groups.iter().all(Option::is_none)
    })
}

/// `groups`: of each VM that is meant, the cgroup of its own.
fn answerable_of_vm(name: &str, knob: &str, groups: &[Option<&ScriptGroup>]) -> Result<(), String> {
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

/// Sets knobs of a host with these VMs.
pub(super) fn apply(
    config: &mut Config,
    settings: &[Setting],
    vms: &[String],
) -> Result<(), CliError> {
    class::change(config, settings);
    for (name, value) in settings {
        let wrong = |error: knobs::KnobError| CliError::WhatIf(error.to_string());
        match name.starts_with("vm.") {
            true => apply_to_vms(config, name, value, vms).map_err(wrong)?,
            false => knobs::set(config, name, value).map_err(wrong)?,
        }
    }
    Ok(())
}

/// The knob of how the host preempts.
const PREEMPT: &str = "sched.preempt";

/// How the recorded host preempts, where that need not be found by what fits best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PreemptFrom {
    /// A file about the host says it.
    Told(Preempt),
    /// Wakeups of the recording show it.
    Shown(Preempt),
    /// Its kernel has no other way.
    Only(Preempt),
    /// Not as is asked for: who asks what another way changes has not got that one.
    Asked(Preempt),
}

impl PreemptFrom {
    /// By what is `told` of the host, else by what the recording shows, else by what is asked for; `trial` is
    /// any host.
    pub(super) fn of(
        told: &[Setting],
        recording: &Recording,
        asked: &WhatIf,
        trial: &mut Config,
    ) -> Option<Self> {
        let mut parsed = |value: &str| {
            knobs::set(trial, PREEMPT, value).ok()?;
            Some(trial.knobs.sched.preempt)
        };
        if let Some(value) = last_preempt(told) {
            return parsed(value).map(Self::Told);
        }
        if let Some(preempt) = recording.decisions.preempt() {
            return Some(Self::Shown(preempt));
        }
        if let Some(preempt) = recording.preempt() {
            return Some(Self::Only(preempt));
        }
        // What is varied cannot be set too.
        let set: Vec<Setting> = asked.set.iter().flat_map(|text| setting(text)).collect();
        Some(Self::Asked(match parsed(last_preempt(&set)?)? {
            Preempt::Lazy => Preempt::Full,
            Preempt::Full => Preempt::Lazy,
        }))
    }

    /// The way itself.
    pub(super) const fn preempt(self) -> Preempt {
        match self {
            Self::Told(preempt)
            | Self::Shown(preempt)
            | Self::Only(preempt)
            | Self::Asked(preempt) => preempt,
        }
    }
}

fn last_preempt(settings: &[Setting]) -> Option<&str> {
    let mut settings = settings.iter().rev();
    let last = settings.find(|setting| setting.0 == PREEMPT)?;
    Some(&last.1)
}

/// Values that no knob gives, so that it shows which VMs a knob is for.
const UNSET: (i8, u32) = (i8::MAX, u32::MAX);
const UNSET_LIMIT: Option<(u64, u64)> = Some((u64::MAX, u64::MAX));

/// A host with VMs of these names, to try knobs on.
pub(super) fn trial(config: &Config, vms: &[String]) -> Config {
    let stub = |name: &String| VmConfig {
        name: name.clone(),
        nice: UNSET.0,
        cpu_weight: UNSET.1,
        cpu_max_ns: UNSET_LIMIT,
        ..VmConfig::default()
    };
    Config {
        host: config.host.clone(),
        vms: vms.iter().map(stub).collect(),
        scripts: Scripts::default(),
        knobs: config.knobs.clone(),
        run: config.run,
    }
}

fn apply_to_vms(
    config: &mut Config,
    name: &str,
    value: &str,
    vms: &[String],
) -> Result<(), knobs::KnobError> {
    let mut trial = trial(config, vms);
    knobs::set(&mut trial, name, value)?;
    for (vm, set) in (0u32..).zip(&trial.vms) {
        if set.nice != UNSET.0 {
            renice(&mut config.scripts, vm, set.nice);
        }
        let Some(group) = config.scripts.groups.get_mut(vm as usize) else {
            continue;
        };
        // Weights and limits are those of cgroups: who has one is in one.
        if set.cpu_weight != UNSET.1 {
            group.get_or_insert_default().cpu_weight = set.cpu_weight;
        }
        // No limit needs no cgroup.
        let is_limited = set.cpu_max_ns.is_some() || group.is_some();
        if set.cpu_max_ns != UNSET_LIMIT && is_limited {
            group.get_or_insert_default().cpu_max_ns = set.cpu_max_ns;
        }
    }
    Ok(())
}

/// Gives a VM's vCPUs a nice value, and those of its other threads that have one of the vCPUs': threads
/// that were set apart (an emulator at another nice value, a real-time I/O thread) stay so.
fn renice(scripts: &mut Scripts, vm: u32, nice: i8) {
    let of_vm = scripts.tasks.iter_mut().filter(|task| task.vm == Some(vm));
    let mut tasks: Vec<_> = of_vm.collect();
    let vcpus = tasks.iter().filter(|task| task.vcpu.is_some());
    let present: BTreeSet<i8> = vcpus.map(|task| task.nice).collect();
    for task in &mut tasks {
        if present.contains(&task.nice) {
            task.nice = nice;
        }
    }
}

/// Adds a pin: `VM/VCPU=CPUS`, `VM=CPUS` for all vCPUs of a VM, `VM=1:1 CPUS` for a CPU each in
/// turn, or `task:NAME=CPUS` and `task:TID=CPUS` for tasks that are no vCPUs; CPUs as `0,2-3`.
pub(super) fn pin(
    text: &str,
    answers: &Answers,
    recording: &Recording,
    assumed: &mut Assumed,
) -> Result<(), CliError> {
    let wrong = |problem: String| CliError::WhatIf(format!("--pin {text}: {problem}"));
    let (who, list) = text
        .rsplit_once('=')
        .ok_or_else(|| wrong("expected VM/VCPU=CPUS, VM=CPUS or task:NAME=CPUS".to_owned()))?;
    let each = list.trim_start().strip_prefix("1:1 ");
    let mut list = cpu_list(each.unwrap_or(list), recording.cpus).map_err(wrong)?;
    if each.is_none() {
        list.sort_unstable();
    }
    let whole = answers.vms.iter().position(|vm| vm.vm == who);
    if let (None, Some(task)) = (whole, who.strip_prefix("task:")) {
        let pins = task_pins(task, &list, recording).map_err(wrong)?;
        assumed.task_pins.extend(pins);
        return Ok(());
    }
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
    let found = of_vm.filter(|time| number.is_none_or(|number| number == time.vcpu));
    let before = assumed.pins.len();
    for (at, time) in found.enumerate() {
        let cpus = match each {
            Some(_) => vec![list[at % list.len()]],
            None => list.clone(),
        };
        assumed.pins.push(((vm, time.vcpu), cpus));
    }
    if assumed.pins.len() == before {
        return Err(wrong(format!("VM {name:?} has no such vCPU")));
    }
    Ok(())
}

/// Whether nobody is pinned by two of these: which of them is meant nobody says. (What `--auto` tries comes
/// on top of them, and holds.)
pub(super) fn pinned_once(pins: &[String], base: &Base) -> Result<(), CliError> {
    let mut before: BTreeMap<String, &str> = BTreeMap::new();
    for text in pins {
        let mut one = Assumed::default();
        pin(text, &base.answers, &base.recording, &mut one)?;
        let vm = |at: usize| base.vms.get(at).map_or("", String::as_str);
        let vcpus = one.pins.iter().map(|pin| pin.0);
        let vcpus = vcpus.map(|(at, vcpu)| format!("vCPU {vcpu} of {}", vm(at)));
        let tasks = one.task_pins.iter().map(|pin| format!("task {}", pin.0));
        for who in vcpus.chain(tasks) {
            if let Some(first) = before.get(&who) {
                return Err(CliError::WhatIf(format!(
                    "--pin {first} and --pin {text} both say where {who} may run: say it once"
                )));
            }
            before.insert(who, text);
        }
    }
    Ok(())
}

/// Pins of tasks that are no vCPUs, by name or id.
fn task_pins(who: &str, list: &[u32], recording: &Recording) -> Result<Vec<TaskPin>, String> {
    let tid = who.parse::<i32>().ok();
    let others = recording.tasks.iter().filter(|task| task.vcpu.is_none());
    let found = others.filter(|task| task.name == who || Some(task.tid) == tid);
    let pins: Vec<TaskPin> = found.map(|task| (task.tid, list.to_vec())).collect();
    match pins.is_empty() {
        true => Err(format!("no task but vCPUs has the name or id {who:?}")),
        false => Ok(pins),
    }
}

/// Where a task may run.
type TaskPin = (i32, Vec<u32>);

fn cpu_list(text: &str, cpus: u32) -> Result<Vec<u32>, String> {
    let ranges: Vec<CpuRange> = text.split(',').map(str::parse).collect::<Result<_, _>>()?;
    let numbers: Vec<u32> = CpuRange::numbers(&ranges)
        .into_iter()
        .map(u32::from)
        .collect();
    match numbers.iter().find(|cpu| **cpu >= cpus) {
        Some(cpu) => Err(format!(
            "{cpu}: the host has CPUs 0-{}",
            cpus.saturating_sub(1)
        )),
        None => Ok(numbers),
    }
}

/// Most bytes of a file about the host.
const MOST_OF_HOST: u64 = 1 << 20;

/// What a file about the host says, whose knobs and VMs are those of `trial`: lines of `KEY = VALUE`, where
/// KEY is a knob, `groups` (whether VMs are in cgroups of their own: true, false), `vcpu_cgroups` (whether in
/// those each vCPU is: true, false), `balanced` (whether guests give idle vCPUs what others have to do: true,
/// false) or `placement` (recorded, simulated).
pub(super) fn host_file(
    path: &Path,
    trial: &Config,
    assumed: &mut Assumed,
) -> Result<Vec<Setting>, CliError> {
    let failed = |what: String| CliError::WhatIf(format!("{}: {what}", path.display()));
    let wrong = |line: usize, problem: &str| {
        CliError::WhatIf(format!("{}:{line}: {problem}", path.display()))
    };
    let mut text = String::new();
    // One byte more than may be: that is enough to refuse it.
    std::fs::File::open(path)
        .and_then(|file| file.take(MOST_OF_HOST + 1).read_to_string(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > MOST_OF_HOST {
        return Err(failed(format!(
            "more than {MOST_OF_HOST} bytes: this is no file about a host, of lines KEY = VALUE"
        )));
    }
    let mut trial = trial.clone();
    let mut settings = Vec::new();
    let mut keys = BTreeSet::new();
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
        if key.is_empty() {
            return Err(wrong(n + 1, "expected KEY = VALUE"));
        }
        if !keys.insert(key.clone()) && key != FEATURES {
            return Err(wrong(n + 1, &format!("{key} is said twice: leave one out")));
        }
        let flag = match key.as_str() {
            "groups" => Some(&mut assumed.groups),
            "vcpu_cgroups" => Some(&mut assumed.vcpu_groups),
            "balanced" => Some(&mut assumed.balanced),
            _ => None,
        };
        if let Some(flag) = flag {
            let Ok(is_so) = value.parse() else {
                return Err(wrong(n + 1, &format!("{key} is true or false")));
            };
            *flag = Some(is_so);
            continue;
        }
        match (key.as_str(), value.as_str()) {
            ("placement", "recorded") => assumed.placement = Some(Placement::Recorded),
            ("placement", "simulated") => assumed.placement = Some(Placement::Simulated),
            ("placement", _) => {
                return Err(wrong(n + 1, "placement is recorded or simulated"));
            }
            _ => {
                knobs::set(&mut trial, &key, &value)
                    .map_err(|error| wrong(n + 1, &error.to_string()))?;
                settings.push((key, value));
            }
        }
    }
    Ok(settings)
}

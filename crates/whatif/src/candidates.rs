//! `--auto`: which changes a recording gives reason to try.
//!
//! Each rule looks at what `analyze` found and names changes that act on it, with how much of
//! vCPUs' time is at stake. What a replay cannot tell is named too, with what to do instead.

use serde::Serialize;
use stealtime_lab::knobs::{self, Replay, Setting, vm_knob};
use stealtime_replay::Release;
use stealtime_replay::host::{self, Feature};
use stealtime_simulator::config::{Cfs, Config};
use stealtime_simulator::script::{ScriptConfig, ScriptGroup};

use crate::answerable;
use crate::apply::groups;
use crate::baseline::Baseline;
use crate::error::Error;
use crate::facts::{Facts, Vm, share};
use crate::fair_class;
use crate::on_host;
use crate::pin::Pin;
use crate::plan::{Change, Plan, Prepared};

/// Most changes that one call tries.
pub(crate) const MOST: usize = 24;

/// Why something is tried, and what.
#[derive(Debug)]
struct Rule {
    why: String,
    /// Time of vCPUs that it is about, in ns.
    stake_ns: u64,
    plans: Vec<Plan>,
}

/// A change to try.
#[derive(Debug, Clone)]
pub(crate) struct Candidate {
    pub(crate) plan: Plan,
    /// Place of its reason in [`Chosen::reasons`].
    pub(crate) reason: usize,
}

/// What was found but is not for a replay to answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Cannot {
    /// Knobs or settings.
    pub what: String,
    /// What was found, and why a replay does not tell.
    pub why: String,
    /// What to do instead.
    pub instead: String,
}

/// What to try, those with most at stake first.
#[derive(Debug, Default)]
pub(crate) struct Chosen {
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) reasons: Vec<String>,
    pub(crate) cannot: Vec<Cannot>,
    /// Beyond [`MOST`].
    pub(crate) left_out: usize,
}

/// What is to be improved.
struct Case<'b> {
    base: &'b Baseline,
    facts: Facts,
    /// What all changes come on top of.
    first: &'b Plan,
    before: Prepared,
    /// The host with that.
    config: Config,
    /// A host to parse settings on.
    stub: Config,
}

impl Case<'_> {
    /// A plan of this knob alone; `None` for a value out of its range, which is not tried.
    fn knob(&self, name: &str, value: impl ToString) -> Option<Plan> {
        let setting = Setting::parse(&self.stub, name, &value.to_string()).ok()?;
        Some(Plan::new(vec![Change::Knob(setting)]))
    }

    /// A plan of these pins.
    fn pins(&self, pins: &[String]) -> Option<Plan> {
        let pins = pins.iter();
        let parsed = pins.map(|pin| Some(Change::Pin(Pin::parse(pin, &self.base.recorded).ok()?)));
        Some(Plan::new(parsed.collect::<Option<_>>()?))
    }

    /// The tunables of CFS, on a host that has it.
    fn cfs(&self) -> Option<Cfs> {
        let knobs = self.config.knobs.sched.cfs?;
        Some(knobs.on(self.config.host.topology.cpus()))
    }
}

/// Chooses changes to come on top of `first`.
pub(crate) fn choose(base: &Baseline, first: &Plan) -> Result<Chosen, Error> {
    let prepared = first.prepare(base)?;
    let case = Case {
        base,
        facts: Facts::new(&base.recorded.answers),
        config: prepared.config(base, 0)?,
        first,
        before: prepared,
        stub: base.recorded.stub(),
    };
    let mut rules = vec![
        polls(&case),
        polls_too_short(&case),
        after_wakeups(&case),
        preempted(&case),
        other_vms(&case),
        stacked(&case),
        weights(&case),
        limits(&case),
    ];
    rules.extend(tasks(&case));
    rules.sort_by_key(|rule| std::cmp::Reverse(rule.stake_ns));
    let mut chosen = Chosen {
        cannot: cannot(&case),
        ..Chosen::default()
    };
    for rule in rules {
        let reason = chosen.reasons.len();
        let known_count = chosen.candidates.len();
        for plan in rule.plans {
            let known = chosen.candidates.iter().any(|known| known.plan == plan);
            if known || !can_be_tried(&case, &plan)? {
                continue;
            }
            if chosen.candidates.len() == MOST {
                chosen.left_out += 1;
                continue;
            }
            chosen.candidates.push(Candidate { plan, reason });
        }
        if chosen.candidates.len() > known_count {
            chosen.reasons.push(rule.why);
        }
    }
    Ok(chosen)
}

/// Whether it changes anything, and this recording can answer it.
fn can_be_tried(case: &Case<'_>, plan: &Plan) -> Result<bool, Error> {
    let base = case.base;
    let answers = |setting| answerable::check(setting, base).is_ok();
    let whole = plan.on_top_of(case.first);
    let settings: Vec<Setting> = whole.settings().cloned().collect();
    let is_answered = plan.settings().all(answers) && fair_class::lacks(&settings, base).is_none();
    // A value that is out of a knob's range is not tried.
    let (true, Ok(prepared)) = (is_answered, whole.prepare(base)) else {
        return Ok(false);
    };
    // The fit may assume another value than the host has.
    let is_set = |setting| on_host::is_set(base, setting);
    if plan.settings().next().is_some() && plan.settings().all(is_set) {
        return Ok(false);
    }
    if prepared.is_same_host(base, &case.before)? {
        return Ok(false);
    }
    Ok(plan.pins().next().is_none() || prepared.restricts(base, &case.before)?)
}

/// Shortest and longest slice that the knobs take, in ns.
const SLICES: std::ops::RangeInclusive<u64> = 100_000..=1_000_000_000;

/// The knob at these parts of what it is, as far as that is less.
fn shorter(case: &Case<'_>, knob: &str, now: u64, least: u64, parts: &[u64]) -> Vec<Plan> {
    let values = parts.iter().map(|part| (now / part).max(least));
    let shorter = values.filter(|value| *value < now);
    shorter.filter_map(|value| case.knob(knob, value)).collect()
}

/// The knob at these multiples of what it is, as far as that is more.
fn longer(case: &Case<'_>, knob: &str, now: u64, times: &[u64]) -> Vec<Plan> {
    let values = times.iter().map(|times| now.saturating_mul(*times));
    let longer = values.filter(|value| *value > now && value <= SLICES.end());
    longer.filter_map(|value| case.knob(knob, value)).collect()
}

/// A feature switched on or off, unless it is.
fn switched(case: &Case<'_>, feature: Feature, switch_on: bool) -> Option<Plan> {
    let prefix = if switch_on { "" } else { "NO_" };
    let value = format!("{prefix}{}", feature.name());
    let is_so = case.config.knobs.sched.features.has(feature) == switch_on;
    case.knob("sched.features", value).filter(|_| !is_so)
}

fn none() -> Rule {
    Rule {
        why: String::new(),
        stake_ns: 0,
        plans: Vec::new(),
    }
}

/// The VMs for which something holds, as text.
fn names(facts: &Facts, holds: impl Fn(&Vm) -> bool) -> String {
    let vms = facts.vms.iter().filter(|vm| holds(vm));
    vms.map(|vm| vm.name.as_str())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Polling that finds what it waits for takes CPU time too, of which others could have some.
fn polls(case: &Case<'_>) -> Rule {
    let found = |vm: &Vm| {
        let mut findings = case.base.recorded.answers.findings.iter();
        findings.any(|finding| finding.id == "polls_wasted" && finding.vm == vm.name)
    };
    let wasted = case.facts.all(|vm| vm.wasted);
    let polled = case.facts.all(|vm| vm.polled);
    if !case.facts.vms.iter().any(found) && !case.facts.minds(polled) {
        return none();
    }
    let now = case.config.knobs.kvm.halt_poll.halt_poll_ns;
    let mut plans: Vec<Plan> = case.knob("kvm.halt_poll_ns", 0).into_iter().collect();
    plans.extend(shorter(case, "kvm.halt_poll_ns", now.into(), 0, &[2, 8]));
    Rule {
        why: format!(
            "polling in halts costs {}, {} ms of it in vain",
            case.facts.share(polled),
            wasted / 1_000_000
        ),
        stake_ns: polled,
        plans,
    }
}

/// Waking an idle CPU costs time that a longer poll would not have slept.
fn polls_too_short(case: &Case<'_>) -> Rule {
    let idle = case.facts.all(|vm| vm.waited_for("idle"));
    if !case.facts.minds(idle) {
        return none();
    }
    let now = case.config.knobs.kvm.halt_poll.halt_poll_ns.max(100_000);
    let values = [2, 4].map(|times| now.saturating_mul(times));
    let plans = values
        .into_iter()
        .filter_map(|value| case.knob("kvm.halt_poll_ns", value));
    Rule {
        why: format!(
            "vCPUs wait {} for idle CPUs to wake, which polling spares",
            case.facts.share(idle)
        ),
        stake_ns: idle,
        plans: plans.collect(),
    }
}

/// Ticks a second of the kernel's fastest configuration.
const MOST_HZ: u32 = 1_000;

fn of_eevdf_sooner(case: &Case<'_>) -> Vec<Plan> {
    let slice = host::base_slice_ns(&case.config);
    let mut plans = shorter(case, "sched.base_slice_ns", slice, *SLICES.start(), &[2, 4]);
    plans.extend(switched(case, Feature::RunToParity, false));
    plans.extend(switched(case, Feature::NextBuddy, true));
    plans.extend(case.knob("sched.preempt", "full"));
    plans
}

fn of_cfs_sooner(case: &Case<'_>, cfs: &Cfs) -> Vec<Plan> {
    let least = *SLICES.start();
    let slice = cfs.min_granularity_ns;
    let mut plans = shorter(case, "sched.min_granularity_ns", slice, least, &[2]);
    plans.extend(shorter(
        case,
        "sched.latency_ns",
        cfs.latency_ns,
        least,
        &[2],
    ));
    let wakeup = cfs.wakeup_granularity_ns;
    plans.extend(shorter(
        case,
        "sched.wakeup_granularity_ns",
        wakeup,
        0,
        &[2, 4],
    ));
    plans.extend(case.knob("sched.fair", "eevdf"));
    plans
}

fn of_eevdf_longer(case: &Case<'_>) -> Vec<Plan> {
    let slice = host::base_slice_ns(&case.config);
    let mut plans = longer(case, "sched.base_slice_ns", slice, &[2, 4]);
    plans.extend(switched(case, Feature::RunToParity, true));
    plans.extend(switched(case, Feature::NextBuddy, false));
    // Kernels before 6.13 have no other way than `full`.
    let has_one_way = |release: Release| release.preempt().is_some();
    if !case
        .base
        .recorded
        .recording
        .release
        .is_some_and(has_one_way)
    {
        plans.extend(case.knob("sched.preempt", "lazy"));
    }
    plans
}

fn of_cfs_longer(case: &Case<'_>, cfs: &Cfs) -> Vec<Plan> {
    let mut plans = longer(
        case,
        "sched.min_granularity_ns",
        cfs.min_granularity_ns,
        &[2],
    );
    plans.extend(longer(case, "sched.latency_ns", cfs.latency_ns, &[2]));
    let wakeup = cfs.wakeup_granularity_ns;
    plans.extend(longer(case, "sched.wakeup_granularity_ns", wakeup, &[2]));
    plans.extend(case.knob("sched.fair", "eevdf"));
    plans
}

fn after_wakeups(case: &Case<'_>) -> Rule {
    let woken = case.facts.all(|vm| vm.woken);
    let idle = case.facts.all(|vm| vm.waited_for("idle"));
    let stake = woken.saturating_sub(idle);
    if !case.facts.minds(stake) {
        return none();
    }
    let mut plans = match case.cfs() {
        Some(cfs) => of_cfs_sooner(case, &cfs),
        None => of_eevdf_sooner(case),
    };
    plans.extend(switched(case, Feature::WakeupPreemption, true));
    if case.config.knobs.sched.hz < MOST_HZ {
        plans.extend(case.knob("host.hz", MOST_HZ));
    }
    Rule {
        why: format!(
            "woken vCPUs wait {} for busy CPUs: shorter slices and preemption bring them on sooner",
            case.facts.share(stake)
        ),
        stake_ns: stake,
        plans,
    }
}

fn preempted(case: &Case<'_>) -> Rule {
    let stake = case.facts.all(|vm| vm.preempted);
    if !case.facts.minds(stake) {
        return none();
    }
    let mut plans = match case.cfs() {
        Some(cfs) => of_cfs_longer(case, &cfs),
        None => of_eevdf_longer(case),
    };
    plans.extend(switched(case, Feature::WakeupPreemption, false));
    if case.config.scripts.groups.iter().any(Option::is_some) {
        plans.extend(case.knob("sched.pick", "flat"));
    }
    Rule {
        why: format!(
            "vCPUs are off their CPUs, though they could run, for {}: longer slices and less \
             preemption leave them there",
            case.facts.share(stake)
        ),
        stake_ns: stake,
        plans,
    }
}

/// `0-2`, or `3`.
fn range(first: u32, count: u32) -> String {
    match count {
        0 | 1 => first.to_string(),
        _ => format!("{first}-{}", first + count - 1),
    }
}

/// CPUs for each VM by what its vCPUs want to run, at least one.
fn shares(cpus: u32, wants: &[u64]) -> Option<Vec<u32>> {
    let n = u32::try_from(wants.len()).ok()?;
    if n < 2 || n > cpus {
        return None;
    }
    let mut counts = vec![1u32; wants.len()];
    for _ in n..cpus {
        // To the one that has most for each CPU; the first of equals.
        let by_demand = |a: &usize, b: &usize| {
            let per = |want_index: usize, count_index: usize| {
                let want = wants.get(want_index).copied().unwrap_or(0);
                u128::from(want) * u128::from(counts.get(count_index).copied().unwrap_or(1))
            };
            per(*a, *b).cmp(&per(*b, *a)).then(b.cmp(a))
        };
        let neediest = (0..wants.len()).max_by(by_demand)?;
        *counts.get_mut(neediest)? += 1;
    }
    Some(counts)
}

/// CPUs of its own for each VM.
fn other_vms(case: &Case<'_>) -> Rule {
    let stake = case.facts.all(|vm| vm.waited_for("vcpu_other_vm"));
    let wants: Vec<u64> = case
        .facts
        .vms
        .iter()
        .map(|vm| vm.on_cpu + vm.woken + vm.preempted)
        .collect();
    let Some(counts) =
        shares(case.base.recorded.recording.cpus, &wants).filter(|_| case.facts.minds(stake))
    else {
        return none();
    };
    let mut first_cpu = 0;
    let mut pins = Vec::new();
    for (vm, count) in case.facts.vms.iter().zip(counts) {
        pins.push(format!("{}={}", vm.name, range(first_cpu, count)));
        first_cpu += count;
    }
    Rule {
        why: format!(
            "vCPUs wait {} for vCPUs of other VMs: CPUs of its own for each VM, by how much it \
             wants to run",
            case.facts.share(stake)
        ),
        stake_ns: stake,
        plans: case.pins(&pins).into_iter().collect(),
    }
}

/// vCPUs of one VM on one CPU.
fn stacked(case: &Case<'_>) -> Rule {
    let stake = case.facts.all(|vm| vm.waited_for("vcpu_same_vm"));
    let cpus = case.base.recorded.recording.cpus;
    if !case.facts.minds(stake) || cpus < 2 {
        return none();
    }
    let mut first_cpu = 0;
    let mut pins = Vec::new();
    for vm in &case.facts.vms {
        // From where the last VM ended, once around.
        let list = match first_cpu {
            0 => range(0, cpus),
            first_cpu => format!(
                "{},{}",
                range(first_cpu, cpus - first_cpu),
                range(0, first_cpu)
            ),
        };
        pins.push(format!("{}=1:1 {list}", vm.name));
        first_cpu = (first_cpu + vm.vcpus) % cpus;
    }
    Rule {
        why: format!(
            "vCPUs wait {} for vCPUs of their own VM: CPUs in turn for a VM's vCPUs",
            case.facts.share(stake)
        ),
        stake_ns: stake,
        plans: case.pins(&pins).into_iter().collect(),
    }
}

/// Most VMs that are tried with more weight.
const MOST_WEIGHED: usize = 2;

/// Three times: of two equal VMs the one then gets 75 %.
const MORE_WEIGHT: u32 = 3;
/// Five steps of 1.25 each are three times the weight too.
const LESS_NICE: i8 = 5;
const LEAST_NICE: i8 = -20;

/// The nice value of the VM's vCPUs, the least of several.
fn nice(case: &Case<'_>, name: &str) -> Option<i8> {
    let index = case.base.recorded.vms.iter().position(|vm| vm == name)?;
    let of_vm = |task: &&ScriptConfig| task.vcpu.is_some() && task.vm == u32::try_from(index).ok();
    let vcpus = case.config.scripts.tasks.iter().filter(of_vm);
    vcpus.map(|task| task.nice).min()
}

/// More weight than they have for those that wait most.
fn weights(case: &Case<'_>) -> Rule {
    let waited = |vm: &Vm| vm.waited_for("vcpu_other_vm");
    let mut vms: Vec<&Vm> = case
        .facts
        .vms
        .iter()
        .filter(|vm| vm.minds(waited(vm)))
        .collect();
    vms.sort_by_key(|vm| std::cmp::Reverse(waited(vm) / u64::from(vm.vcpus.max(1))));
    vms.truncate(MOST_WEIGHED);
    let stake = vms.iter().map(|vm| waited(vm)).sum();
    let group = |vm: &Vm| {
        let named = groups(&vm.name, &case.config, &case.base.recorded.vms);
        named.into_iter().flatten().next()
    };
    let plan = |vm: &&Vm| match group(vm) {
        Some(group) => {
            let raised = group.cpu_weight.saturating_mul(MORE_WEIGHT);
            let raised = raised.min(ScriptGroup::MOST_WEIGHT);
            let knob = vm_knob(&vm.name, "cpu_weight");
            case.knob(&knob, raised)
                .filter(|_| raised > group.cpu_weight)
        }
        None => {
            let now = nice(case, &vm.name)?;
            let raised = now.saturating_sub(LESS_NICE).max(LEAST_NICE);
            case.knob(&vm_knob(&vm.name, "nice"), raised)
                .filter(|_| raised < now)
        }
    };
    let plans: Vec<(&Vm, Plan)> = vms.iter().filter_map(|vm| Some((*vm, plan(vm)?))).collect();
    let waiting = names(&case.facts, |vm| {
        plans.iter().any(|(planned, _)| planned.name == vm.name)
    });
    Rule {
        why: format!(
            "{waiting}: vCPUs there wait most for other VMs' vCPUs; more weight than they have takes it \
             from those"
        ),
        stake_ns: stake,
        plans: plans.into_iter().map(|(_, plan)| plan).collect(),
    }
}

/// Twice the limit, and none, for VMs that one stops.
fn limits(case: &Case<'_>) -> Rule {
    let mut rule = none();
    let groups = case.config.scripts.groups.iter();
    for (group, vm) in groups.zip(&case.facts.vms) {
        let limit = group.as_ref().and_then(|group| group.cpu_max_ns);
        let (Some((quota, period)), true) = (limit, vm.minds(vm.waited_for("throttled"))) else {
            continue;
        };
        let knob = vm_knob(&vm.name, "cpu_max");
        let twice = format!("{}ns {period}ns", quota.saturating_mul(2));
        rule.plans.extend(
            [case.knob(&knob, twice), case.knob(&knob, "max".to_owned())]
                .into_iter()
                .flatten(),
        );
        rule.stake_ns += vm.waited_for("throttled");
    }
    let stopped = names(&case.facts, |vm| vm.minds(vm.waited_for("throttled")));
    rule.why = format!("{stopped}: stopped by a cpu.max; a higher one, or none, lets it run on");
    rule
}

/// Tasks that record the host.
const RECORDERS: [&str; 3] = ["stealtime", "trace-cmd", "perf"];

/// Tasks that are no vCPUs, in vCPUs' way.
fn tasks(case: &Case<'_>) -> Vec<Rule> {
    let Some(last) = case
        .base
        .recorded
        .recording
        .cpus
        .checked_sub(1)
        .filter(|last| *last > 0)
    else {
        return Vec::new();
    };
    let mut rules = Vec::new();
    for ((cause, task), &stake) in &case.facts.by_task {
        let role = match cause.as_str() {
            "vmm_thread" => "a VMM's thread",
            "host_task" => "a task of the host",
            _ => continue,
        };
        // `=` would end the name. A recorder is gone when the change is made.
        let is_recorder = RECORDERS.contains(&task.as_str());
        if !case.facts.minds(stake) || task.contains('=') || is_recorder {
            continue;
        }
        let last_cpu = format!("task:{task}={last}");
        let vms = case.facts.vms.iter();
        let rest = vms.map(|vm| format!("{}={}", vm.name, range(0, last)));
        let apart: Vec<String> = std::iter::once(last_cpu.clone()).chain(rest).collect();
        rules.push(Rule {
            why: format!(
                "vCPUs wait {} for {task}, {role}: a CPU for it, shared with vCPUs or alone",
                case.facts.share(stake)
            ),
            stake_ns: stake,
            plans: [case.pins(&[last_cpu]), case.pins(&apart)]
                .into_iter()
                .flatten()
                .collect(),
        });
    }
    rules
}

/// What follows up a finding that no replay can.
enum Beyond {
    /// Knobs of which the first one's row has the reason and the scenario; text for the others.
    Knob(&'static str, &'static str),
    /// No limit is known: the knob acts in replays of other recordings.
    UnknownLimit,
    /// Clocks, which no knob sets.
    Clocks(&'static str),
}

/// Findings that only `simulate` or the host itself can follow up.
const BEYOND: [(&str, Beyond); 8] = [
    (
        "spinning",
        Beyond::Knob(
            "kvm.ple_gap",
            "kvm.ple_gap, kvm.ple_window, kvm.enable_relaxed_boost, sched.features=YIELD_TO_LAG_CREDIT",
        ),
    ),
    (
        "timer_exits",
        Beyond::Knob("kvm.pi_inject_timer", "kvm.pi_inject_timer"),
    ),
    (
        "host_interrupts",
        Beyond::Knob("host.nohz_full", "host.nohz_full, interrupt affinity"),
    ),
    (
        "spurious_notifications",
        Beyond::Knob("kvm.suppress_notification", "kvm.suppress_notification"),
    ),
    ("throttled", Beyond::UnknownLimit),
    ("bandwidth_limit", Beyond::UnknownLimit),
    ("tsc_unstable", Beyond::Clocks("the host's clock source")),
    (
        "master_clock_off",
        Beyond::Clocks("the host's clock source, TSC offsets"),
    ),
];

impl Beyond {
    /// The knobs or settings, why a replay does not show their effect, and what does.
    fn describe(&self) -> (&'static str, &'static str, String) {
        let scenario = |file| format!("stealtime simulate scenarios/{file}");
        match self {
            Self::Knob(name, settings) => match knobs::find(name).map(|knob| knob.replay) {
                Some(Replay::Simulate {
                    why,
                    scenario: Some(file),
                }) => (settings, why, scenario(file)),
                row => {
                    debug_assert!(false, "{name} has no scenario: {row:?}");
                    (settings, "no replay shows its effect", String::new())
                }
            },
            Self::UnknownLimit => (
                "vm.NAME.cpu_max",
                "no limit can be read from this recording: it shows no period timer that stops a \
                 whole VM",
                scenario("throttled.toml"),
            ),
            Self::Clocks(settings) => (
                settings,
                "guests' clocks are not replayed",
                "stealtime clock doctor".to_owned(),
            ),
        }
    }
}

fn cannot(case: &Case<'_>) -> Vec<Cannot> {
    let mut list: Vec<Cannot> = Vec::new();
    for finding in &case.base.recorded.answers.findings {
        let Some((_, beyond)) = BEYOND.iter().find(|row| row.0 == finding.id) else {
            continue;
        };
        let limits = &case.base.recorded.recording.limits;
        if matches!(beyond, Beyond::UnknownLimit) && !limits.is_empty() {
            continue;
        }
        let (settings, reason, instead) = beyond.describe();
        let found = finding.what.trim_end_matches('.');
        match list.iter_mut().find(|known| known.what == settings) {
            Some(known) => known.why = format!("{found}. {}", known.why),
            None => list.push(Cannot {
                what: settings.to_owned(),
                why: format!("{found}. But {reason}"),
                instead,
            }),
        }
    }
    let kernel: u64 = case.facts.all(|vm| vm.waited_for("kernel_thread"));
    if case.facts.minds(kernel) {
        list.push(Cannot {
            what: "host.isolcpus, work queues' CPUs".to_owned(),
            why: format!(
                "vCPUs wait {} for threads of the kernel. But most of these belong to a CPU and do \
                 what happens there",
                share(kernel, case.facts.all(|vm| vm.lived))
            ),
            instead: "stealtime analyze --key ready names them".to_owned(),
        });
    }
    list
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_shared_by_what_vms_want() {
        assert_eq!(shares(2, &[5, 5]), Some(vec![1, 1]));
        assert_eq!(shares(4, &[1, 1]), Some(vec![2, 2]));
        assert_eq!(shares(4, &[3, 1]), Some(vec![3, 1]));
        assert_eq!(shares(8, &[10, 20, 10]), Some(vec![2, 4, 2]));
        assert_eq!(shares(3, &[0, 0]), Some(vec![2, 1]));
        assert_eq!(shares(1, &[5, 5]), None);
        assert_eq!(shares(4, &[5]), None);
        assert_eq!(shares(4, &[u64::MAX, u64::MAX]), Some(vec![2, 2]));
    }

    #[test]
    fn ranges_read_as_cpus() {
        assert_eq!(range(2, 1), "2");
        assert_eq!(range(0, 4), "0-3");
    }
}

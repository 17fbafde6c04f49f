//! Results, as JSON has them.

use std::collections::BTreeMap;

use serde::Serialize;
use stealtime_events::ExitReason;
use stealtime_lab::metric::Better;
use stealtime_lab::stats::{Difference, Verdict, difference};
use stealtime_replay::predict::{Errors, OtherTimes, Times, VcpuTimes};

use crate::baseline::Baseline;
use crate::gain::{self, Gain, Outcome, Word};
use crate::population::Population;
use crate::population_change::PopulationChange;

/// A percentage with three decimals.
fn percent(part: u64, whole: u64) -> f64 {
    (part as f64 / whole.max(1) as f64 * 100_000.0).round() / 1_000.0
}

/// The sample below which so many percent are, in ns.
pub(crate) fn quantile(sorted: &[u64], percent: usize) -> Option<u64> {
    let last = sorted.len().checked_sub(1)?;
    sorted
        .get((sorted.len() * percent / 100).min(last))
        .copied()
}

/// A vCPU's time in percent of the span, and its wakeups.
#[derive(Debug, Clone, Serialize)]
pub struct Shares {
    /// On a CPU; polling in halts is part of it.
    pub run_percent: f64,
    /// Runnable without a CPU.
    pub ready_percent: f64,
    /// Asleep.
    pub halted_percent: f64,
    /// Polling in halts.
    pub poll_percent: f64,
    /// Time without recorded state: in a replay the vCPU is halted then.
    pub unknown_percent: f64,
    /// Wakeups with a latency.
    pub wakeups: usize,
    /// Latency from runnable to running, median.
    pub wakeup_p50_ns: Option<u64>,
    /// 90th percentile.
    pub wakeup_p90_ns: Option<u64>,
    /// 99th percentile.
    pub wakeup_p99_ns: Option<u64>,
    /// The longest.
    pub wakeup_max_ns: Option<u64>,
}

impl Shares {
    pub(crate) fn new(time: &VcpuTimes, span: u64) -> Self {
        Self {
            run_percent: percent(time.run_ns, span),
            ready_percent: percent(time.ready_ns, span),
            halted_percent: percent(time.halted_ns, span),
            poll_percent: percent(time.poll_ns, span),
            unknown_percent: percent(time.unknown_ns, span),
            wakeups: time.wakeups.len(),
            wakeup_p50_ns: quantile(&time.wakeups, 50),
            wakeup_p90_ns: quantile(&time.wakeups, 90),
            wakeup_p99_ns: quantile(&time.wakeups, 99),
            wakeup_max_ns: quantile(&time.wakeups, 100),
        }
    }
}

/// A vCPU, recorded and replayed.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayedVcpu {
    /// The VM.
    pub vm: String,
    /// Whether its threads are a guess.
    pub vm_guessed: bool,
    /// Its number.
    pub vcpu: u32,
    /// When it began, in ns of the recording, if that was in its middle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from_ns: Option<u64>,
    /// When it ended, in ns of the recording, if that was in its middle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub to_ns: Option<u64>,
    /// In the recording.
    pub recorded: Shares,
    /// In the replay under the recorded knobs.
    pub replayed: Shares,
    /// Share of its demand that the replay got done.
    pub done_percent: f64,
}

/// Replayed minus recorded time of a vCPU, in percent of the span.
#[derive(Debug, Clone, Copy)]
pub struct VcpuError {
    /// Running.
    pub running: f64,
    /// Runnable without a CPU.
    pub ready: f64,
    /// Asleep.
    pub halted: f64,
}

impl VcpuError {
    /// Each with its name.
    #[must_use]
    pub const fn named(self) -> [(&'static str, f64); 3] {
        [
            ("running", self.running),
            ("ready", self.ready),
            ("halted", self.halted),
        ]
    }
}

impl ReplayedVcpu {
    /// How far the replay is off. What is unknown of the recording may all have been halted.
    #[must_use]
    pub fn error(&self) -> VcpuError {
        let (recorded, replayed) = (&self.recorded, &self.replayed);
        let halted = (replayed.halted_percent - recorded.unknown_percent).max(0.0);
        VcpuError {
            running: replayed.run_percent - recorded.run_percent,
            ready: replayed.ready_percent - recorded.ready_percent,
            halted: halted - recorded.halted_percent,
        }
    }
}

/// How far the replay is from the recording, in percent.
#[derive(Debug, Clone, Serialize)]
pub struct Closeness {
    /// Median over running, ready and halted time of each vCPU, of the span.
    pub median_percent: f64,
    /// 90th percentile of the same.
    pub p90_percent: f64,
    /// The largest of the same.
    pub worst_percent: f64,
    /// The largest error of an exit reason's count, of the recorded count.
    pub exits_worst_percent: f64,
}

impl Closeness {
    pub(crate) fn new(errors: &Errors) -> Self {
        let percent = |ppm: u64| (ppm as f64 / 10.0).round() / 1_000.0;
        Self {
            median_percent: percent(errors.percentile(50)),
            p90_percent: percent(errors.percentile(90)),
            worst_percent: percent(errors.percentile(100)),
            exits_worst_percent: percent(errors.worst_exits()),
        }
    }

    /// Whether it is within what predictions are good for.
    #[must_use]
    pub fn is_close(&self) -> bool {
        self.median_percent <= 3.0 && self.p90_percent <= 8.0 && self.exits_worst_percent <= 5.0
    }
}

/// Exits for one reason, of all vCPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Exits {
    /// Its name.
    pub reason: String,
    /// In the recording.
    pub recorded: u64,
    /// In the replay under the recorded knobs.
    pub replayed: u64,
}

impl Exits {
    /// By reason, the most frequent first.
    pub(crate) fn new(recorded: &Times, replayed: &Times) -> Vec<Self> {
        let mut by_name: BTreeMap<String, [u64; 2]> = BTreeMap::new();
        for (side, times) in [recorded, replayed].into_iter().enumerate() {
            for (reason, n) in times.vcpus.iter().flat_map(|vcpu| &vcpu.exits) {
                by_name.entry(shown(*reason)).or_default()[side] += n;
            }
        }
        let exits = by_name.into_iter();
        let mut exits: Vec<Self> = exits
            .map(|(reason, [recorded, replayed])| Self {
                reason,
                recorded,
                replayed,
            })
            .collect();
        exits.sort_by_key(|exit| std::cmp::Reverse(exit.recorded));
        exits
    }
}

fn shown(reason: ExitReason) -> String {
    let name = reason.name().map(str::to_owned);
    name.unwrap_or_else(|| format!("{:#x}", reason.code))
}

/// Waits by what ended them.
#[derive(Debug, Clone, Serialize)]
pub struct Waits {
    /// Ended by another task.
    pub edges: u64,
    /// Ended by a timer.
    pub timers: u64,
    /// Ended by something that was not recorded.
    pub unknown: u64,
    /// Share of those with a known end.
    pub resolved_percent: f64,
}

impl Waits {
    pub(crate) fn new(resolved: stealtime_replay::Resolved) -> Self {
        let known = resolved.edges + resolved.timers;
        Self {
            edges: resolved.edges,
            timers: resolved.timers,
            unknown: resolved.unknown,
            resolved_percent: percent(known, known + resolved.unknown),
        }
    }
}

/// A quantity of a VM that a variant changes.
#[derive(Debug, Clone, Serialize)]
pub struct Delta {
    /// The VM.
    pub vm: String,
    /// Whether its threads are a guess.
    pub vm_guessed: bool,
    /// Places of the VM, and in [`QUANTITIES`].
    #[serde(skip)]
    place: (usize, usize),
    /// Its name.
    pub quantity: &'static str,
    /// `ms/s` or `us`.
    pub unit: &'static str,
    /// Mean over the replays under the recorded knobs.
    pub before: f64,
    /// On average over the replays with the variant.
    pub after: f64,
    /// The difference with its interval.
    pub difference: Difference,
    /// Smaller than what the replay itself is off for this quantity.
    pub below_error: bool,
    /// It is enough to matter.
    #[serde(skip)]
    pub is_relevant: bool,
}

impl Delta {
    /// Where [`Measured::value`] has it, if it is one of those that a vCPU's time is made of.
    pub(crate) fn time(&self) -> Option<(usize, usize)> {
        [RUNNING, READY, HALTED]
            .contains(&self.place.1)
            .then_some(self.place)
    }

    /// The VM, if it is the median of its wakeups.
    pub(crate) fn wakeup_p50_of(&self) -> Option<usize> {
        (self.place.1 == WAKEUP_P50).then_some(self.place.0)
    }

    /// What the change means.
    pub(crate) const fn word(&self) -> Word {
        Word::new(self.difference.verdict, self.below_error)
    }
}

/// A variant.
#[derive(Debug, Clone, Serialize)]
pub struct Variant {
    /// The name of its plan.
    pub name: String,
    /// What it changes in each quantity of each VM.
    pub changes: Vec<Delta>,
    /// What it means for the VMs, as a sentence.
    pub verdict: String,
    /// What it gives and takes.
    #[serde(flatten)]
    pub gain: Gain,
    /// Its VMs, if there are other numbers of VMs or CPUs than recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub population: Option<PopulationChange>,
}

/// A variant that was replayed; `close`: whether the replay as recorded is near the recording. `None`
/// without replays.
pub(crate) fn variant(
    base: &Baseline,
    name: String,
    judged: Judged<'_>,
    close: bool,
) -> Option<Variant> {
    let changes = changes(base, judged);
    let gain = Gain::new(base, judged)?;
    let is_same = |change: &Delta| change.difference.verdict == Verdict::Same;
    let verdict = match gain.outcome == Outcome::Same && changes.iter().all(is_same) {
        true => SAME_REPLAYS.to_owned(),
        false => verdict(&changes, close),
    };
    Some(Variant {
        name,
        changes,
        verdict,
        gain,
        population: None,
    })
}

type Quantity = (
    &'static str,
    &'static str,
    Better,
    fn(&[&VcpuTimes], f64) -> f64,
);

/// Places in [`QUANTITIES`].
const RUNNING: usize = 0;
const READY: usize = 1;
const HALTED: usize = 2;
const WAKEUP_P50: usize = 4;
const WAKEUP_P99: usize = 5;

const QUANTITIES: [Quantity; 6] = [
    ("running", "ms/s", Better::Neither, |vm, span| {
        of_span(vm, span, |t| t.run_ns)
    }),
    ("ready", "ms/s", Better::Lower, |vm, span| {
        of_span(vm, span, |t| t.ready_ns)
    }),
    ("halted", "ms/s", Better::Neither, |vm, span| {
        of_span(vm, span, |t| t.halted_ns)
    }),
    ("polling", "ms/s", Better::Neither, |vm, span| {
        of_span(vm, span, |t| t.poll_ns)
    }),
    ("wakeup p50", "us", Better::Lower, |vm, _| wakeups(vm, 50)),
    ("wakeup p99", "us", Better::Lower, |vm, _| wakeups(vm, 99)),
];

fn of_span(vm: &[&VcpuTimes], span_ns: f64, state: fn(&VcpuTimes) -> u64) -> f64 {
    vm.iter().map(|time| state(time) as f64).sum::<f64>() / span_ns * 1_000.0
}

fn wakeups(vm: &[&VcpuTimes], percent: usize) -> f64 {
    let mut latencies: Vec<u64> = vm.iter().flat_map(|t| t.wakeups.iter().copied()).collect();
    latencies.sort_unstable();
    quantile(&latencies, percent).unwrap_or(0) as f64 / 1_000.0
}

fn of_vm(times: &Times, vm: usize) -> Vec<&VcpuTimes> {
    times.vcpus.iter().filter(|time| time.vm == vm).collect()
}

/// A row of a ranking.
#[derive(Debug, Clone, Copy)]
pub struct Ranked<'r> {
    /// Of a variant, or of a change that `--auto` tried.
    pub name: &'r str,
    /// What it gives and takes.
    pub gain: &'r Gain,
}

/// Variants by name with what they give and take, the best first.
#[must_use]
pub fn ranked(variants: &[Variant]) -> Vec<Ranked<'_>> {
    let rows = variants.iter().map(|variant| Ranked {
        name: &variant.name,
        gain: &variant.gain,
    });
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|a, b| a.gain.by_rank(b.gain));
    rows
}

/// A replay, or the recording, as numbers.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Measured {
    /// Of each VM, [`QUANTITIES`] in their order.
    vms: Vec<[f64; QUANTITIES.len()]>,
    /// vCPUs of each VM.
    pub(crate) vcpus: Vec<usize>,
    /// CPU time of each VM in halts, in ms per second.
    in_halts: Vec<f64>,
    /// Whether each VM has wakeups: without, its latencies are unknown.
    has_wakeups: Vec<bool>,
    /// Waiting of tasks that are no vCPUs, in ms per second. Threads of copies are none of them.
    pub(crate) others_ready: f64,
    /// What they ran, in ms per second.
    pub(crate) others_work: f64,
    /// Their times, and those of each VM's threads.
    others: OtherTimes,
    vm_threads: BTreeMap<usize, OtherTimes>,
    /// CPU time of VMs that are not compared, in ms per second.
    uncompared: f64,
    span_ns: u64,
    population: Option<Population>,
    /// Switches to another task than the last one on that CPU, per second.
    pub(crate) displaced: f64,
}

impl Measured {
    /// Of so many VMs.
    pub(crate) fn new(times: &Times, vms: usize, span_ns: u64) -> Self {
        let span = span_ns.max(1) as f64;
        let quantities = |vm| {
            let vcpus = of_vm(times, vm);
            QUANTITIES.map(|quantity| quantity.3(&vcpus, span))
        };
        let in_halts = |vm| of_span(&of_vm(times, vm), span, |time| time.in_halts_ns);
        let has_wakeups = |vm| of_vm(times, vm).iter().any(|time| !time.wakeups.is_empty());
        let rate = |ns: u64| ns as f64 / span * 1_000.0;
        let copies = times.vm_threads.range(vms..).map(|entry| *entry.1);
        let copies_work: u64 = copies.clone().map(|times| times.run_ns).sum();
        let recorded = copies.fold(times.others, less);
        let copied = times.vcpus.iter().filter(|time| time.vm >= vms);
        let copied_ns: u64 = copied.map(|time| time.run_ns).sum();
        Self {
            vms: (0..vms).map(quantities).collect(),
            vcpus: (0..vms).map(|vm| of_vm(times, vm).len()).collect(),
            in_halts: (0..vms).map(in_halts).collect(),
            has_wakeups: (0..vms).map(has_wakeups).collect(),
            others_ready: rate(recorded.ready_ns),
            others_work: rate(recorded.run_ns),
            others: recorded,
            vm_threads: times.vm_threads.clone(),
            uncompared: rate(copied_ns.saturating_add(copies_work)),
            span_ns,
            population: None,
            displaced: times.decisions.displaced() as f64 / span * 1e9,
        }
    }

    /// With the figures of all VMs, for a host with other numbers of them.
    pub(crate) fn with_population(self, population: Population) -> Self {
        Self {
            population: Some(population),
            ..self
        }
    }

    /// The figures of all VMs, on a host with other numbers of VMs or CPUs.
    pub(crate) const fn population(&self) -> Option<&Population> {
        self.population.as_ref()
    }

    /// Without these VMs and their threads, which a variant takes away.
    pub(crate) fn without(&self, removed: &[usize]) -> Self {
        let mut rest = self.clone();
        let rate = |ns: u64| ns as f64 / self.span_ns.max(1) as f64 * 1_000.0;
        for &vm in removed {
            rest.uncompared += self.value(vm, RUNNING);
            if let Some(values) = rest.vms.get_mut(vm) {
                *values = [0.0; QUANTITIES.len()];
            }
            if let Some(in_halts) = rest.in_halts.get_mut(vm) {
                *in_halts = 0.0;
            }
            if let Some(threads) = rest.vm_threads.remove(&vm) {
                rest.uncompared += rate(threads.run_ns);
                rest.others = less(rest.others, threads);
            }
        }
        rest.others_ready = rate(rest.others.ready_ns);
        rest.others_work = rate(rest.others.run_ns);
        rest
    }

    /// What a VM ran outside of halts, in ms per second: work that it got done.
    pub(crate) fn work(&self, vm: usize) -> f64 {
        self.value(vm, RUNNING) - self.in_halts.get(vm).copied().unwrap_or(0.0)
    }

    /// Work of all VMs and tasks, in ms per second.
    pub(crate) fn all_work(&self) -> f64 {
        self.sum(Self::work) + self.others_work
    }

    /// CPU time in halts of all VMs, in ms per second: polling, going to sleep and coming back.
    pub(crate) fn all_in_halts(&self) -> f64 {
        self.in_halts.iter().sum()
    }

    /// CPU time of the whole host, in ms per second.
    pub(crate) fn host_cpu(&self) -> f64 {
        self.sum(|measured, vm| measured.value(vm, RUNNING)) + self.others_work + self.uncompared
    }

    fn sum(&self, value: impl Fn(&Self, usize) -> f64) -> f64 {
        (0..self.vms.len()).map(|vm| value(self, vm)).sum()
    }

    /// What a VM ran, in ms per second.
    pub(crate) fn running(&self, vm: usize) -> f64 {
        self.value(vm, RUNNING)
    }

    /// A VM's waiting for a CPU, in ms per second.
    pub(crate) fn ready(&self, vm: usize) -> f64 {
        self.value(vm, READY)
    }

    /// Whether a VM has wakeups, so that their latency is known.
    pub(crate) fn has_wakeups(&self, vm: usize) -> bool {
        value_or_default(&self.has_wakeups, vm)
    }

    /// The 99th percentile of a VM's wakeups, in us; 0 without any.
    pub(crate) fn wakeup_p99(&self, vm: usize) -> f64 {
        self.value(vm, WAKEUP_P99)
    }

    /// The waiting of all VMs, in ms per second.
    pub(crate) fn all_ready(&self) -> f64 {
        self.sum(Self::ready)
    }

    /// Of these VMs, in this order.
    pub(crate) fn of_vms(self, vms: &[usize]) -> Self {
        let places = || vms.iter().copied();
        Self {
            vcpus: places()
                .map(|vm| value_or_default(&self.vcpus, vm))
                .collect(),
            in_halts: places()
                .map(|vm| value_or_default(&self.in_halts, vm))
                .collect(),
            has_wakeups: places()
                .map(|vm| value_or_default(&self.has_wakeups, vm))
                .collect(),
            vms: places().map(|vm| value_or_default(&self.vms, vm)).collect(),
            ..self
        }
    }

    /// With this CPU time of each VM in halts, in ms per second.
    pub(crate) fn with_in_halts(self, in_halts: Vec<f64>) -> Self {
        debug_assert_eq!(in_halts.len(), self.vms.len(), "one for each VM");
        Self { in_halts, ..self }
    }

    /// The median of a VM's wakeups, in us.
    pub(crate) fn wakeup_p50(&self, vm: usize) -> f64 {
        self.value(vm, WAKEUP_P50)
    }

    /// One of [`QUANTITIES`] of a VM.
    pub(crate) fn value(&self, vm: usize, quantity: usize) -> f64 {
        let values = self.vms.get(vm).and_then(|values| values.get(quantity));
        values.copied().unwrap_or(0.0)
    }
}

/// Times without a part of them.
const fn less(times: OtherTimes, part: OtherTimes) -> OtherTimes {
    OtherTimes {
        run_ns: times.run_ns.saturating_sub(part.run_ns),
        ready_ns: times.ready_ns.saturating_sub(part.ready_ns),
    }
}

fn value_or_default<T: Copy + Default>(values: &[T], index: usize) -> T {
    values.get(index).copied().unwrap_or_default()
}

/// Replays that a variant is judged by: as recorded, without the variant, with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Judged<'r> {
    pub(crate) recorded: &'r Measured,
    /// Replays under the recorded knobs: how far they are off by themselves.
    pub(crate) base: &'r [Measured],
    /// Replays that the variant is compared with, with the seeds of those with it.
    pub(crate) before: &'r [Measured],
    pub(crate) after: &'r [Measured],
    /// VMs that the variant takes away.
    pub(crate) removed: &'r [usize],
}

/// A quantity with and without a variant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Compared {
    pub(crate) before: f64,
    pub(crate) after: f64,
    pub(crate) difference: Difference,
    /// Smaller than what the replay itself is off by.
    pub(crate) below_error: bool,
}

impl Judged<'_> {
    /// Whether what `value` gives is 0 throughout.
    fn never(&self, value: impl Fn(&Measured) -> f64) -> bool {
        let replays = self.base.iter().chain(self.before).chain(self.after);
        std::iter::once(self.recorded)
            .chain(replays)
            .all(|replay| value(replay) == 0.0)
    }

    /// What the variant changes in what `value` gives; `None` without replays.
    pub(crate) fn compare(
        &self,
        better: Better,
        value: impl Fn(&Measured) -> f64,
    ) -> Option<Compared> {
        let pairs = self.before.iter().zip(self.after);
        let (before, after): (Vec<f64>, Vec<f64>) =
            pairs.map(|(a, b)| (value(a), value(b))).unzip();
        let difference = difference(&before, &after, better)?;
        let mean = |values: &mut dyn ExactSizeIterator<Item = f64>| {
            let n = values.len().max(1) as f64;
            values.sum::<f64>() / n
        };
        let distance = (mean(&mut self.base.iter().map(&value)) - value(self.recorded)).abs();
        Some(Compared {
            before: mean(&mut before.iter().copied()),
            after: mean(&mut after.iter().copied()),
            // Replays that are equal differ by nothing, however far they all are off.
            below_error: difference.verdict != Verdict::Same
                && difference.estimate.mean.abs() < distance,
            difference,
        })
    }
}

/// What a variant changes: of each quantity of each VM the difference.
fn changes(base: &Baseline, judged: Judged<'_>) -> Vec<Delta> {
    let mut changes = Vec::new();
    let vms = base.recorded.vms.iter().enumerate();
    for (vm, name) in vms.filter(|(vm, _)| !judged.removed.contains(vm)) {
        let vcpus = judged.recorded.vcpus.get(vm).copied().unwrap_or(0);
        for (index, (quantity, unit, better, _)) in QUANTITIES.into_iter().enumerate() {
            if index >= WAKEUP_P50 && judged.never(|replay| replay.value(vm, index)) {
                // It never waited for a CPU after a wakeup: that is not a latency of 0.
                continue;
            }
            let Some(compared) = judged.compare(better, |replay| replay.value(vm, index)) else {
                continue;
            };
            let mean = compared.difference.estimate.mean;
            changes.push(Delta {
                vm: name.clone(),
                vm_guessed: base.recorded.is_guessed(vm),
                place: (vm, index),
                quantity,
                unit,
                before: compared.before,
                after: compared.after,
                difference: compared.difference,
                below_error: compared.below_error,
                is_relevant: match index >= WAKEUP_P50 {
                    true => gain::is_relevant_latency(mean, compared.before),
                    false => gain::is_relevant(mean, vcpus),
                },
            });
        }
    }
    changes
}

/// Of a variant that has no knob and no pin that the replay as recorded has not.
pub(crate) const SAME_HOST: &str = "nothing changes: the host is taken to have had that already \
                                    (see Assumed; --host FILE corrects it)";

/// Of a variant with which all that is measured of each replay is what it is without.
const SAME_REPLAYS: &str = "nothing changes: every replay is the same with it";

/// The verdict of a VM with changes that are all smaller than the replay's own error.
const NOT_ANSWERABLE: &str = "not answerable (below the replay's error)";

impl Variant {
    /// Whether this recording cannot say what it does to some VM.
    pub(crate) fn is_unanswered(&self) -> bool {
        self.verdict.contains(NOT_ANSWERABLE)
    }
}

/// Of a replay that is further off than predictions are good for.
pub const TOO_FAR: &str = "the replay itself is too far from the recording to trust sizes";

/// What is near enough.
pub const CLOSE: &str = "Close is a median of at most 3 % and a 90th percentile of at most 8 % of \
    the span, over running, ready and halted time of each vCPU, and exits by reason within 5 %.";

/// What a variant means for the VMs, in words.
pub(crate) fn verdict(changes: &[Delta], close: bool) -> String {
    let mut parts = Vec::new();
    let mut vms: Vec<&str> = changes.iter().map(|change| change.vm.as_str()).collect();
    vms.dedup();
    for vm in vms {
        let of_vm = changes.iter().filter(|change| change.vm == vm);
        let judged = of_vm.filter(|change| ["ready", "wakeup p99"].contains(&change.quantity));
        let (below, answered): (Vec<&Delta>, Vec<&Delta>) =
            judged.partition(|change| change.below_error);
        let includes = |changes: &[&Delta], verdict: Verdict| {
            let mut verdicts = changes.iter().map(|change| change.difference.verdict);
            verdicts.any(|known| known == verdict)
        };
        let moves = includes(&below, Verdict::Better) || includes(&below, Verdict::Worse);
        let word = match (
            includes(&answered, Verdict::Better),
            includes(&answered, Verdict::Worse),
        ) {
            (true, false) => "better",
            (false, true) => "worse",
            (true, true) => "better in one thing and worse in another",
            (false, false) if moves => NOT_ANSWERABLE,
            (false, false) => "within noise",
        };
        parts.push(format!("{vm}: {word}"));
    }
    let trust = match close {
        true => String::new(),
        false => format!("; {TOO_FAR}"),
    };
    format!("{}{trust}", parts.join(", "))
}

//! What a variant gives, and what others lose by it: what variants are ranked by.

use std::cmp::Ordering;

use serde::Serialize;
use stealtime_lab::metric::Better;
use stealtime_lab::stats::{Estimate, Verdict};

use crate::baseline::Baseline;
use crate::result::{Compared, Judged, Measured};

/// The name for tasks that are no vCPUs.
pub const HOST_TASKS: &str = "host tasks";

/// What a difference means, compared with chance and with the error of the replay itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// The interval leaves out 0, on the better side.
    Better,
    /// The interval leaves out 0, on the worse side.
    Worse,
    /// All replays are equal.
    Same,
    /// The interval includes 0.
    WithinNoise,
    /// Less than the replay as recorded is off by itself.
    BelowError,
    /// One replay only.
    Unknown,
}

impl Word {
    /// Of a verdict; `below_error`: the difference is less than the replay as recorded is off by.
    pub(crate) const fn new(verdict: Verdict, below_error: bool) -> Self {
        match verdict {
            Verdict::Same => Self::Same,
            Verdict::WithinNoise => Self::WithinNoise,
            Verdict::Unknown => Self::Unknown,
            _ if below_error => Self::BelowError,
            Verdict::Better => Self::Better,
            Verdict::Worse | Verdict::Different => Self::Worse,
        }
    }

    /// Whether it says that something gains or loses.
    #[must_use]
    pub const fn is_change(self) -> bool {
        matches!(self, Self::Better | Self::Worse)
    }
}

/// What a variant means for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Some VM gains and none loses.
    Better,
    /// Some gain, some lose.
    Mixed,
    /// No VM gains or loses, and the host spends less CPU time.
    LessCpu,
    /// All replays are equal.
    Same,
    /// The intervals include 0.
    WithinNoise,
    /// What differs is less than the replay as recorded is off by itself.
    BelowError,
    /// Some lose and none gains.
    Worse,
}

/// A quantity with and without a variant.
#[derive(Debug, Clone, Serialize)]
pub struct Effect {
    /// The VM, or `host tasks`, `host`.
    pub who: String,
    /// On average without the variant.
    pub before: f64,
    /// On average with the variant.
    pub after: f64,
    /// Mean and interval of what is given back (more is better), or of the difference.
    pub change: Estimate,
    /// What the change means.
    pub word: Word,
    /// It is enough to matter.
    #[serde(skip)]
    pub is_relevant: bool,
}

/// A VM.
#[derive(Debug, Clone, Serialize)]
pub struct VmEffect {
    /// Whether its threads are a guess.
    pub vm_guessed: bool,
    /// Waiting for a CPU that its vCPUs are spared, in ms per second of all of them; `before` and
    /// `after` are the waiting.
    pub given_back: Effect,
    /// What it gets done (running outside of halts), in ms per second: demand is as recorded, so less
    /// means that it was left undone.
    pub work: Effect,
    /// 99th percentile of its wakeups, in us.
    pub wakeup_p99_us: Effect,
}

/// What a variant gives and takes. All but wakeups is in ms per second: of all vCPUs, all tasks or all
/// CPUs of the host together.
#[derive(Debug, Clone, Serialize)]
pub struct Gain {
    /// What it means for all.
    pub outcome: Outcome,
    /// The rank and the verdict of a variant, in ms per second: waiting given back and CPU time freed, less
    /// lost work and the additional waiting of host tasks.
    pub net: f64,
    /// The same with its interval.
    pub net_change: Estimate,
    /// What that means.
    pub net_word: Word,
    /// It is enough to matter: see `RELEVANT`.
    #[serde(skip)]
    pub is_relevant: bool,
    /// Over all VMs.
    pub given_back: Effect,
    /// CPU time of the host that is spent on nothing any more: what a replay can free is polling, less what
    /// sleeping instead takes.
    pub cpu_freed: Effect,
    /// Each VM.
    pub vms: Vec<VmEffect>,
    /// Waiting of tasks that are no vCPUs, spared.
    pub host_tasks: Effect,
    /// What those get done.
    pub host_tasks_work: Effect,
    /// What all get done.
    pub work: Effect,
    /// CPU time of the whole host.
    pub host_cpu: Effect,
    /// Switches to another task than the last one on that CPU, per second.
    pub displaced: Effect,
    /// The cost of such a switch, in us, from which on the additional ones take more than the net gain. A
    /// replay has a fixed demand, so it does not count work that is lost to cold caches and TLBs. Only where
    /// a gain comes with more switches.
    pub break_even_us: Option<f64>,
}

impl Gain {
    /// Of replays; `None` without any.
    pub(crate) fn new(base: &Baseline, judged: Judged<'_>) -> Option<Self> {
        let lower = |value: &dyn Fn(&Measured) -> f64| judged.compare(Better::Lower, value);
        let higher = |value: &dyn Fn(&Measured) -> f64| judged.compare(Better::Higher, value);
        let vcpus = judged.recorded.vcpus.iter().sum();
        let time = |subject: &str, compared: &Compared, sign: f64| {
            effect(subject, compared, sign, Some(vcpus))
        };
        let mut vms = Vec::new();
        for (vm, name) in base.recorded.vms.iter().enumerate() {
            let of_vm = judged.recorded.vcpus.get(vm).copied();
            let of_vm = Some(of_vm.unwrap_or(0));
            vms.push(VmEffect {
                vm_guessed: base.recorded.is_guessed(vm),
                given_back: effect(name, &lower(&|m| m.ready(vm))?, -1.0, of_vm),
                work: effect(name, &higher(&|m| m.work(vm))?, 1.0, of_vm),
                wakeup_p99_us: effect(name, &lower(&|m| m.wakeup_p99(vm))?, 1.0, None),
            });
        }
        let work = time("all", &higher(&Measured::all_work)?, 1.0);
        let host_tasks = time(HOST_TASKS, &lower(&|m| m.others_ready)?, -1.0);
        let cost = cost(&work, &host_tasks);
        let net = time("all", &lower(&cost)?, -1.0);
        let mut gain = Self {
            outcome: Outcome::WithinNoise,
            net: net.change.mean,
            net_change: net.change,
            net_word: net.word,
            is_relevant: net.is_relevant,
            given_back: time("all VMs", &lower(&Measured::all_ready)?, -1.0),
            cpu_freed: time("host", &lower(&Measured::all_in_halts)?, -1.0),
            vms,
            host_tasks,
            host_tasks_work: time(HOST_TASKS, &higher(&|m| m.others_work)?, 1.0),
            work,
            host_cpu: time("host", &lower(&Measured::host_cpu)?, 1.0),
            displaced: effect("host", &lower(&|m| m.displaced)?, 1.0, None),
            break_even_us: None,
        };
        gain.break_even_us = gain.break_even_us();
        gain.outcome = gain.judge();
        Some(gain)
    }

    fn break_even_us(&self) -> Option<f64> {
        let additional = self.displaced.change.mean;
        let pays = self.net_word == Word::Better && self.displaced.word == Word::Worse;
        // ms per second through switches per second.
        (pays && self.displaced.is_relevant && additional > 0.0)
            .then(|| self.net / additional * 1_000.0)
    }

    /// Follows the interval of the net change, which ranks. Only `mixed` and `less CPU` look at parts of it.
    fn judge(&self) -> Outcome {
        let words = || self.vms.iter().map(|vm| vm.given_back.word);
        let vms_gain = words().any(|word| word == Word::Better);
        let gains = vms_gain || self.given_back.word == Word::Better;
        let frees = self.cpu_freed.word == Word::Better;
        let loses = self.given_back.word == Word::Worse
            || self.work.word == Word::Worse
            || self.most_lost().is_some();
        match self.net_word {
            Word::Better if loses => Outcome::Mixed,
            Word::Better if frees && !gains => Outcome::LessCpu,
            Word::Better => Outcome::Better,
            Word::Worse if gains || frees => Outcome::Mixed,
            Word::Worse => Outcome::Worse,
            _ if vms_gain && loses => Outcome::Mixed,
            _ if frees && !gains && !loses => Outcome::LessCpu,
            Word::Same if words().all(|word| word == Word::Same) => Outcome::Same,
            Word::BelowError => Outcome::BelowError,
            Word::Same | Word::WithinNoise | Word::Unknown => Outcome::WithinNoise,
        }
    }

    /// The VM or tasks that lose most, beyond noise and what the replay is off by.
    #[must_use]
    pub fn most_lost(&self) -> Option<&Effect> {
        let vms = self.vms.iter();
        let vms = vms.flat_map(|vm| [&vm.given_back, &vm.work]);
        let effects = vms.chain([&self.host_tasks, &self.host_tasks_work]);
        effects
            .filter(|effect| effect.word == Word::Worse)
            .min_by(|a, b| a.change.mean.total_cmp(&b.change.mean))
    }

    /// The better one first; equals are equal.
    pub(crate) fn by_rank(&self, rival: &Self) -> Ordering {
        let (a, b) = (self.rank(), rival.rank());
        let orders = a.iter().zip(&b).map(|(a, b)| a.total_cmp(b));
        orders.fold(Ordering::Equal, Ordering::then)
    }

    /// The order of variants, less is better: first whether a net gain or loss is beyond noise and error,
    /// then its size, then the largest loss of a single VM.
    fn rank(&self) -> [f64; 3] {
        let class = match self.net_word {
            Word::Better => 0.0,
            Word::Same | Word::WithinNoise | Word::BelowError | Word::Unknown => 1.0,
            Word::Worse => 2.0,
        };
        let lost = self.most_lost().map_or(0.0, |lost| -lost.change.mean);
        [class, -self.net, lost]
    }
}

/// The value that a net gain lowers, in ms per second: waiting, and CPU time in halts. Lost work and
/// longer waits of the host's tasks add to it.
pub(crate) fn cost(work: &Effect, host_tasks: &Effect) -> impl Fn(&Measured) -> f64 + use<> {
    // More work than before is no gain beyond the waiting that it spares.
    let counts_work = work.change.mean < 0.0;
    let counts_tasks = host_tasks.word == Word::Worse;
    move |m: &Measured| {
        let work = if counts_work { m.all_work() } else { 0.0 };
        let tasks = if counts_tasks { m.others_ready } else { 0.0 };
        m.all_ready() + m.all_in_halts() - work + tasks
    }
}

/// From this share of vCPUs' time on a change matters, in ms per second of one vCPU: 0.1 %.
const RELEVANT: f64 = 1.0;
/// From this share of what it was on a latency does.
const RELEVANT_OF_LATENCY: f64 = 0.01;

/// Whether so many ms per second of so many vCPUs are enough to stand out.
pub(crate) fn is_relevant(change: f64, vcpus: usize) -> bool {
    change.abs() >= RELEVANT * vcpus as f64
}

/// Whether a latency that was `before` changes enough to stand out.
pub(crate) fn is_relevant_latency(change: f64, former: f64) -> bool {
    change.abs() >= RELEVANT_OF_LATENCY * former
}

/// A time of so many vCPUs, or a latency.
fn effect(subject: &str, compared: &Compared, sign: f64, vcpus: Option<usize>) -> Effect {
    let estimate = compared.difference.estimate;
    Effect {
        is_relevant: match vcpus {
            Some(vcpus) => is_relevant(estimate.mean, vcpus),
            None => is_relevant_latency(estimate.mean, compared.before),
        },
        who: subject.to_owned(),
        before: compared.before,
        after: compared.after,
        change: Estimate {
            // Adding 0 turns -0 into 0.
            mean: sign * estimate.mean + 0.0,
            ..estimate
        },
        word: Word::new(compared.difference.verdict, compared.below_error),
    }
}

//! What a variant gives, and what others lose by it: what variants are ranked by.

use std::cmp::Ordering;

use serde::Serialize;
use stealtime_lab::metric::Better;
use stealtime_lab::stats::{Estimate, Verdict};

use super::Base;
use super::result::{Compared, Judged, Measured};

/// Who tasks are that are no vCPUs.
pub(super) const HOST_TASKS: &str = "host tasks";

/// What a difference means beside chance and beside what the replay is off by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Word {
    Better,
    Worse,
    Same,
    WithinNoise,
    /// Less than the replay as recorded is off by itself.
    BelowError,
    /// One replay only.
    Unknown,
}

impl Word {
    fn of(compared: &Compared) -> Self {
        match compared.difference.verdict {
            Verdict::Same => Self::Same,
            Verdict::WithinNoise => Self::WithinNoise,
            Verdict::Unknown => Self::Unknown,
            _ if compared.below_error => Self::BelowError,
            Verdict::Better => Self::Better,
            Verdict::Worse | Verdict::Different => Self::Worse,
        }
    }
}

/// What a variant means for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Some VM gains and nobody loses.
    Better,
    /// Some gain, some lose.
    Mixed,
    /// No VM gains or loses, and the host spends less CPU time.
    LessCpu,
    Same,
    WithinNoise,
    /// What differs is less than the replay as recorded is off by itself.
    BelowError,
    /// Some lose and nobody gains.
    Worse,
}

/// A quantity with and without a variant.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Effect {
    /// The VM, or `host tasks`, `host`.
    pub(super) who: String,
    pub(super) before: f64,
    pub(super) after: f64,
    /// Mean and interval of what is given back (more is better), or of the difference.
    pub(super) change: Estimate,
    pub(super) word: Word,
}

/// A VM.
#[derive(Debug, Clone, Serialize)]
pub(super) struct VmEffect {
    pub(super) vm_guessed: bool,
    /// Waiting for a CPU that its vCPUs are spared, in ms per second of all of them; `before` and
    /// `after` are the waiting.
    pub(super) given_back: Effect,
    /// What it gets done (running outside of halts), in ms per second: demand is as recorded, so less
    /// means that it was left undone.
    pub(super) work: Effect,
    /// 99th percentile of its wakeups, in us.
    pub(super) wakeup_p99_us: Effect,
}

/// What a variant gives and takes. All but wakeups is in ms per second: of all vCPUs, all tasks or all
/// CPUs of the host together.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Gain {
    pub(super) outcome: Outcome,
    /// What variants are ranked by: waiting given back and CPU time freed, less what is left undone
    /// and what tasks of the host wait longer.
    pub(super) net: f64,
    /// Over all VMs.
    pub(super) given_back: Effect,
    /// CPU time of the host that is spent on nothing any more: what a replay can free is polling, less what
    /// sleeping instead takes.
    pub(super) cpu_freed: Effect,
    pub(super) vms: Vec<VmEffect>,
    /// Waiting of tasks that are no vCPUs, spared.
    pub(super) host_tasks: Effect,
    /// What those get done.
    pub(super) host_tasks_work: Effect,
    /// What all get done.
    pub(super) work: Effect,
    /// CPU time of the whole host.
    pub(super) host_cpu: Effect,
}

impl Gain {
    /// Of replays; `None` without any.
    pub(super) fn of(base: &Base, judged: Judged<'_>) -> Option<Self> {
        let less = |of: &dyn Fn(&Measured) -> f64| judged.compare(Better::Lower, of);
        let more = |of: &dyn Fn(&Measured) -> f64| judged.compare(Better::Higher, of);
        let mut vms = Vec::new();
        for (vm, name) in base.vms.iter().enumerate() {
            vms.push(VmEffect {
                vm_guessed: base.guessed(vm),
                given_back: effect(name, &less(&|m| m.ready(vm))?, -1.0),
                work: effect(name, &more(&|m| m.work(vm))?, 1.0),
                wakeup_p99_us: effect(name, &less(&|m| m.wakeup_p99(vm))?, 1.0),
            });
        }
        let mut gain = Self {
            outcome: Outcome::WithinNoise,
            net: 0.0,
            given_back: effect("all VMs", &less(&Measured::all_ready)?, -1.0),
            cpu_freed: effect("host", &less(&Measured::all_in_halts)?, -1.0),
            vms,
            host_tasks: effect(HOST_TASKS, &less(&|m| m.others_ready)?, -1.0),
            host_tasks_work: effect(HOST_TASKS, &more(&|m| m.others_work)?, 1.0),
            work: effect("all", &more(&Measured::all_work)?, 1.0),
            host_cpu: effect("host", &less(&Measured::host_cpu)?, 1.0),
        };
        gain.net = gain.sum();
        gain.outcome = gain.judge();
        Some(gain)
    }

    fn sum(&self) -> f64 {
        let tasks = match self.host_tasks.word {
            Word::Worse => self.host_tasks.change.mean,
            _ => 0.0,
        };
        let undone = self.work.change.mean.min(0.0);
        self.given_back.change.mean + self.cpu_freed.change.mean + undone + tasks
    }

    fn judge(&self) -> Outcome {
        let all = self.given_back.word;
        let words = || self.vms.iter().map(|vm| vm.given_back.word);
        let vms_gain = words().any(|word| word == Word::Better) || all == Word::Better;
        let frees = self.cpu_freed.word == Word::Better;
        let gains = vms_gain || frees;
        let is_worse = [all, self.work.word].contains(&Word::Worse);
        // One VM's gain is no gain for all where the others' small losses are more.
        let is_less = gains && self.net < 0.0;
        let loses = is_worse || is_less || self.most_lost().is_some();
        match (gains, loses) {
            (true, false) if vms_gain => Outcome::Better,
            (true, false) => Outcome::LessCpu,
            (true, true) => Outcome::Mixed,
            (false, true) => Outcome::Worse,
            (false, false) if words().all(|word| word == Word::Same) => Outcome::Same,
            (false, false) if words().any(|word| word == Word::BelowError) => Outcome::BelowError,
            (false, false) => Outcome::WithinNoise,
        }
    }

    /// Who loses most, beyond noise and what the replay is off by.
    pub(super) fn most_lost(&self) -> Option<&Effect> {
        let vms = self.vms.iter();
        let vms = vms.flat_map(|vm| [&vm.given_back, &vm.work]);
        let all = vms.chain([&self.host_tasks, &self.host_tasks_work]);
        all.filter(|effect| effect.word == Word::Worse)
            .min_by(|a, b| a.change.mean.total_cmp(&b.change.mean))
    }

    /// The better one first; equals are equal.
    pub(super) fn by_rank(&self, other: &Self) -> Ordering {
        let (a, b) = (self.rank(), other.rank());
        let orders = a.iter().zip(&b).map(|(a, b)| a.total_cmp(b));
        orders.fold(Ordering::Equal, Ordering::then)
    }

    /// What orders variants: whether anything is won, how much over all, what it takes from whom; less
    /// is better.
    fn rank(&self) -> [f64; 3] {
        let class = match self.outcome {
            Outcome::Better | Outcome::LessCpu => 0.0,
            Outcome::Mixed if self.net > 0.0 => 0.0,
            Outcome::Same | Outcome::WithinNoise | Outcome::BelowError => 1.0,
            Outcome::Mixed | Outcome::Worse => 2.0,
        };
        let lost = self.most_lost().map_or(0.0, |lost| -lost.change.mean);
        [class, -self.net, lost]
    }
}

fn effect(who: &str, compared: &Compared, sign: f64) -> Effect {
    let estimate = compared.difference.estimate;
    Effect {
        who: who.to_owned(),
        before: compared.before,
        after: compared.after,
        change: Estimate {
            // Adding 0 turns -0 into 0.
            mean: sign * estimate.mean + 0.0,
            ..estimate
        },
        word: Word::of(compared),
    }
}

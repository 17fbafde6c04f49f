//! `--auto`: changes tried one by one, and ranked.

use std::cmp::Ordering;

use serde::Serialize;
use stealtime_lab::metric::Better;
use stealtime_lab::stats::{Estimate, Verdict};

use super::Base;
use super::candidates::{self, Cannot};
use super::plan::Plan;
use super::replays;
use super::result::{self, Compared, Judged, Measured, Variant};
use crate::error::CliError;

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

/// What a change means for all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Outcome {
    /// Some VM gains and nobody loses.
    Better,
    /// Some gain, some lose.
    Mixed,
    /// Nobody gains or loses, and the host spends less CPU time.
    LessCpu,
    Same,
    WithinNoise,
    /// What differs is less than the replay as recorded is off by itself.
    BelowError,
    /// Some lose and nobody gains.
    Worse,
}

/// A quantity with and without a change.
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
    /// Waiting for a CPU that its vCPUs are spared, in ms per second of their time; `before` and
    /// `after` are the waiting.
    pub(super) given_back: Effect,
    /// What it gets done (running without polling), in ms per second of its vCPUs' time: demand is
    /// as recorded, so less means that it was left undone.
    pub(super) work: Effect,
    /// 99th percentile of its wakeups, in us.
    pub(super) wakeup_p99_us: Effect,
}

/// A change that was tried.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tried {
    pub(super) name: String,
    /// What asks `whatif` for this alone.
    pub(super) arguments: Vec<String>,
    #[serde(skip)]
    plan: Plan,
    pub(super) why: String,
    pub(super) outcome: Outcome,
    /// What is given back, less what is left undone, in ms per second of all vCPUs' time: changes
    /// with the same outcome are ranked by it.
    pub(super) net: f64,
    /// Over all VMs, in ms per second of all vCPUs' time.
    pub(super) given_back: Effect,
    pub(super) vms: Vec<VmEffect>,
    /// Waiting of tasks that are no vCPUs, spared, in ms per second.
    pub(super) host_tasks: Effect,
    /// What those get done, in ms per second.
    pub(super) host_tasks_work: Effect,
    /// What all get done, in ms per second.
    pub(super) work: Effect,
    /// CPU time of the whole host, in ms per second.
    pub(super) host_cpu: Effect,
}

/// All of `--auto`.
#[derive(Debug, Serialize)]
pub(super) struct Auto {
    /// What was set for all of them, as a variant's name; empty: the recorded knobs.
    pub(super) on_top_of: String,
    /// Replays that were run, and of each change.
    pub(super) replays: usize,
    pub(super) seeds: u64,
    /// The best first.
    pub(super) tried: Vec<Tried>,
    /// Changes that were left out, being more than are tried in one call.
    pub(super) left_out: usize,
    pub(super) cannot: Vec<Cannot>,
}

impl Auto {
    /// The best changes, with what they come on top of.
    pub(super) fn best(&self, first: &[Plan], most: usize) -> Vec<Plan> {
        let first = first.first().cloned().unwrap_or_default();
        let best = self.tried.iter().take(most);
        best.map(|tried| tried.plan.on_top_of(&first)).collect()
    }
}

/// Chooses, replays and ranks; the variants are in the order of the ranks.
pub(super) fn run(
    verb: &super::WhatIf,
    base: &Base,
    first: &Plan,
    close: bool,
) -> Result<(Auto, Vec<Variant>), CliError> {
    let chosen = candidates::choose(base, first)?;
    let mut plans = vec![Plan::default().prepare(base)?];
    // What they come on top of, unless that is nothing.
    let before = usize::from(!first.is_empty());
    if before == 1 {
        plans.push(first.prepare(base)?);
    }
    for candidate in &chosen.candidates {
        plans.push(candidate.plan.on_top_of(first).prepare(base)?);
    }
    let replays = match chosen.candidates.is_empty() {
        true => Vec::new(),
        false => replays::all(base, &plans, verb.seeds, verb.threads())?,
    };
    let recorded = base.measured();
    let mut rows = Vec::new();
    for (at, candidate) in chosen.candidates.iter().enumerate() {
        let (Some(zero), Some(one), Some(after)) = (
            replays.first(),
            replays.get(before),
            replays.get(before + 1 + at),
        ) else {
            continue;
        };
        let judged = Judged {
            recorded: &recorded,
            base: zero,
            before: one,
            after,
        };
        let why = chosen.reasons.get(candidate.reason);
        let why = why.cloned().unwrap_or_default();
        let Some(row) = tried(base, &candidate.plan, why, judged) else {
            continue;
        };
        let changes = result::changes(&base.vms, judged);
        let variant = Variant {
            name: row.name.clone(),
            verdict: result::verdict(&changes, close),
            changes,
        };
        rows.push((row, variant));
    }
    rows.sort_by(|a, b| by_rank(&a.0, &b.0));
    let (tried, variants) = rows.into_iter().unzip();
    let auto = Auto {
        on_top_of: first.name(),
        replays: replays.iter().map(Vec::len).sum(),
        seeds: verb.seeds,
        tried,
        left_out: chosen.left_out,
        cannot: chosen.cannot,
    };
    Ok((auto, variants))
}

/// The better one first; equals stay in their order.
fn by_rank(a: &Tried, b: &Tried) -> Ordering {
    let (a, b) = (rank(a), rank(b));
    let orders = a.iter().zip(&b).map(|(a, b)| a.total_cmp(b));
    orders.fold(Ordering::Equal, Ordering::then)
}

/// What orders changes: what comes of it, what it gives back, what it takes, what it costs; smaller
/// is better.
fn rank(tried: &Tried) -> [f64; 4] {
    let class = match tried.outcome {
        Outcome::Better => 0.0,
        Outcome::Mixed if tried.net > 0.0 => 1.0,
        Outcome::LessCpu => 2.0,
        Outcome::Same | Outcome::WithinNoise | Outcome::BelowError => 3.0,
        Outcome::Mixed => 4.0,
        Outcome::Worse => 5.0,
    };
    let lost = tried.most_lost().map_or(0.0, |lost| -lost.change.mean);
    [class, -tried.net, lost, tried.host_cpu.change.mean]
}

impl Tried {
    /// Who loses most, beyond noise and what the replay is off by.
    pub(super) fn most_lost(&self) -> Option<&Effect> {
        let vms = self.vms.iter();
        let vms = vms.flat_map(|vm| [&vm.given_back, &vm.work]);
        let all = vms.chain([&self.host_tasks, &self.host_tasks_work]);
        all.filter(|effect| effect.word == Word::Worse)
            .min_by(|a, b| a.change.mean.total_cmp(&b.change.mean))
    }
}

fn effect(who: &str, compared: &Compared, scale: f64, sign: f64) -> Effect {
    let estimate = compared.difference.estimate;
    Effect {
        who: who.to_owned(),
        before: compared.before * scale,
        after: compared.after * scale,
        change: Estimate {
            // Adding 0 turns -0 into 0.
            mean: sign * estimate.mean * scale + 0.0,
            half_width: estimate.half_width.map(|half| half * scale),
            n: estimate.n,
        },
        word: Word::of(compared),
    }
}

fn tried(base: &Base, plan: &Plan, why: String, judged: Judged<'_>) -> Option<Tried> {
    let less = |of: &dyn Fn(&Measured) -> f64| judged.compare(Better::Lower, of);
    let more = |of: &dyn Fn(&Measured) -> f64| judged.compare(Better::Higher, of);
    let mut vms = Vec::new();
    let mut vcpus = 0.0;
    for (vm, name) in base.vms.iter().enumerate() {
        let n = base.recorded.vcpus.iter().filter(|time| time.vm == vm);
        let n = n.count() as f64;
        vcpus += n;
        let each = 1.0 / f64::max(n, 1.0);
        vms.push(VmEffect {
            given_back: effect(name, &less(&|m| m.ready(vm))?, each, -1.0),
            work: effect(name, &more(&|m| m.work(vm))?, each, 1.0),
            wakeup_p99_us: effect(name, &less(&|m| m.wakeup_p99(vm))?, 1.0, 1.0),
        });
    }
    let all = less(&Measured::all_ready)?;
    let host_tasks = effect("host tasks", &less(&|m| m.others_ready)?, 1.0, -1.0);
    let host_tasks_work = effect("host tasks", &more(&|m| m.others_work)?, 1.0, 1.0);
    let work = effect("all", &more(&Measured::all_work)?, 1.0, 1.0);
    let host_cpu = effect("host", &less(&Measured::host_cpu)?, 1.0, 1.0);
    let given_back = effect("all VMs", &all, 1.0 / f64::max(vcpus, 1.0), -1.0);
    let mut tried = Tried {
        name: plan.name(),
        arguments: plan.arguments(),
        plan: plan.clone(),
        why,
        outcome: Outcome::WithinNoise,
        net: given_back.change.mean + work.change.mean.min(0.0) / f64::max(vcpus, 1.0),
        given_back,
        vms,
        host_tasks,
        host_tasks_work,
        work,
        host_cpu,
    };
    tried.outcome = outcome(&tried);
    Some(tried)
}

fn outcome(tried: &Tried) -> Outcome {
    let (all, cpu) = (tried.given_back.word, &tried.host_cpu);
    let words = || tried.vms.iter().map(|vm| vm.given_back.word);
    let gains = words().any(|word| word == Word::Better) || all == Word::Better;
    let is_worse = [all, tried.work.word].contains(&Word::Worse);
    // One VM's gain is no gain for all where the others' small losses are more.
    let is_less = gains && tried.net < 0.0;
    let loses = is_worse || is_less || tried.most_lost().is_some();
    match (gains, loses) {
        (true, false) => Outcome::Better,
        (true, true) => Outcome::Mixed,
        (false, true) => Outcome::Worse,
        (false, false) if cpu.word == Word::Better => Outcome::LessCpu,
        (false, false) if words().all(|word| word == Word::Same) => Outcome::Same,
        (false, false) if words().any(|word| word == Word::BelowError) => Outcome::BelowError,
        (false, false) => Outcome::WithinNoise,
    }
}

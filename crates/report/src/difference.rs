//! What differs between two sets of recordings, by VM and cause.
//!
//! Values are per second of the VM's vCPU time. The interval of a change is that of batch means by Welch's t.
//! A batch is a slice of a recording; with three recordings or more on a side, it is a recording. Nothing is
//! drawn by chance, so the same recordings give the same intervals.

mod settings;

use std::collections::BTreeSet;

use serde::Serialize;
use stealtime_analysis::Answers;
use stealtime_analysis::answers::{VcpuTime, cause_in_words};
use stealtime_lab::stats::welch_half_width;

pub use settings::settings;

/// Slices of a recording. Fewer give wide intervals by the t quantile; in more, waits that span slices
/// make neighbors alike.
pub const SLICES: u16 = 8;
/// From this many recordings on a side, each is a batch.
const SET: usize = 3;
/// Less than this matters to nothing, in ms per second of vCPU time: 0.1 %.
const RELEVANT_MS: f64 = 1.0;
/// Of a rate in events, that share of the larger one.
const RELEVANT_SHARE: f64 = 0.05;
/// Fewer events in a second of vCPU time are rare.
const RARE: f64 = 10.0;
/// Steal needs one of these tracepoints. A side that lacks them names the first.
const OF_STEAL: &[&str] = &["sched_switch"];
/// Guest time and exits need one of these. A host of which no VM halts has no event of polling either, so
/// nothing shows whether that is recorded.
const OF_EXITS: &[&str] = &["kvm_exit", "kvm_entry"];

/// One recording: as a whole, and its slices.
#[derive(Debug, Clone, Default)]
pub struct Part {
    /// Answers of all of it.
    pub whole: Answers,
    /// Answers of its slices, in their order.
    pub slices: Vec<Answers>,
}

/// What a change means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// Beyond the noise, and less of what costs.
    Better,
    /// Beyond the noise, and more of what costs.
    Worse,
    /// Beyond the noise, of what is neither good nor bad.
    Different,
    /// The interval includes 0, or the change is too small to matter.
    WithinNoise,
    /// Too few slices for an interval.
    Unknown,
}

/// A quantity of a VM before and after.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// The VM.
    pub vm: String,
    /// `guest`, `exits`, `polling`, `asleep`, `steal`; of steal `ready`, of exits `exit_rate`.
    pub quantity: &'static str,
    /// Of `ready` the cause, as in `ready[].cause`; of `exit_rate` the reason.
    pub cause: Option<String>,
    /// `ms/s` or `1/s`, of the VM's vCPU time.
    pub unit: &'static str,
    /// Before.
    pub before: f64,
    /// After.
    pub after: f64,
    /// After less before.
    pub change: f64,
    /// Half of the 95 % interval of the change.
    pub half_width: Option<f64>,
    /// What it means.
    pub word: Word,
}

/// A setting that differs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its key in a snapshot, such as `kvm.parameters.halt_poll_ns`.
    pub key: String,
    /// Before.
    pub before: Option<String>,
    /// After.
    pub after: Option<String>,
}

/// One side.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Side {
    /// The recordings.
    pub recordings: Vec<String>,
    /// Those of which less was read than was recorded.
    pub partial: Vec<String>,
    /// The hosts' kernels, each once.
    pub kernels: Vec<String>,
    /// Their lengths together, in ns.
    pub span_ns: u64,
    /// Batches for the intervals: slices or recordings.
    pub batches: usize,
    /// VMs that only this side has.
    pub only_here: Vec<String>,
    /// VMs with names guessed by thread ids, so that their match is a guess too.
    pub guessed: Vec<String>,
    /// Tracepoints that one of its recordings lacks, so that quantities are not compared.
    pub lacks: Vec<&'static str>,
}

/// Two sets of recordings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// Without the change.
    pub before: Side,
    /// With it.
    pub after: Side,
    /// Findings, largest first.
    pub findings: Vec<String>,
    /// Settings that differ, where both sides have a snapshot; `null`: one of them has none.
    pub settings: Option<Vec<Setting>>,
    /// Each quantity of each VM that both have.
    pub changes: Vec<Change>,
}

/// How good more of a quantity is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    Neither,
}

/// A quantity and how it is read.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Quantity {
    Steal,
    Ready(String),
    Guest,
    Exits,
    Polling,
    Asleep,
    ExitRate(String),
}

impl Quantity {
    const fn name(&self) -> &'static str {
        match self {
            Self::Steal => "steal",
            Self::Ready(_) => "ready",
            Self::Guest => "guest",
            Self::Exits => "exits",
            Self::Polling => "polling",
            Self::Asleep => "asleep",
            Self::ExitRate(_) => "exit_rate",
        }
    }

    fn cause(&self) -> Option<&String> {
        match self {
            Self::Ready(cause) | Self::ExitRate(cause) => Some(cause),
            _ => None,
        }
    }

    const fn better(&self) -> Better {
        match self {
            // A VM that runs more exits more, and polling saves wakeups.
            Self::Steal | Self::Ready(_) => Better::Less,
            _ => Better::Neither,
        }
    }

    /// Whether a side shows it. Without its events it is 0, which is no value of the host.
    fn is_of(&self, side: &Side) -> bool {
        let needed = match self {
            Self::Steal | Self::Ready(_) => OF_STEAL[0],
            Self::Guest | Self::Exits | Self::ExitRate(_) => OF_EXITS[0],
            Self::Polling | Self::Asleep => return true,
        };
        !side.lacks.contains(&needed)
    }

    const fn is_rate(&self) -> bool {
        matches!(self, Self::ExitRate(_))
    }

    /// The quantity of a VM, and its vCPUs' time in ns.
    fn read(&self, answers: &Answers, vm: &str) -> (f64, f64) {
        let vcpus = || answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
        let sum = |time: fn(&VcpuTime) -> u64| vcpus().map(time).map(|ns| ns as f64).sum::<f64>();
        let value = match self {
            Self::Steal => sum(|vcpu| vcpu.preempted_ns.saturating_add(vcpu.wake_wait_ns)),
            Self::Guest => sum(|vcpu| vcpu.guest_ns.unwrap_or(0)),
            Self::Exits => sum(|vcpu| vcpu.exit_ns.unwrap_or(0)),
            Self::Polling => sum(|vcpu| vcpu.poll_ns.unwrap_or(0)),
            Self::Asleep => sum(|vcpu| vcpu.halt_ns),
            Self::Ready(cause) => {
                let rows = answers.ready.iter();
                let rows = rows.filter(|row| row.vm == vm && row.cause == *cause);
                rows.map(|row| row.ns as f64).sum()
            }
            Self::ExitRate(reason) => {
                let reasons = vcpus().flat_map(|vcpu| &vcpu.exit_ns_by_reason);
                let reasons = reasons.filter(|row| row.reason == *reason);
                reasons.map(|row| row.count as f64).sum()
            }
        };
        (value, sum(|vcpu| vcpu.span_ns))
    }

    /// Its value in these answers together, per second of vCPU time.
    fn value<'a>(&self, answers: impl Iterator<Item = &'a Answers>, vm: &str) -> Option<f64> {
        let sums = answers.map(|answers| self.read(answers, vm));
        let (value, span) = sums.fold((0.0, 0.0), |sum, part| (sum.0 + part.0, sum.1 + part.1));
        // Of ns in a second: ms. Of events: as they are.
        let scale = if self.is_rate() { 1e9 } else { 1e3 };
        (span > 0.0).then(|| value / span * scale)
    }
}

fn whole(parts: &[Part]) -> impl Iterator<Item = &Answers> {
    parts.iter().map(|part| &part.whole)
}

/// What intervals are computed from.
fn batches(parts: &[Part]) -> Vec<&Answers> {
    match parts.len() >= SET {
        true => whole(parts).collect(),
        false => parts.iter().flat_map(|part| &part.slices).collect(),
    }
}

fn vms(parts: &[Part]) -> BTreeSet<&str> {
    whole(parts)
        .flat_map(|answers| answers.vms.iter().map(|vm| vm.vm.as_str()))
        .collect()
}

/// Whether each recording has one of these tracepoints.
fn has(parts: &[Part], tracepoints: &[&str]) -> bool {
    whole(parts).all(|answers| {
        let mut events = answers.events.iter();
        events.any(|event| tracepoints.contains(&event.name.as_str()))
    })
}

fn side(parts: &[Part], rival: &[Part]) -> Side {
    let kernels: BTreeSet<&String> = whole(parts)
        .filter_map(|answers| answers.source.uname.as_ref())
        .collect();
    let spans = whole(parts).map(|answers| answers.source.span_ns);
    let rival_vms = vms(rival);
    let guesses = whole(parts).flat_map(|answers| answers.vms.iter().filter(|vm| vm.guessed));
    let guesses: BTreeSet<&str> = guesses.map(|vm| vm.vm.as_str()).collect();
    let only_here = vms(parts).into_iter().filter(|vm| !rival_vms.contains(vm));
    let needed = [OF_STEAL, OF_EXITS].into_iter();
    let lacks = needed.filter(|tracepoints| !has(parts, tracepoints));
    let partial = whole(parts).filter(|answers| answers.source.partial);
    let path = |answers: &Answers| answers.source.path.clone();
    Side {
        recordings: whole(parts).map(path).collect(),
        partial: partial.map(path).collect(),
        kernels: kernels.into_iter().cloned().collect(),
        span_ns: spans.fold(0, u64::saturating_add),
        batches: batches(parts).len(),
        only_here: only_here.map(str::to_owned).collect(),
        guessed: guesses.into_iter().map(str::to_owned).collect(),
        lacks: lacks.map(|tracepoints| tracepoints[0]).collect(),
    }
}

fn change(quantity: &Quantity, vm: &str, first: &[Part], second: &[Part]) -> Option<Change> {
    let old = quantity.value(whole(first), vm)?;
    let new = quantity.value(whole(second), vm)?;
    if old == 0.0 && new == 0.0 {
        return None;
    }
    let values = |parts: &[Part]| -> Vec<f64> {
        let batches = batches(parts).into_iter();
        batches
            .filter_map(|batch| quantity.value(std::iter::once(batch), vm))
            .collect()
    };
    let half_width = welch_half_width(&values(first), &values(second));
    let difference = new - old;
    let matters = match quantity.is_rate() {
        true => difference.abs() >= (RELEVANT_SHARE * old.max(new)).max(RARE),
        false => difference.abs() >= RELEVANT_MS,
    };
    let word = match half_width {
        None => Word::Unknown,
        Some(half_width) if difference.abs() <= half_width || !matters => Word::WithinNoise,
        Some(_) if quantity.better() == Better::Neither => Word::Different,
        Some(_) if difference < 0.0 => Word::Better,
        Some(_) => Word::Worse,
    };
    Some(Change {
        vm: vm.to_owned(),
        quantity: quantity.name(),
        cause: quantity.cause().cloned(),
        unit: if quantity.is_rate() { "1/s" } else { "ms/s" },
        before: old,
        after: new,
        change: difference,
        half_width,
        word,
    })
}

/// Every quantity that a VM has on either side.
fn quantities(parts: &[&[Part]], vm: &str) -> Vec<Quantity> {
    let answers = || parts.iter().flat_map(|parts| whole(parts));
    let ready = answers()
        .flat_map(|answers| &answers.ready)
        .filter(|row| row.vm == vm);
    let causes: BTreeSet<&String> = ready.map(|row| &row.cause).collect();
    let vcpus = answers()
        .flat_map(|answers| &answers.vcpus)
        .filter(|vcpu| vcpu.vm == vm);
    let reasons = vcpus.flat_map(|vcpu| &vcpu.exit_ns_by_reason);
    let reasons: BTreeSet<&String> = reasons.map(|row| &row.reason).collect();
    let causes = causes.into_iter().cloned().map(Quantity::Ready);
    let rates = reasons.into_iter().cloned().map(Quantity::ExitRate);
    let splits = [
        Quantity::Guest,
        Quantity::Exits,
        Quantity::Polling,
        Quantity::Asleep,
    ];
    std::iter::once(Quantity::Steal)
        .chain(causes)
        .chain(splits)
        .chain(rates)
        .collect()
}

/// Compares two sets of recordings.
#[must_use]
pub fn compare(first: &[Part], second: &[Part], settings: Option<Vec<Setting>>) -> Comparison {
    let sides = [side(first, second), side(second, first)];
    let old_vms = vms(first);
    let new_vms = vms(second);
    let mut changes = Vec::new();
    for vm in old_vms.intersection(&new_vms) {
        let mut quantities = quantities(&[first, second], vm);
        quantities.retain(|quantity| sides.iter().all(|side| quantity.is_of(side)));
        changes.extend(
            quantities
                .iter()
                .filter_map(|quantity| change(quantity, vm, first, second)),
        );
    }
    let findings = found(&changes).into_iter().map(|(_, sentence)| sentence);
    let [old_side, new_side] = sides;
    Comparison {
        before: old_side,
        after: new_side,
        findings: findings.collect(),
        settings,
        changes,
    }
}

/// Changes of steal, exits and polling beyond the noise, each with its sentence, largest first.
pub(crate) fn found(changes: &[Change]) -> Vec<(&Change, String)> {
    let costs = |change: &&Change| {
        matches!(change.quantity, "steal" | "exits" | "polling")
            && matches!(change.word, Word::Better | Word::Worse | Word::Different)
    };
    let mut found: Vec<&Change> = changes.iter().filter(costs).collect();
    found.sort_by(|a, b| {
        b.change
            .abs()
            .total_cmp(&a.change.abs())
            .then_with(|| a.vm.cmp(&b.vm))
    });
    found
        .into_iter()
        .map(|change| (change, sentence(change, changes)))
        .collect()
}

fn sentence(change: &Change, changes: &[Change]) -> String {
    let verb = match change.quantity {
        "steal" => "waits for a CPU",
        "exits" => "handles exits",
        _ => "polls in halts",
    };
    let direction = if change.change > 0.0 { "more" } else { "less" };
    let parts = match change.quantity {
        "steal" => "ready",
        _ => "exit_rate",
    };
    let same_way = |part: &&Change| {
        let is_part = part.vm == change.vm && part.quantity == parts;
        is_part && part.change * change.change > 0.0 && part.word != Word::WithinNoise
    };
    let largest = changes
        .iter()
        .filter(same_way)
        .max_by(|a, b| a.change.abs().total_cmp(&b.change.abs()));
    let cause = largest
        .filter(|_| change.quantity != "polling")
        .map(|part| {
            let name = part.cause.as_deref().unwrap_or_default();
            match part.quantity {
                "ready" => {
                    let name = cause_in_words(name).trim_matches(['(', ')']);
                    format!("; most of it: {name}, {:+.1} ms", part.change)
                }
                _ => format!("; the largest change: {:+.1} exits by {name}", part.change),
            }
        });
    let cause = cause.unwrap_or_default();
    format!(
        "{} {verb} {:.1} ms {direction} in each second of its vCPUs' time ({:.1} to {:.1}, change ±{:.1}){cause}.",
        change.vm,
        change.change.abs(),
        change.before,
        change.after,
        change.half_width.unwrap_or(0.0),
    )
}

#[cfg(test)]
mod tests {
    use stealtime_analysis::answers::{EventCount, Vm};

    use super::*;

    fn answers(steal_ns: u64) -> Answers {
        let event = |name: &str| EventCount {
            name: name.to_owned(),
            count: 1,
            today: None,
        };
        Answers {
            events: vec![event("sched_switch"), event("kvm_exit")],
            vms: vec![Vm {
                vm: "web".to_owned(),
                pid: None,
                vcpus: 1,
                grouped_by: "user".to_owned(),
                guessed: false,
            }],
            vcpus: vec![VcpuTime {
                vm: "web".to_owned(),
                span_ns: 1_000_000_000,
                preempted_ns: steal_ns,
                ..VcpuTime::default()
            }],
            ..Answers::default()
        }
    }

    fn part(steals: [u64; 4]) -> Part {
        Part {
            whole: answers(steals.iter().sum::<u64>() / 4),
            slices: steals.map(answers).to_vec(),
        }
    }

    #[test]
    fn a_change_beyond_the_noise_is_found() {
        let before = [part([10_000_000, 12_000_000, 8_000_000, 10_000_000])];
        let after = [part([50_000_000, 52_000_000, 48_000_000, 50_000_000])];
        let comparison = compare(&before, &after, None);
        let steal = &comparison.changes[0];
        assert_eq!((steal.before, steal.after), (10.0, 50.0));
        assert_eq!(steal.word, Word::Worse);
        // 2.447 (6 degrees of freedom) * sqrt(2 * (8/3) / 4)
        let half_width = steal.half_width.expect("four slices");
        assert!((half_width - 2.825).abs() < 0.01, "{half_width}");
        assert!(comparison.findings[0].starts_with("web waits for a CPU 40.0 ms more"));
        let none = compare(&before, &before, None);
        assert_eq!(none.changes[0].word, Word::WithinNoise);
        assert!(none.findings.is_empty());
    }

    #[test]
    fn three_recordings_on_a_side_are_batches() {
        let steals = [10_000_000; 4];
        let set = [part(steals), part(steals), part(steals)];
        assert_eq!(compare(&set, &set[..2], None).before.batches, 3);
        assert_eq!(compare(&set, &set[..2], None).after.batches, 8);
    }

    #[test]
    fn small_changes_are_within_the_noise_and_one_slice_has_no_interval() {
        let before = [part([10_000_000; 4])];
        let small = compare(&before, &[part([10_400_000; 4])], None);
        assert_eq!(small.changes[0].word, Word::WithinNoise);
        let whole = [Part {
            whole: answers(50_000_000),
            slices: Vec::new(),
        }];
        let unknown = compare(&before, &whole, None);
        assert_eq!(
            (unknown.changes[0].word, unknown.changes[0].half_width),
            (Word::Unknown, None)
        );
    }

    #[test]
    fn what_a_recording_does_not_show_is_not_compared() {
        let with_exits = |mut part: Part| {
            for answers in std::iter::once(&mut part.whole).chain(&mut part.slices) {
                answers.vcpus[0].guest_ns = Some(900_000_000);
                answers.vcpus[0].exit_ns = Some(90_000_000);
            }
            part
        };
        let without_exits = |mut part: Part| {
            part.whole.events.retain(|event| event.name != "kvm_exit");
            part
        };
        let before = [with_exits(part([10_000_000; 4]))];
        let quantities = |comparison: &Comparison| -> Vec<&str> {
            let changes = comparison.changes.iter();
            changes.map(|change| change.quantity).collect()
        };
        let both = compare(&before, &before, None);
        assert_eq!(quantities(&both), ["steal", "guest", "exits"]);
        assert!(both.after.lacks.is_empty());
        let one = compare(&before, &[without_exits(part([50_000_000; 4]))], None);
        assert_eq!(quantities(&one), ["steal"]);
        assert_eq!(one.after.lacks, ["kvm_exit"]);
        assert_eq!(one.findings.len(), 1);
    }

    #[test]
    fn vms_of_one_side_are_listed() {
        let mut other = part([0; 4]);
        "db".clone_into(&mut other.whole.vms[0].vm);
        let comparison = compare(&[part([0; 4])], &[other], None);
        assert_eq!(comparison.before.only_here, ["web"]);
        assert_eq!(comparison.after.only_here, ["db"]);
        assert!(comparison.changes.is_empty());
    }
}

//! What is said of a recording before anything is replayed: what it lacks, who is not there all the
//! time, and what remains answerable.

use std::collections::BTreeSet;
use std::fmt;

use serde::Serialize;
use stealtime_analysis::{Answers, vcpu_in_name};
use stealtime_replay::Recording;

use super::Base;
use crate::error::CliError;

/// What a recording answers though it lacks something. Serialized as the words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub(super) enum Answered {
    /// All that a replay can, with this to be said of it, if anything.
    Everything(&'static str),
    /// This alone.
    Part(&'static str),
}

impl Answered {
    const fn is_everything(&self) -> bool {
        matches!(self, Self::Everything(_))
    }
}

impl fmt::Display for Answered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Everything(said) => write!(f, "everything{said}"),
            Self::Part(what) => f.write_str(what),
        }
    }
}

impl From<Answered> for String {
    fn from(answered: Answered) -> Self {
        answered.to_string()
    }
}

/// Something that a recording lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Lack {
    /// What is not there.
    pub(super) what: String,
    /// What that means for a replay.
    pub(super) means: String,
    /// What is answered all the same.
    pub(super) answers: Answered,
    /// What to record, or to do, to have it.
    pub(super) record: String,
}

impl Lack {
    fn new(what: &str, means: &str, answers: Answered, record: &str) -> Self {
        Self {
            what: what.to_owned(),
            means: means.to_owned(),
            answers,
            record: record.to_owned(),
        }
    }

    /// As a sentence each.
    pub(super) fn shown(&self) -> String {
        format!(
            "{}: {}. Answered: {}. Record: {}",
            self.what, self.means, self.answers, self.record
        )
    }
}

/// A vCPU or a VM, or tasks of the host, that the recording has for a part of its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Partly {
    /// `vm1`, `vm1 vCPU 0`.
    pub(super) who: String,
    /// When it begins, in ns of the recording; `None` with the recording, or before.
    pub(super) from_ns: Option<u64>,
    /// Whether its fork was recorded; otherwise it was first seen then.
    pub(super) begin_is_recorded: bool,
    /// When it ends; `None` with the recording, or after.
    pub(super) to_ns: Option<u64>,
}

/// Who is not there all the time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Presence {
    /// VMs and vCPUs that begin or end in the middle.
    pub(super) partly: Vec<Partly>,
    /// Tasks that are no vCPUs: so many begin in the middle, so many end.
    pub(super) tasks_begin: usize,
    pub(super) tasks_end: usize,
    /// vCPUs that never ran.
    pub(super) never_ran: Vec<String>,
}

impl Presence {
    /// Of the whole recording.
    pub(super) fn of(base: &Base) -> Self {
        let recording = &base.recording;
        let mut partly = Vec::new();
        for (vm, name) in base.vms.iter().enumerate() {
            of_vm(recording, vm, name, &mut partly);
        }
        let others = || recording.tasks.iter().filter(|task| task.vcpu.is_none());
        let begins = others().filter(|task| task.begins.is_some_and(|begins| begins.is_seen));
        Self {
            partly,
            tasks_begin: begins.count(),
            tasks_end: others().filter(|task| task.ends_ns.is_some()).count(),
            never_ran: never_ran(base),
        }
    }

    /// As sentences.
    pub(super) fn lines(&self) -> Vec<String> {
        let seconds = |ns: u64| format!("{:.3} s", ns as f64 / 1e9);
        let mut lines: Vec<String> = self
            .partly
            .iter()
            .map(|one| {
                let from = one.from_ns.map(|ns| match one.begin_is_recorded {
                    true => format!("begins at {}", seconds(ns)),
                    false => format!("is first seen at {}", seconds(ns)),
                });
                let to = one.to_ns.map(|ns| format!("ends at {}", seconds(ns)));
                let both: Vec<String> = from.into_iter().chain(to).collect();
                format!(
                    "{} {}: so it does in replays, and is not counted as halted meanwhile",
                    one.who,
                    both.join(" and ")
                )
            })
            .collect();
        if self.tasks_begin + self.tasks_end > 0 {
            lines.push(format!(
                "of the tasks that are no vCPUs {} begin in the middle and {} end, in replays too",
                self.tasks_begin, self.tasks_end
            ));
        }
        if !self.never_ran.is_empty() {
            lines.push(format!(
                "never ran: {}. Nothing is known of what they would do: they are left out",
                self.never_ran.join(", ")
            ));
        }
        lines
    }
}

/// A VM as a whole if all of its vCPUs begin and end together, to 100 ms; else one by one.
fn of_vm(recording: &Recording, vm: usize, name: &str, partly: &mut Vec<Partly>) {
    const TOGETHER_NS: u64 = 100_000_000;
    let mut vcpus = Vec::new();
    for task in &recording.tasks {
        if let Some((_, number)) = task.vcpu.filter(|vcpu| vcpu.0 == vm) {
            vcpus.push(Partly {
                who: format!("{name} vCPU {number}"),
                from_ns: task.begins.map(|begins| begins.at_ns),
                begin_is_recorded: task.begins.is_none_or(|begins| begins.is_seen),
                to_ns: task.ends_ns,
            });
        }
    }
    let near = |a: Option<u64>, b: Option<u64>| match (a, b) {
        (Some(a), Some(b)) => a.abs_diff(b) <= TOGETHER_NS,
        (a, b) => a == b,
    };
    let (Some(first), true) = (vcpus.first().cloned(), vcpus.len() > 1) else {
        partly.extend(vcpus.into_iter().filter(is_partly));
        return;
    };
    let together = |one: &Partly| {
        near(one.from_ns, first.from_ns)
            && near(one.to_ns, first.to_ns)
            && one.begin_is_recorded == first.begin_is_recorded
    };
    if vcpus.iter().all(together) {
        let whole = Partly {
            who: name.to_owned(),
            from_ns: vcpus.iter().filter_map(|one| one.from_ns).min(),
            to_ns: vcpus.iter().filter_map(|one| one.to_ns).max(),
            ..first
        };
        vcpus = vec![whole];
    }
    partly.extend(vcpus.into_iter().filter(is_partly));
}

fn is_partly(one: &Partly) -> bool {
    one.from_ns.is_some() || one.to_ns.is_some()
}

/// vCPUs that never got a CPU: those that the recording has no more of than events of others or a
/// thread's name, and numbers that are missing among those of a VM.
fn never_ran(base: &Base) -> Vec<String> {
    let recording = &base.recording;
    let mut found: Vec<(usize, u32)> = recording.never_ran.clone();
    for (vm, of_vm) in base.answers.vms.iter().enumerate() {
        let numbers: Vec<u32> = base
            .answers
            .vcpus
            .iter()
            .filter(|time| time.vm == of_vm.vm)
            .map(|time| time.vcpu)
            .collect();
        found.extend(missing(&numbers).into_iter().map(|number| (vm, number)));
        let threads = recording.unseen.iter();
        let of_process = threads.filter(|thread| Some(thread.process) == of_vm.pid);
        let named = of_process.filter_map(|thread| vcpu_in_name(&thread.name));
        found.extend(
            named
                .filter(|id| !numbers.contains(&id.0))
                .map(|id| (vm, id.0)),
        );
    }
    found.sort_unstable();
    found.dedup();
    let name = |&(vm, number): &(usize, u32)| {
        let vm = base.vms.get(vm).map_or("?", String::as_str);
        format!("{vm} vCPU {number}")
    };
    found.iter().map(name).collect()
}

/// Numbers below the last one of a VM's vCPUs that none of them has. They are numbered from 0, but ids of
/// some topologies have gaps of their own: those are as wide as there are vCPUs, and none is missing then.
fn missing(numbers: &[u32]) -> Vec<u32> {
    let there: BTreeSet<u32> = numbers.iter().copied().collect();
    let Some(&last) = there.last() else {
        return Vec::new();
    };
    // Counted before they are listed: a broken recording may have any number.
    if last as usize + 1 - there.len() >= numbers.len() {
        return Vec::new();
    }
    (0..last).filter(|number| !there.contains(number)).collect()
}

/// What of the tracepoints that matter is there, and what to do without.
struct Has<'a>(&'a Answers);

impl Has<'_> {
    fn any(&self, names: &[&str]) -> bool {
        let mut events = self.0.events.iter();
        events.any(|event| event.count > 0 && names.iter().any(|name| event.is(name)))
    }

    /// What it means that none of these is there.
    fn without(&self, names: &[&str], lack: Lack) -> Option<Lack> {
        (!self.any(names)).then_some(lack)
    }
}

/// Why a recording cannot be replayed at all.
pub(super) fn replayable(answers: &Answers) -> Result<(), CliError> {
    let has = Has(answers);
    let refuse = |problem: String| Err(CliError::WhatIf(problem));
    if answers.source.clock_unit == "ticks" {
        return refuse(
            "the recording's times are ticks of the TSC, and how long one is nobody says: add \
             --tsc-khz N (dmesg | grep 'tsc: '), or record with another clock (trace-cmd record -C \
             mono)"
                .to_owned(),
        );
    }
    let findings = answers.findings.iter();
    if let Some(jump) = findings.clone().find(|found| found.id == "time_jumps") {
        // A replay would run through all of it.
        return refuse(format!(
            "{} {}. Cut it before: `stealtime export TRACE --to trace.dat -o part.dat`, with one of \
             the options below. {}",
            jump.what, jump.evidence, jump.next
        ));
    }
    if !has.any(&["sched_switch"]) {
        let there: Vec<&str> = ["kvm_entry", "kvm_exit", "sched_waking", "hrtimer_start"]
            .into_iter()
            .filter(|name| has.any(&[name]))
            .collect();
        let there = match there.is_empty() {
            true => "none that a replay could use".to_owned(),
            false => there.join(", "),
        };
        let answered = match has.any(&["kvm_exit"]) {
            true => "exits by reason and how long they took (`stealtime analyze`)",
            false => "how often each event was seen (`events` of `stealtime analyze --json`)",
        };
        return refuse(format!(
            "the recording has no sched_switch events, so nobody knows who had a CPU when, and nothing \
             can be replayed. It has: {there}. Answered without: {answered}. Record: \
             sched:sched_switch, sched:sched_waking, sched:sched_migrate_task, kvm and \
             timer:hrtimer_* (docs/recording.md)"
        ));
    }
    if answers.vcpus.is_empty() {
        return refuse(
            "the recording has no vCPU that ran, so there is nothing to give time back to. Answered \
             without: how often each event was seen (`events` of `stealtime analyze --json`). Record: \
             kvm:kvm_entry and kvm:kvm_exit, on the host and while its guests run (docs/recording.md)"
                .to_owned(),
        );
    }
    Ok(())
}

/// What the recording lacks.
pub(super) fn lacks(base: &Base) -> Vec<Lack> {
    let answers = &base.answers;
    let has = Has(answers);
    let mut lacks = Vec::new();
    lacks.extend(has.without(
        &["sched_waking"],
        Lack::new(
            "no sched_waking",
            "nobody knows who woke whom, so that all waits end at recorded times",
            Answered::Part(
                "who gets a CPU that several want (slices, preemption, weights, limits, pins), but not \
                 what a delay does to those that wait for the delayed one",
            ),
            "sched:sched_waking",
        ),
    ));
    lacks.extend(has.without(
        &["hrtimer_start", "hrtimer_expire_entry"],
        Lack::new(
            "no hrtimer events",
            "waits that timers end keep their recorded times, and the host's tick is taken to be the \
             default",
            Answered::Part("everything else"),
            "timer:hrtimer_start, timer:hrtimer_expire_entry, timer:hrtimer_expire_exit",
        ),
    ));
    for (there, missing) in [
        ("hrtimer_expire_entry", "hrtimer_start"),
        ("hrtimer_start", "hrtimer_expire_entry"),
    ] {
        if has.any(&[there]) {
            lacks.extend(has.without(
                &[missing],
                Lack::new(
                    &format!("no {missing}"),
                    "which timers end waits is not known: those keep their recorded times",
                    Answered::Part("everything else"),
                    &format!("timer:{missing}"),
                ),
            ));
        }
    }
    let polls = has.any(&["kvm_vcpu_wakeup"]);
    lacks.extend(has.without(
        &["kvm_exit", "kvm_entry"],
        Lack::new(
            "no kvm_entry and kvm_exit",
            "guests' time and exits are one, and no halts are known",
            Answered::Part("all but kvm.halt_poll_ns and exits by reason"),
            "kvm:kvm_entry, kvm:kvm_exit",
        ),
    ));
    lacks.extend(has.without(
        &["kvm_vcpu_wakeup"],
        Lack::new(
            "no kvm_vcpu_wakeup",
            "where polling in halts ended is not known: it counts as what its exit took",
            Answered::Part("all but kvm.halt_poll_ns"),
            "kvm:kvm_vcpu_wakeup, kvm:kvm_halt_poll_ns",
        ),
    ));
    if polls {
        lacks.extend(has.without(
            &["kvm_apic_accept_irq", "kvm_apicv_accept_irq"],
            Lack::new(
                "no kvm_apic_accept_irq",
                "a poll in a halt that an IPI ended keeps its recorded time",
                Answered::Everything(
                    "; kvm.halt_poll_ns less well where vCPUs send each other IPIs",
                ),
                "kvm:kvm_apic_accept_irq (kvm:kvm_apicv_accept_irq with APICv)",
            ),
        ));
    }
    lacks.extend(has.without(
        &["sched_migrate_task"],
        Lack::new(
            "no sched_migrate_task",
            "tasks are where they next ran",
            Answered::Everything("; where tasks waited before they moved is not known"),
            "sched:sched_migrate_task",
        ),
    ));
    lacks.extend(flags(base.recording.resolved.without_flags));
    lacks.extend(interrupts(&has));
    lacks.extend(guesses(answers));
    lacks.extend(losses(answers));
    lacks.extend(short(answers));
    lacks
}

/// What a text without context flags does not tell of its wakeups.
fn flags(wakeups: u64) -> Option<Lack> {
    (wakeups > 0).then(|| {
        Lack::new(
            &format!("context flags of {wakeups} sched_waking"),
            "whether a task or an interrupt woke is taken from timers' callbacks, where their ends are \
             recorded; other such waits end at recorded times",
            Answered::Part("what does not hang on who wakes whom"),
            "the flags: `trace-cmd report -l`, or the trace.dat itself",
        )
    })
}

/// Which threads are one VM, where that is a guess.
fn guesses(answers: &Answers) -> Option<Lack> {
    let guessed = answers.vms.iter().filter(|vm| vm.guessed);
    let names: Vec<&str> = guessed.map(|vm| vm.vm.as_str()).collect();
    (!names.is_empty()).then(|| {
        Lack::new(
            &format!("which threads are of {}", names.join(", ")),
            "the order of thread ids is a guess: their rows, marked by `?`, may mix two VMs",
            Answered::Everything(
                "; pins, weights and limits of single VMs only as well as that guess",
            ),
            "task events (perf record does), or say it by --vm-of",
        )
    })
}

/// Recordings shorter than this tell less, in ns: of parts of 100 ms of the recordings of
/// docs/replay-accuracy.md one in five is replayed beyond the bounds, of those of 250 ms one in fifteen.
const SHORT_NS: u64 = 200_000_000;

/// What a short recording does not tell.
fn short(answers: &Answers) -> Option<Lack> {
    let span_ns = answers.source.span_ns;
    (span_ns < SHORT_NS).then(|| {
        Lack::new(
            &format!("only {:.0} ms", span_ns as f64 / 1e6),
            "what happens seldom is not in it, and how the host places, groups and preempts is chosen by few \
             switches",
            Answered::Everything("; the error below holds for these few switches alone"),
            "2 s or more",
        )
    })
}

/// What is missing of guests' interrupts, which no replay needs.
fn interrupts(has: &Has<'_>) -> Vec<Lack> {
    let mut lacks = Vec::new();
    lacks.extend(has.without(
        &["kvm_apic_ipi", "kvm_pv_send_ipi"],
        Lack::new(
            "no kvm_apic_ipi",
            "which IPI woke a vCPU is not known, only who woke it, which is what a replay needs",
            Answered::Everything("; IPIs' latencies are not (`stealtime analyze`)"),
            "kvm:kvm_apic_ipi",
        ),
    ));
    lacks.extend(has.without(
        &["kvm_eoi", "kvm_pv_eoi"],
        Lack::new(
            "no kvm_eoi",
            "when guests were through with an interrupt is not known, which no replay needs",
            Answered::Everything("; times from an IPI to its EOI are not (`stealtime analyze`)"),
            "kvm:kvm_eoi, kvm:kvm_pv_eoi",
        ),
    ));
    lacks
}

/// What to record where the replay is off by more than what is asked for.
pub(super) fn advice(lacks: &[Lack]) -> String {
    let missing: Vec<&str> = lacks
        .iter()
        .filter(|lack| !lack.answers.is_everything())
        .map(|lack| lack.record.as_str())
        .collect();
    match missing.is_empty() {
        true => "To answer what is below the replay's error: record for longer, or turn the knob on the \
                 host and record again (`stealtime analyze` of both)"
            .to_owned(),
        false => format!(
            "To answer what is below the replay's error: record {} too, and for longer",
            missing.join(", ")
        ),
    }
}

/// Parts of the recording of which nothing is known.
fn losses(answers: &Answers) -> Vec<Lack> {
    let source = &answers.source;
    let mut lacks = Vec::new();
    if source.lost > 0 || source.lost_gaps > 0 {
        let vcpus = || answers.vcpus.iter();
        let unknown: f64 = vcpus().map(|time| time.unknown_ns as f64).sum();
        let lived: f64 = vcpus().map(|time| time.span_ns as f64).sum();
        let share = unknown / (unknown + lived).max(1.0) * 100.0;
        let how_many = match (source.lost, source.lost_gaps) {
            (0, gaps) => format!("in {gaps} gaps, nobody knows how many"),
            (lost, 0) => format!("{lost} known"),
            (lost, gaps) => format!("{lost}, and in {gaps} gaps nobody knows how many"),
        };
        lacks.push(Lack::new(
            &format!("events were lost ({how_many}; {share:.1}% of vCPUs' time is unknown)"),
            "tasks wait over the gaps, and what nobody knows of is not part of the error",
            Answered::Everything(", from the rest of the time"),
            "with a larger buffer (trace-cmd record -b, perf record -m), or fewer events",
        ));
    }
    if source.partial {
        let notes = source.notes.join("; ");
        lacks.push(Lack::new(
            "the end, or a part",
            &format!("less was read than was recorded ({notes})"),
            Answered::Everything(", from what was read"),
            "it again, or copy it again: the file is not whole",
        ));
    }
    if source.out_of_order > 0 {
        lacks.push(Lack::new(
            &format!(
                "order: {} events are earlier than the one before",
                source.out_of_order
            ),
            "they count as at the time of that one",
            Answered::Everything("; times are off by as much"),
            "with a clock that all CPUs share (trace-cmd record -C mono)",
        ));
    }
    lacks
}

#[cfg(test)]
mod tests {
    use super::missing;

    #[test]
    fn numbers_are_missing_where_most_are_there() {
        assert_eq!(missing(&[0, 1, 3]), [2]);
        assert_eq!(missing(&[8, 0, 4, 6, 2]), [1, 3, 5, 7]);
        // As many as there are: a topology's gaps.
        assert!(missing(&[1, 3]).is_empty());
        assert!(missing(&[0, 1, u32::MAX - 1]).is_empty());
        assert!(missing(&[]).is_empty());
        // The one that is not known is the highest there is.
        assert!(missing(&[0, 1, 4_160_749_568, u32::MAX]).is_empty());
    }
}

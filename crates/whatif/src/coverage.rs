//! What a recording covers: what it lacks, and what remains answerable.

use std::fmt;

use serde::Serialize;
use stealtime_analysis::Answers;

use crate::recorded::Recorded;

/// What a recording answers though it lacks something. Serialized as the words.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(into = "String")]
pub enum Answered {
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
pub struct Lack {
    /// What is not there.
    pub what: String,
    /// What that means for a replay.
    pub means: String,
    /// What is answered all the same.
    pub answers: Answered,
    /// What to record, or to do, to have it.
    pub record: String,
}

impl Lack {
    fn new(lacking: &str, means: &str, answers: Answered, record: &str) -> Self {
        Self {
            what: lacking.to_owned(),
            means: means.to_owned(),
            answers,
            record: record.to_owned(),
        }
    }

    /// As a sentence each.
    #[must_use]
    pub fn shown(&self) -> String {
        format!(
            "{}: {}. Answered: {}. Record: {}",
            self.what, self.means, self.answers, self.record
        )
    }
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
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreplayable {
    /// Its clock counts ticks of unknown length.
    #[error(
        "the recording's times are ticks of the TSC, of unknown frequency: add --tsc-khz N (dmesg | \
         grep 'tsc: '), or record with another clock (trace-cmd record -C mono)"
    )]
    Ticks,
    /// Its clock jumps: a replay would run through all of the gap.
    #[error(
        "{what} {evidence}. Cut it before: `stealtime export TRACE --to trace.dat -o part.dat`, with \
         one of the options below. {next}"
    )]
    TimeJumps {
        /// The finding.
        what: String,
        /// Its evidence.
        evidence: String,
        /// The options that cut it.
        next: String,
    },
    /// It has no switches.
    #[error(
        "the recording has no sched_switch events, so the current task of a CPU is unknown, and \
         nothing can be replayed. It has: {present}. Answered without: {answered}. Record: \
         sched:sched_switch, sched:sched_waking, sched:sched_migrate_task, kvm and timer:hrtimer_* \
         (docs/recording.md)"
    )]
    NoSwitches {
        /// Useful tracepoints that it has.
        present: String,
        /// What `analyze` answers of it.
        answered: &'static str,
    },
    /// It has no vCPU that ran.
    #[error(
        "the recording has no vCPU that ran, so there is nothing to give time back to. Answered \
         without: how often each event was seen (`events` of `stealtime analyze --json`). Record: \
         kvm:kvm_entry and kvm:kvm_exit, on the host and while its guests run (docs/recording.md)"
    )]
    NoVcpus,
}

/// Whether a recording can be replayed.
///
/// # Errors
///
/// [`Unreplayable`]
pub fn check_replayable(answers: &Answers) -> Result<(), Unreplayable> {
    let events = Has(answers);
    if answers.source.clock_unit == "ticks" {
        return Err(Unreplayable::Ticks);
    }
    let mut findings = answers.findings.iter();
    if let Some(jump) = findings.find(|finding| finding.id == "time_jumps") {
        return Err(Unreplayable::TimeJumps {
            what: jump.what.clone(),
            evidence: jump.evidence.clone(),
            next: jump.next.clone(),
        });
    }
    if !events.any(&["sched_switch"]) {
        let useful = ["kvm_entry", "kvm_exit", "sched_waking", "hrtimer_start"];
        let present: Vec<&str> = useful
            .into_iter()
            .filter(|name| events.any(&[name]))
            .collect();
        return Err(Unreplayable::NoSwitches {
            present: match present.is_empty() {
                true => "none that a replay could use".to_owned(),
                false => present.join(", "),
            },
            answered: match events.any(&["kvm_exit"]) {
                true => "exits by reason and how long they took (`stealtime analyze`)",
                false => "how often each event was seen (`events` of `stealtime analyze --json`)",
            },
        });
    }
    if answers.vcpus.is_empty() {
        return Err(Unreplayable::NoVcpus);
    }
    Ok(())
}

/// What the recording lacks.
pub(crate) fn lacks(recorded: &Recorded) -> Vec<Lack> {
    let answers = &recorded.answers;
    let events = Has(answers);
    let mut lacks = Vec::new();
    lacks.extend(events.without(
        &["sched_waking"],
        Lack::new(
            "no sched_waking",
            "wakers are unknown, so that all waits end at recorded times",
            Answered::Part(
                "which of several tasks gets a CPU (slices, preemption, weights, limits, pins), but not what \
                 a delay does to tasks that wait for the delayed one",
            ),
            "sched:sched_waking",
        ),
    ));
    lacks.extend(events.without(
        &["hrtimer_start", "hrtimer_expire_entry"],
        Lack::new(
            "no hrtimer events",
            "waits that timers end keep their recorded times, and the host's tick is taken to be the \
             default",
            Answered::Part("everything else"),
            "timer:hrtimer_start, timer:hrtimer_expire_entry, timer:hrtimer_expire_exit",
        ),
    ));
    for (present, missing) in [
        ("hrtimer_expire_entry", "hrtimer_start"),
        ("hrtimer_start", "hrtimer_expire_entry"),
    ] {
        if events.any(&[present]) {
            lacks.extend(events.without(
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
    let polls = events.any(&["kvm_vcpu_wakeup"]);
    lacks.extend(events.without(
        &["kvm_exit", "kvm_entry"],
        Lack::new(
            "no kvm_entry and kvm_exit",
            "guests' time and exits are one, and no halts are known",
            Answered::Part("all but kvm.halt_poll_ns and exits by reason"),
            "kvm:kvm_entry, kvm:kvm_exit",
        ),
    ));
    lacks.extend(events.without(
        &["kvm_vcpu_wakeup"],
        Lack::new(
            "no kvm_vcpu_wakeup",
            "where polling in halts ended is not known: it counts as what its exit took",
            Answered::Part("all but kvm.halt_poll_ns"),
            "kvm:kvm_vcpu_wakeup, kvm:kvm_halt_poll_ns",
        ),
    ));
    if polls {
        lacks.extend(events.without(
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
    lacks.extend(events.without(
        &["sched_migrate_task"],
        Lack::new(
            "no sched_migrate_task",
            "tasks are where they next ran",
            Answered::Everything("; where tasks waited before they moved is not known"),
            "sched:sched_migrate_task",
        ),
    ));
    lacks.extend(flags(recorded.recording.resolved.without_flags));
    lacks.extend(interrupts(&events));
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
            Answered::Part("what does not depend on which task wakes which"),
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

/// Recordings shorter than this are less reliable, in ns. Of parts of the recordings in
/// docs/replay-accuracy.md, one in five of 100 ms is replayed beyond the bounds, and one in fifteen of
/// 250 ms.
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
fn interrupts(events: &Has<'_>) -> Vec<Lack> {
    let mut lacks = Vec::new();
    lacks.extend(events.without(
        &["kvm_apic_ipi", "kvm_pv_send_ipi"],
        Lack::new(
            "no kvm_apic_ipi",
            "which IPI woke a vCPU is not known, only its waker, which is what a replay needs",
            Answered::Everything("; IPIs' latencies are not (`stealtime analyze`)"),
            "kvm:kvm_apic_ipi",
        ),
    ));
    lacks.extend(events.without(
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
pub(crate) fn advice(lacks: &[Lack]) -> String {
    let missing: Vec<&str> = lacks
        .iter()
        .filter(|lack| !lack.answers.is_everything())
        .map(|lack| lack.record.as_str())
        .collect();
    match missing.is_empty() {
        true => {
            "To answer what is below the replay's error: record for longer, or change the knob on \
                 the host and record again (`stealtime analyze` of both)"
                .to_owned()
        }
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
            (0, gaps) => format!("an unknown number, in {gaps} gaps"),
            (lost, 0) => format!("{lost} known"),
            (lost, gaps) => format!("{lost} known, and an unknown number in {gaps} gaps"),
        };
        lacks.push(Lack::new(
            &format!("events were lost ({how_many}; {share:.1}% of vCPUs' time is unknown)"),
            "tasks wait over the gaps, and the unknown time is not part of the error",
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

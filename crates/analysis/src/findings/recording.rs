//! Limits of the recording.

use stealtime_events::{ExitReason, Kind, Tid, VcpuId};

use super::{DOUBT, Weighted};
use crate::Analysis;
use crate::answers::Answers;
use crate::sums::Silence;
use crate::tables::Tables;

/// Adds what is wrong with the recording.
pub(crate) fn find(tables: &Tables<'_>, answers: &Answers, found: &mut Vec<Weighted>) {
    losses_and_order(answers, found);
    jumps(tables.analysis, found);
    missing_events(tables.analysis, answers, found);
    groups(tables.analysis, answers, found);
}

fn losses_and_order(answers: &Answers, found: &mut Vec<Weighted>) {
    let source = &answers.source;
    if source.lost > 0 || source.lost_gaps > 0 {
        let unknown = crate::stats::total(answers.vcpus.iter().map(|vcpu| vcpu.unknown_ns));
        found.push(Weighted::new("lost_events", "", DOUBT, [
            "Events were lost: counts are too low, and an exit without its entry may be paired \
             with a later one."
                .to_owned(),
            format!(
                "{} events lost and {} gaps of unknown size; {} of vCPU time could not be given a \
                 state",
                source.lost,
                source.lost_gaps,
                super::ms(unknown)
            ),
            "Record with larger buffers (trace-cmd -b, perf -m) or fewer events.".to_owned(),
        ]));
    }
    if source.out_of_order > 0 {
        found.push(Weighted::new("time_goes_back", "", DOUBT, [
            "Some events are earlier than the event before them; they were taken as if they came \
             at the same time."
                .to_owned(),
            format!("{} of {} events", source.out_of_order, source.events),
            "Use one clock for all CPUs (trace-cmd record -C mono).".to_owned(),
        ]));
    }
}

/// A silence that no host has: states that last through it count all of it.
fn jumps(analysis: &Analysis, found: &mut Vec<Weighted>) {
    found.extend(
        analysis
            .sums()
            .silence
            .map(|silence| jump(analysis, silence)),
    );
}

fn jump(analysis: &Analysis, silence: Silence) -> Weighted {
    let start = silence.start - analysis.tracker.first();
    let seconds = |ns: u64| format!("{}.{:03} s", ns / 1_000_000_000, ns / 1_000_000 % 1000);
    Weighted::new("time_jumps", "", DOUBT, [
        "For a long time there is no event at all: a clock jumps, or the file is damaged. Whatever \
         lasted then counts with all of it."
            .to_owned(),
        format!(
            "none for {}, from {} after the first one on",
            seconds(silence.ns),
            seconds(start)
        ),
        format!(
            "Look at what is before (--until {}ns) and behind (--from {}ns).",
            start + 1,
            start + silence.ns
        ),
    ])
}

/// Answers that need events which were not recorded.
fn missing_events(analysis: &Analysis, answers: &Answers, found: &mut Vec<Weighted>) {
    let source = &answers.source;
    let reason = ExitReason::vmx(0);
    let exit = Kind::KvmExit {
        reason,
        vcpu: VcpuId(0),
        intr_vector: None,
        info1: 0,
    };
    let sums = analysis.sums();
    let has_exits = sums.accounts.iter().any(|account| account.has_exits);
    if !has_exits && analysis.sums().counts.of(exit) == 0 && !answers.vcpus.is_empty() {
        found.push(Weighted::new(
            "no_exit_events",
            "",
            DOUBT,
            [
                "There are no kvm_entry and kvm_exit events: time in the guest and time of exits \
             cannot be separated, and there is no table of exits."
                    .to_owned(),
                format!("{} vCPU threads, no kvm_exit", answers.vcpus.len()),
                "Record kvm:kvm_entry and kvm:kvm_exit, if this host's KVM has them.".to_owned(),
            ],
        ));
    }
    if !analysis.tracker.has_switches() && !answers.vcpus.is_empty() {
        found.push(Weighted::new("no_sched_events", "", DOUBT, [
            "There are no sched_switch events: time in which a vCPU waited for a CPU counts as \
             exit handling or as the guest's, and steal is unknown."
                .to_owned(),
            format!("{} events, no sched_switch", source.events),
            "Record sched:sched_switch, sched:sched_waking and sched:sched_migrate_task as well."
                .to_owned(),
        ]));
    }
    missing_wakeups(analysis, answers, found);
}

fn missing_wakeups(analysis: &Analysis, answers: &Answers, found: &mut Vec<Weighted>) {
    let switch = Kind::SchedSwitch {
        prev: Tid(0),
        next: Tid(0),
        prev_prio: 0,
        next_prio: 0,
        prev_state: 0,
    };
    let waking = Kind::SchedWaking {
        tid: Tid(0),
        prio: 0,
        target_cpu: 0,
    };
    let wakeup = Kind::SchedWakeup {
        tid: Tid(0),
        prio: 0,
        target_cpu: 0,
    };
    let wakeups = analysis.sums().counts.of(waking) + analysis.sums().counts.of(wakeup);
    if analysis.sums().counts.of(switch) > 0 && wakeups == 0 && !answers.vcpus.is_empty() {
        found.push(Weighted::new("no_wakeup_events", "", DOUBT, [
            "There are no wakeups in the trace: waiting for a CPU after a wakeup counts as halted."
                .to_owned(),
            format!("{} sched_switch, no sched_waking or sched_wakeup", analysis.sums().counts.of(switch)),
            "Record sched:sched_waking as well.".to_owned(),
        ]));
    }
}

/// VMs and tasks that could not be separated for sure.
fn groups(analysis: &Analysis, answers: &Answers, found: &mut Vec<Weighted>) {
    let guessed: Vec<&str> = answers
        .vms
        .iter()
        .filter(|vm| vm.guessed)
        .map(|vm| vm.vm.as_str())
        .collect();
    if !guessed.is_empty() {
        found.push(Weighted::new("vms_guessed", "", DOUBT, [
            "Nothing in the trace shows which vCPU threads are one VM: those named here were put \
             together by the order of their thread ids, which is a guess."
                .to_owned(),
            guessed.join(", "),
            "Say which threads belong to which VM (--vm-of), or record task events.".to_owned(),
        ]));
    }
    if analysis.tracker.threads().is_full() {
        found.push(Weighted::new(
            "too_many_tasks",
            "",
            DOUBT,
            [
                "The trace has more tasks than are kept apart.".to_owned(),
                "more than 1048576 tasks".to_owned(),
                "Select a shorter part of the trace when recording.".to_owned(),
            ],
        ));
    }
}

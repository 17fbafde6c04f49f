//! Time that guests lose to polling, spinning, timers and host interrupts.

use stealtime_events::exit_reason::Class;
use stealtime_events::{Isa, vector::linux};

use super::{Weighted, ms, per_mille, percent};
use crate::account::Account;
use crate::answers::{Answers, HaltPolls, Yields};
use crate::stats::total;
use crate::tables::Tables;
use crate::vms::Group;

/// With fewer polls their success is chance.
pub(super) const MIN_POLLS: u64 = 100;
/// From this share of failed polls on the window is wrong for the guest.
pub(super) const WASTED_PER_MILLE: u64 = 700;
/// Polling below this share of the vCPUs' time costs too little to care.
pub(super) const POLL_COST_PER_MILLE: u64 = 5;
/// Spinning from this share of the guest's time on is worth a look.
pub(super) const SPIN_PER_MILLE: u64 = 20;
/// With fewer PAUSE exits a lock was contended once.
pub(super) const MIN_PAUSES: u64 = 100;
/// Directed yield works if at least this share of PAUSE exits reaches a vCPU of the same VM.
const YIELD_PER_MILLE: u64 = 250;
/// From this share of all exits on the LAPIC timer is what the guest exits for.
pub(super) const TIMER_PER_MILLE: u64 = 200;
/// From this many a second of guest time on, host interrupts show in guests' latencies.
pub(super) const HITS_PER_SECOND: u128 = 1000;
/// A second, in ns. Of less guest time a rate a second says little.
const SECOND_NS: u64 = 1_000_000_000;

/// Fewer spurious notifications than this may be left over from migrations of vCPUs.
pub(super) const MIN_SPURIOUS: u64 = 100;

/// Adds what costs guests time.
pub(crate) fn find(tables: &Tables<'_>, answers: &Answers, found: &mut Vec<Weighted>) {
    for group in tables.selected() {
        polls(answers, &group.name, found);
        spinning(answers, &group.name, found);
        timers(tables, group, found);
        interrupts(tables, group, answers, found);
        spurious_notifications(tables, group, found);
    }
}

fn polls(answers: &Answers, vm: &str, found: &mut Vec<Weighted>) {
    // Each VM has one row.
    for row in answers.halt_polls.iter().filter(|row| row.vm == vm) {
        polls_of(answers, row, found);
    }
}

fn polls_of(answers: &Answers, row: &HaltPolls, found: &mut Vec<Weighted>) {
    let vm = row.vm.as_str();
    let vcpus = answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
    let (wasted, lived) = vcpus.fold((0u64, 0u64), |sum, vcpu| {
        (
            sum.0.saturating_add(vcpu.poll_wasted_ns),
            sum.1.saturating_add(vcpu.span_ns),
        )
    });
    let polls = row.poll_success + row.poll_fail;
    let is_costly = per_mille(wasted, lived) >= POLL_COST_PER_MILLE;
    if polls >= MIN_POLLS && per_mille(row.poll_fail, polls) >= WASTED_PER_MILLE && is_costly {
        found.push(Weighted::new(
            "polls_wasted",
            vm,
            wasted,
            [
                format!("Most halt polling of {vm} is in vain: its vCPUs sleep all the same."),
                format!(
                    "{} of {polls} polls failed, {} of CPU time spent on them",
                    row.poll_fail,
                    ms(wasted)
                ),
                "Lower kvm.halt_poll_ns, or let it shrink faster (kvm.halt_poll_ns_shrink)."
                    .to_owned(),
            ],
        ));
    }
}

fn spinning(answers: &Answers, vm: &str, found: &mut Vec<Weighted>) {
    // Each VM has one row.
    for row in answers.yields.iter().filter(|row| row.vm == vm) {
        spinning_of(answers, row, found);
    }
}

fn spinning_of(answers: &Answers, row: &Yields, found: &mut Vec<Weighted>) {
    let vm = row.vm.as_str();
    let vcpus = answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
    let (spun, ran) = vcpus.fold((0u64, 0u64), |sum, vcpu| {
        (
            sum.0.saturating_add(vcpu.spin_ns.unwrap_or(0)),
            sum.1.saturating_add(vcpu.on_cpu_ns),
        )
    });
    if row.pause_exits < MIN_PAUSES || per_mille(spun, ran) < SPIN_PER_MILLE {
        return;
    }
    let reached = row.switched_to_same_vm;
    let next = if per_mille(reached, row.pause_exits) < YIELD_PER_MILLE {
        "Few PAUSE exits reach a vCPU of the same VM: look at the holders of the locks, at \
         paravirtual spinlocks in the guest, and at vCPUs of the VM that are preempted."
    } else {
        "Yields reach the VM's own vCPUs: there are too few CPUs for its running vCPUs."
    };
    found.push(Weighted::new(
        "spinning",
        vm,
        spun,
        [
            format!(
                "The vCPUs of {vm} spin for {} of their time on a CPU, at least.",
                percent(spun, ran)
            ),
            format!(
                "{} PAUSE exits, {reached} switched to a vCPU of the same VM, {} elsewhere",
                row.pause_exits, row.switched_elsewhere
            ),
            next.to_owned(),
        ],
    ));
}

/// Exits that arm or deliver the LAPIC timer, all exits, and time for the former.
fn timer_exits(tables: &Tables<'_>, accounts: &[&Account]) -> (u64, u64, u64) {
    let reasons = tables.analysis.tracker.reasons();
    let (mut timer, mut exits, mut ns) = (0, 0, 0);
    for account in accounts {
        for (reason, counted) in account.reasons() {
            exits += counted.count;
            if reasons.class(reason) == Class::PreemptionTimer {
                timer += counted.count;
                ns = counted.ns.saturating_add(ns);
            }
        }
        timer += account.tally.timer_msr_writes;
    }
    (timer, exits, ns)
}

fn timers(tables: &Tables<'_>, group: &Group, found: &mut Vec<Weighted>) {
    let accounts: Vec<&Account> = tables.accounts(group).collect();
    let (timer, exits, ns) = timer_exits(tables, &accounts);
    let reasons = tables.analysis.tracker.reasons();
    let mut slots = accounts.iter().flat_map(|account| account.reasons());
    let is_vmx = slots.any(|(reason, _)| {
        let reason = reasons.get(reason);
        reason.is_some_and(|reason| reason.isa == Isa::Vmx)
    });
    // Timers can be posted only where interrupts are: that shows in notifications.
    let posts = accounts.iter().any(|account| {
        account
            .hits
            .vectors()
            .any(|(vector, _)| matches!(vector, linux::POSTED_INTR | linux::POSTED_INTR_WAKEUP))
    });
    // Posted ones are seldom injected by software, so there may be no latency of theirs.
    let posted: u64 = accounts
        .iter()
        .map(|account| account.latencies.posted)
        .sum();
    if is_vmx && posts && posted == 0 && per_mille(timer, exits) >= TIMER_PER_MILLE {
        found.push(Weighted::new("timer_exits", &group.name, ns, [
            format!("{} exits for its LAPIC timer, though this host posts interrupts.", group.name),
            format!("{timer} of {exits} exits arm or deliver the timer, none was posted"),
            "With housekeeping CPUs to spare (nohz_full), kvm.pi_inject_timer=1 lets them fire the \
             timers without an exit."
                .to_owned(),
        ]));
    }
}

/// The target guest of a posted-interrupt notification consumes it without an exit (Intel SDM volume 3,
/// "Posted-Interrupt Processing"). One with an exit hit the CPU of another guest, and had no use.
fn spurious_notifications(tables: &Tables<'_>, group: &Group, found: &mut Vec<Weighted>) {
    let spurious: u64 = tables
        .accounts(group)
        .flat_map(|account| account.hits.vectors())
        .filter(|(vector, _)| matches!(*vector, linux::POSTED_INTR | linux::POSTED_INTR_NESTED))
        .map(|(_, count)| count)
        .sum();
    if spurious < MIN_SPURIOUS {
        return;
    }
    let name = &group.name;
    found.push(Weighted::new(
        "spurious_notifications",
        name,
        0,
        [
            format!("Posted-interrupt notifications for others make {name} exit."),
            format!("{spurious} exits by the notification vectors 0xf2 and 0xf0"),
            "Kernels since the middle of 2025 send none to the CPU of a vCPU that is put \
         (SN set whenever a vCPU is put); pinning vCPUs lowers their number on older kernels."
                .to_owned(),
        ],
    ));
}

fn interrupts(tables: &Tables<'_>, group: &Group, answers: &Answers, found: &mut Vec<Weighted>) {
    let hits: u64 = tables
        .accounts(group)
        .map(|account| account.hits.total())
        .sum();
    let vcpus = answers.vcpus.iter().filter(|vcpu| vcpu.vm == group.name);
    let guest = total(vcpus.filter_map(|vcpu| vcpu.guest_ns));
    let per_second = u128::from(hits) * u128::from(SECOND_NS) / u128::from(guest.max(1));
    if guest < SECOND_NS || per_second < HITS_PER_SECOND {
        return;
    }
    let rows = answers
        .interrupts
        .iter()
        .filter(|row| row.vm == group.name)
        .take(3);
    let names: Vec<String> = rows
        .map(|row| format!("{} {}", row.name, row.count))
        .collect();
    let reasons = tables.analysis.tracker.reasons();
    let handling = |account: &Account| -> u64 {
        let slots = account.reasons();
        let hit = slots.filter(|entry| reasons.class(entry.0) == Class::HostInterrupt);
        total(hit.map(|entry| entry.1.ns))
    };
    let cost = total(tables.accounts(group).map(handling));
    found.push(Weighted::new(
        "host_interrupts",
        &group.name,
        cost,
        [
            format!(
                "Interrupts hit {} {per_second} times a second of guest time.",
                group.name,
            ),
            format!("{hits} in all: {}", names.join(", ")),
            "Steer device interrupts and host timers to other CPUs (irq affinity, nohz_full)."
                .to_owned(),
        ],
    ));
}

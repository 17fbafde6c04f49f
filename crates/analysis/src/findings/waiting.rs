//! Runnable vCPUs that do not run.

use std::collections::BTreeMap;

use super::{Weighted, ms, per_mille, percent};
use crate::answers::{Answers, Ready, cause_in_words};
use crate::stats::total;
use crate::sums::Throttling;
use crate::tables::Tables;

/// Share of a VM's span from which on its waiting is a finding. Operators' alerts are commonly set at
/// 5 % steal.
pub(super) const STEAL_PER_MILLE: u64 = 50;
/// Share of a VM's waiting, for its own vCPUs, from which on they count as stacked.
pub(super) const STACKED_PER_MILLE: u64 = 250;
/// Share of the host's time from which on idle CPUs could have run a stacked vCPU.
pub(super) const IDLE_PER_MILLE: u64 = 100;
/// Share of a VM's span from which on throttling is a finding: it is configured, so any is worth a line.
pub(super) const THROTTLED_PER_MILLE: u64 = 1;

/// Adds what vCPUs wait for.
pub(crate) fn find(tables: &Tables<'_>, answers: &Answers, found: &mut Vec<Weighted>) {
    let (tracker, sums) = (&tables.analysis.tracker, tables.analysis.sums());
    let idle = sums.idle;
    // Of the selection, as idle time is.
    let cpus = 0..u16::try_from(tracker.cpu_count()).unwrap_or(u16::MAX);
    let of_cpu = |cpu| sums.window.clip(tracker.first(), tracker.now(), cpu);
    let span = total(cpus.map(of_cpu));
    limited(tables, answers, found);
    for vm in &answers.vms {
        let rows: Vec<&Ready> = answers.ready.iter().filter(|row| row.vm == vm.vm).collect();
        let waited = total(rows.iter().map(|row| row.ns));
        let lived = answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm.vm);
        let lived = total(lived.map(|vcpu| vcpu.span_ns));
        let waited_for = |cause: &str| -> u64 {
            total(
                rows.iter()
                    .filter(|row| row.cause == cause)
                    .map(|row| row.ns),
            )
        };
        if per_mille(waited, lived) >= STEAL_PER_MILLE {
            found.push(Weighted::new("steal", &vm.vm, waited, [
                format!(
                    "The vCPUs of {} were runnable but not running for {} of their time.",
                    vm.vm,
                    percent(waited, lived)
                ),
                largest(&rows),
                "Give the VM CPUs of its own, move the largest of these away, or lower the number \
                 of vCPUs per CPU."
                    .to_owned(),
            ]));
        }
        let stacked = waited_for("vcpu_same_vm");
        let is_stacked = per_mille(stacked, waited) >= STACKED_PER_MILLE;
        if is_stacked
            && per_mille(waited, lived) >= STEAL_PER_MILLE
            && per_mille(idle, span) >= IDLE_PER_MILLE
        {
            found.push(Weighted::new(
                "vcpus_stacked",
                &vm.vm,
                stacked,
                [
                    format!(
                        "vCPUs of {} waited for each other on one CPU while others were idle.",
                        vm.vm
                    ),
                    format!(
                        "{} of waiting for vCPUs of the same VM, {} of the host's CPU time idle",
                        ms(stacked),
                        percent(idle, span)
                    ),
                    "Look at the affinity of the vCPU threads and at migrations between CPUs."
                        .to_owned(),
                ],
            ));
        }
        let throttled = waited_for("throttled");
        if per_mille(throttled, lived) >= THROTTLED_PER_MILLE {
            found.push(Weighted::new("throttled", &vm.vm, throttled, [
                format!("{} was held back by the CPU bandwidth limit of its cgroup.", vm.vm),
                format!(
                    "{} in which its vCPUs were runnable, their CPU was idle and a bandwidth timer \
                     ended the wait (a lower bound: on a busy CPU it does not show)",
                    ms(throttled)
                ),
                "Compare cpu.max of its cgroup with nr_throttled and throttled_usec in cpu.stat."
                    .to_owned(),
            ]));
        }
    }
}

/// A bandwidth limit of an unknown cgroup. Its slack timer is started only while one of its threads is
/// throttled (`__return_cfs_rq_runtime`), and the cross-CPU call only for a throttled run queue
/// (`unthrottle_cfs_rq_async`).
fn limited(tables: &Tables<'_>, answers: &Answers, found: &mut Vec<Weighted>) {
    let Throttling {
        slack_starts,
        unthrottled,
    } = tables.analysis.sums().throttling;
    if slack_starts + unthrottled == 0 || answers.vcpus.is_empty() {
        return;
    }
    found.push(Weighted::new("bandwidth_limit", "", 0, [
        "A CPU bandwidth limit held back threads of some cgroup; where other threads kept the CPU \
         busy meanwhile, the trace does not show which."
            .to_owned(),
        format!(
            "{unthrottled} __cfsb_csd_unthrottle on other CPUs, {slack_starts} starts of \
             sched_cfs_slack_timer"
        ),
        "Look at nr_throttled and throttled_usec in cpu.stat of the VMs' cgroups.".to_owned(),
    ]));
}

/// The largest causes, as text.
fn largest(rows: &[&Ready]) -> String {
    const SHOWN: usize = 4;
    let mut causes = BTreeMap::<(&str, &str), u64>::new();
    for row in rows {
        let sum = causes.entry((&row.cause, &row.who)).or_default();
        *sum = sum.saturating_add(row.ns);
    }
    let sum = causes
        .values()
        .fold(0_u64, |sum, ns| sum.saturating_add(*ns));
    let mut causes: Vec<_> = causes.into_iter().collect();
    // Less than 0.1 % is no reason to act.
    causes.retain(|&(_, ns)| ns > sum / 1_000);
    causes.sort_by_key(|&(key, ns)| (std::cmp::Reverse(ns), key));
    let shown = causes
        .iter()
        .take(SHOWN)
        .map(|((cause, occupant), ns)| match *occupant {
            "" => format!("{} {}", cause_in_words(cause), ms(*ns)),
            occupant => format!("{} ({occupant}) {}", cause_in_words(cause), ms(*ns)),
        });
    // Causes have commas in them.
    shown.collect::<Vec<_>>().join("; ")
}

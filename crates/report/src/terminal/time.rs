//! Where vCPU time went.

use std::collections::BTreeMap;

use stealtime_analysis::Answers;
use stealtime_analysis::answers::VcpuTime;

use super::grid::{Grid, number, text};
use super::{Section, nothing};
use crate::units::{Times, count, share};

/// The time split of each vCPU in percent of its span.
pub(super) fn split(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        number("vCPU"),
        number("tid"),
        number("span"),
        number("guest"),
        number("exits"),
        number("poll"),
        number("halt"),
        number("block"),
        number("preempt"),
        number("waking"),
        number("unknown"),
    ]);
    for vcpu in &answers.vcpus {
        let part = |ns| share(ns, vcpu.span_ns);
        let maybe = |ns: Option<u64>| ns.map_or_else(|| "?".to_owned(), part);
        grid.row([
            vcpu.vm.clone(),
            vcpu_number(vcpu.vcpu),
            vcpu.tid.to_string(),
            times.show(vcpu.span_ns),
            maybe(vcpu.guest_ns),
            maybe(vcpu.exit_ns),
            maybe(vcpu.poll_ns),
            part(vcpu.halt_ns.saturating_sub(vcpu.blocked_ns)),
            part(vcpu.blocked_ns),
            part(vcpu.preempted_ns),
            part(vcpu.wake_wait_ns),
            times.show_or_dash(vcpu.unknown_ns),
        ]);
        grid.weigh(vcpu.preempted_ns.saturating_add(vcpu.wake_wait_ns));
    }
    Section::new(
        "Where vCPU time went",
        grid,
        nothing(answers, "vCPU", &["kvm:kvm_entry"]),
    )
    .explained(
        "Of each vCPU's span. Steal is preempt (runnable, but taken off its CPU) and waking \
         (woken, but not yet on a CPU). Exits: on a CPU outside the guest. Halt: asleep by a \
         halt; block: asleep in the VMM. Poll: polling in a halt.",
    )
    .with_foot(without_split(&answers.vcpus))
    .summed("of steal")
}

/// `?` for a vCPU that the trace does not number.
#[must_use]
pub fn vcpu_number(vcpu: u32) -> String {
    if vcpu == u32::MAX {
        "?".to_owned()
    } else {
        vcpu.to_string()
    }
}

fn without_split(vcpus: &[VcpuTime]) -> String {
    if vcpus.iter().any(|vcpu| vcpu.guest_ns.is_none()) {
        "?: the recording cannot tell guest, exits and polling apart; kvm_entry and kvm_exit do."
            .to_owned()
    } else {
        String::new()
    }
}

/// On-CPU time outside the guest by reason, vCPUs of a VM together, at most `most` of each.
pub(super) fn handling(answers: &Answers, times: Times, limit: usize) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        text("exit reason"),
        number("exits"),
        number("time"),
        number("share"),
        number("mean"),
    ]);
    let mut omitted = 0;
    for (vm, total, reasons) in by_vm(&answers.vcpus) {
        omitted += reasons.len().saturating_sub(limit);
        for (reason, exits, ns) in reasons.into_iter().take(limit) {
            let mean = ns.checked_div(exits);
            grid.row([
                vm.to_owned(),
                reason.to_owned(),
                count(exits),
                times.show(ns),
                share(ns, total),
                mean.map_or_else(|| "-".to_owned(), |mean| times.show(mean)),
            ]);
            grid.weigh(ns);
        }
    }
    Section::new(
        "Handling exits",
        grid,
        nothing(answers, "exit", &["kvm:kvm_exit", "kvm:kvm_entry"]),
    )
    .explained(
        "Time on a CPU outside the guest, by the exit that it was for; time asleep or \
         waiting for a CPU is not in it. Share: of this VM's.",
    )
    .with_foot(super::ready::left_out(omitted))
    .summed("of handling")
}

pub(crate) type Reasons<'a> = Vec<(&'a str, u64, u64)>;
type Sums<'a> = BTreeMap<&'a str, (u64, u64)>;

/// VMs in the order of the answer; reasons by time, then name.
pub(crate) fn by_vm(vcpus: &[VcpuTime]) -> Vec<(&str, u64, Reasons<'_>)> {
    let mut vms: Vec<(&str, Sums<'_>)> = Vec::new();
    for vcpu in vcpus {
        if vms.iter().all(|(vm, _)| *vm != vcpu.vm) {
            vms.push((&vcpu.vm, BTreeMap::new()));
        }
        let Some((_, reasons)) = vms.iter_mut().find(|(vm, _)| *vm == vcpu.vm) else {
            continue;
        };
        for reason in &vcpu.exit_ns_by_reason {
            let sum = reasons.entry(reason.reason.as_str()).or_default();
            sum.0 = sum.0.saturating_add(reason.count);
            sum.1 = sum.1.saturating_add(reason.ns);
        }
    }
    vms.into_iter()
        .map(|(vm, reasons)| {
            let mut rows: Reasons<'_> = reasons
                .into_iter()
                .map(|(reason, (count, ns))| (reason, count, ns))
                .collect();
            rows.sort_by(|a, b| b.2.cmp(&a.2).then(a.0.cmp(b.0)));
            let total = rows
                .iter()
                .fold(0_u64, |sum, row| sum.saturating_add(row.2));
            (vm, total, rows)
        })
        .collect()
}

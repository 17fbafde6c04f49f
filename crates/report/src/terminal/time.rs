//! Where vCPU time went.

use std::collections::BTreeMap;

use stealtime_analysis::Answers;
use stealtime_analysis::answers::VcpuTime;

use super::grid::{Grid, Side};
use super::{Section, nothing};
use crate::units::{Times, count, share};

/// The time split of each vCPU in percent of its span.
pub(super) fn split(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("vCPU", Side::Number),
        ("tid", Side::Number),
        ("span", Side::Number),
        ("guest", Side::Number),
        ("exits", Side::Number),
        ("poll", Side::Number),
        ("halt", Side::Number),
        ("block", Side::Number),
        ("preempt", Side::Number),
        ("waking", Side::Number),
        ("unknown", Side::Number),
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
            unknown(vcpu, times),
        ]);
    }
    Section {
        title: "Where vCPU time went".to_owned(),
        explain: "Of each vCPU's span. Steal is preempt (runnable, but taken off its CPU) and waking \
                  (woken, but not yet on a CPU). Exits: on a CPU outside the guest. Halt: asleep by a \
                  halt; block: asleep in the VMM. Poll: polling in a halt.",
        grid,
        empty: nothing(answers, "vCPU", &["kvm:kvm_entry"]),
        foot: without_split(&answers.vcpus),
    }
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

fn unknown(vcpu: &VcpuTime, times: Times) -> String {
    if vcpu.unknown_ns == 0 {
        "-".to_owned()
    } else {
        times.show(vcpu.unknown_ns)
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
pub(super) fn handling(answers: &Answers, times: Times, most: usize) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("exit reason", Side::Text),
        ("exits", Side::Number),
        ("time", Side::Number),
        ("share", Side::Number),
        ("mean", Side::Number),
    ]);
    let mut left = 0;
    for (vm, total, reasons) in by_vm(&answers.vcpus) {
        left += reasons.len().saturating_sub(most);
        for (reason, exits, ns) in reasons.into_iter().take(most) {
            let mean = ns.checked_div(exits);
            grid.row([
                vm.to_owned(),
                reason.to_owned(),
                count(exits),
                times.show(ns),
                share(ns, total),
                mean.map_or_else(|| "-".to_owned(), |mean| times.show(mean)),
            ]);
        }
    }
    Section {
        title: "Handling exits".to_owned(),
        explain: "Time on a CPU outside the guest, by the exit that it was for; time asleep or \
                  waiting for a CPU is not in it. Share: of this VM's.",
        grid,
        empty: nothing(answers, "exit", &["kvm:kvm_exit", "kvm:kvm_entry"]),
        foot: super::ready::left_out(left),
    }
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

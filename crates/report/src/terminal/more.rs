//! Latencies, polling, spinning, interrupts and counts.

use stealtime_analysis::Answers;

use super::grid::{Grid, Side};
use super::{Section, nothing};
use crate::units::{Times, count};

/// `-` for zero.
fn count_or_dash(value: u64) -> String {
    if value == 0 {
        "-".to_owned()
    } else {
        count(value)
    }
}

fn time_or_dash(times: Times, value: u64) -> String {
    if value == 0 {
        "-".to_owned()
    } else {
        times.show(value)
    }
}

/// The VMs.
pub(super) fn vms(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("pid", Side::Number),
        ("vCPUs", Side::Number),
        ("told apart by", Side::Text),
    ]);
    for vm in &answers.vms {
        grid.row([
            vm.vm.clone(),
            vm.pid.map_or_else(|| "?".to_owned(), |pid| pid.to_string()),
            vm.vcpus.to_string(),
            say_grouping(&vm.grouped_by).to_owned(),
        ]);
    }
    Section {
        title: "VMs".to_owned(),
        explain: "",
        grid,
        empty: nothing(answers, "VM", &["kvm:kvm_entry"]),
        foot: String::new(),
    }
}

fn say_grouping(how: &str) -> &str {
    match how {
        "recorded" => "the recording's guest names",
        "user" => "--vm-of",
        "process" => "their process",
        "interaction" => "who interrupts whom",
        "order" => "a guess by thread ids; say better with --vm-of",
        other => other,
    }
}

/// Latencies.
pub(super) fn latencies(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("latency", Side::Text),
        ("of", Side::Text),
        ("count", Side::Number),
        ("p50", Side::Number),
        ("p90", Side::Number),
        ("p99", Side::Number),
        ("max", Side::Number),
    ]);
    for row in answers.latencies.iter().filter(|row| row.count > 0) {
        grid.row([
            row.vm.clone(),
            say_latency(&row.kind).to_owned(),
            row.detail.clone(),
            count(row.count),
            times.show(row.p50_ns),
            times.show(row.p90_ns),
            times.show(row.p99_ns),
            times.show(row.max_ns),
        ]);
    }
    Section {
        title: "Latencies".to_owned(),
        explain: "",
        grid,
        empty: nothing(
            answers,
            "latency",
            &["sched:sched_wakeup", "kvm:kvm_apic_ipi", "kvm:kvm_inj_virq"],
        ),
        foot: String::new(),
    }
}

pub(crate) fn say_latency(kind: &str) -> &str {
    match kind {
        "wakeup" => "runnable to running",
        "ipi_accept" => "IPI: ICR write to IRR",
        "ipi_inject" => "IPI: ICR write to injection",
        "ipi_eoi" => "IPI: ICR write to EOI",
        "timer" => "timer: expiry to injection",
        "timer_expire" => "timer: expiry to its handler",
        "injection" => "IRR to injection",
        other => other,
    }
}

/// Spinning and directed yield.
pub(super) fn yields(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("PAUSE exits", Side::Number),
        ("to own VM", Side::Number),
        ("elsewhere", Side::Number),
        ("no switch", Side::Number),
        ("window up", Side::Number),
        ("down", Side::Number),
        ("largest", Side::Number),
    ]);
    let spun = |row: &&stealtime_analysis::answers::Yields| {
        row.pause_exits | row.ple_grow | row.ple_shrink | u64::from(row.ple_window_max) != 0
    };
    for row in answers.yields.iter().filter(spun) {
        let switched = row
            .switched_to_same_vm
            .saturating_add(row.switched_elsewhere);
        grid.row([
            row.vm.clone(),
            count_or_dash(row.pause_exits),
            count_or_dash(row.switched_to_same_vm),
            count_or_dash(row.switched_elsewhere),
            count_or_dash(row.pause_exits.saturating_sub(switched)),
            count_or_dash(row.ple_grow),
            count_or_dash(row.ple_shrink),
            count_or_dash(row.ple_window_max.into()),
        ]);
    }
    Section {
        title: "Spinning and directed yield".to_owned(),
        explain: "What the CPU ran after a PAUSE exit and before the next entry; changes of the \
                  PLE window and its largest value.",
        grid,
        empty: "No vCPU left its guest by a PAUSE exit, and no PLE window changed.".to_owned(),
        foot: String::new(),
    }
}

/// Halt polling.
pub(super) fn polls(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("halts", Side::Number),
        ("woken while polling", Side::Number),
        ("time", Side::Number),
        ("polled in vain", Side::Number),
        ("time", Side::Number),
        ("grown", Side::Number),
        ("shrunk", Side::Number),
    ]);
    for row in answers.halt_polls.iter().filter(|row| row.halts > 0) {
        grid.row([
            row.vm.clone(),
            count(row.halts),
            count_or_dash(row.poll_success),
            time_or_dash(times, row.poll_success_ns),
            count_or_dash(row.poll_fail),
            time_or_dash(times, row.poll_fail_ns),
            count_or_dash(row.grow),
            count_or_dash(row.shrink),
        ]);
    }
    Section {
        title: "Halt polling".to_owned(),
        explain: "",
        grid,
        empty: nothing(answers, "halt", &["kvm:kvm_vcpu_wakeup"]),
        foot: String::new(),
    }
}

/// Host interrupts during guest time.
pub(super) fn interrupts(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        ("VM", Side::Text),
        ("vector", Side::Number),
        ("interrupt", Side::Text),
        ("count", Side::Number),
    ]);
    for row in answers.interrupts.iter().filter(|row| row.count > 0) {
        let vector = row.vector.map(|vector| format!("{vector:#04x}"));
        grid.row([
            row.vm.clone(),
            vector.unwrap_or_else(|| "?".to_owned()),
            row.name.clone(),
            count(row.count),
        ]);
    }
    Section {
        title: "Host interrupts that hit a running guest".to_owned(),
        explain: "",
        grid,
        empty: nothing(answers, "such interrupt", &["kvm:kvm_exit"]),
        foot: String::new(),
    }
}

/// Counts of tracepoints.
pub(super) fn events(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[("tracepoint", Side::Text), ("count", Side::Number)]);
    for event in &answers.events {
        let name = match &event.today {
            Some(today) => format!("{} (today {today})", event.name),
            None => event.name.clone(),
        };
        grid.row([name, count(event.count)]);
    }
    Section {
        title: "Events".to_owned(),
        explain: "",
        grid,
        empty: "No event in this selection.".to_owned(),
        foot: String::new(),
    }
}

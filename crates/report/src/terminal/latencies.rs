//! Latencies of wakeups, IPIs, timers and injections.

use stealtime_analysis::Answers;

use super::grid::{Grid, number, text};
use super::{Section, nothing};
use crate::units::{Times, count};

pub(super) fn section(answers: &Answers, times: Times) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        text("latency"),
        text("of"),
        number("count"),
        number("p50"),
        number("p90"),
        number("p99"),
        number("max"),
    ]);
    for row in answers.latencies.iter().filter(|row| row.count > 0) {
        grid.row([
            row.vm.clone(),
            say(&row.kind).to_owned(),
            row.detail.clone(),
            count(row.count),
            times.show(row.p50_ns),
            times.show(row.p90_ns),
            times.show(row.p99_ns),
            times.show(row.max_ns),
        ]);
    }
    Section::new(
        "Latencies",
        grid,
        nothing(
            answers,
            "latency",
            &["sched:sched_wakeup", "kvm:kvm_apic_ipi", "kvm:kvm_inj_virq"],
        ),
    )
}

pub(crate) fn say(kind: &str) -> &str {
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

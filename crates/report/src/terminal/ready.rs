//! What a CPU ran while a vCPU was ready to run.

use std::collections::BTreeMap;

use stealtime_analysis::Answers;
use stealtime_analysis::answers::cause_in_words;

use super::grid::{Grid, number, text};
use super::{Section, nothing};
use crate::units::{Times, distinct, share};

/// By VM, cause and culprit; vCPUs of a VM together, at most `most` rows of each.
pub(super) fn section(answers: &Answers, times: Times, limit: usize) -> Section {
    let mut grid = Grid::new(&[
        text("VM"),
        text("the CPU had"),
        text("who"),
        number("time"),
        number("share"),
        number("of span"),
        number("most on vCPU"),
    ]);
    let mut omitted = 0;
    for vm in distinct(answers.ready.iter().map(|row| row.vm.as_str())) {
        let rows = causes(answers, vm);
        let total = rows
            .iter()
            .fold(0_u64, |sum, row| sum.saturating_add(row.ns));
        let span = span(answers, vm);
        omitted += rows.len().saturating_sub(limit);
        for row in rows.into_iter().take(limit) {
            grid.row([
                vm.to_owned(),
                cause_in_words(row.cause).to_owned(),
                row.who.to_owned(),
                times.show(row.ns),
                share(row.ns, total),
                share(row.ns, span),
                super::time::vcpu_number(row.worst.1),
            ]);
            grid.weigh(row.ns);
        }
    }
    Section::new(
        "Why ready vCPUs did not run",
        grid,
        nothing(
            answers,
            "waiting for a CPU",
            &["sched:sched_switch", "sched:sched_wakeup"],
        ),
    )
    .explained("Share: of the VM's time ready to run. Of span: of all its vCPUs' time.")
    .with_foot(left_out(omitted))
    .summed("of waiting")
}

/// That rows were left out, and where they are.
pub(super) fn left_out(rows: usize) -> String {
    match rows {
        0 => String::new(),
        1 => "1 smaller row is left out here; JSON and CSV have it.".to_owned(),
        _ => format!("{rows} smaller rows are left out here; JSON and CSV have them."),
    }
}

fn span(answers: &Answers, vm: &str) -> u64 {
    let spans = answers.vcpus.iter().filter(|vcpu| vcpu.vm == vm);
    spans.fold(0, |sum, vcpu| sum.saturating_add(vcpu.span_ns))
}

struct Cause<'a> {
    cause: &'a str,
    who: &'a str,
    ns: u64,
    /// The longest on one vCPU, and which.
    worst: (u64, u32),
}

fn causes<'a>(answers: &'a Answers, vm: &str) -> Vec<Cause<'a>> {
    let mut causes: BTreeMap<(&str, &str), Cause<'_>> = BTreeMap::new();
    for row in answers
        .ready
        .iter()
        .filter(|row| row.vm == vm && row.ns > 0)
    {
        let cause = causes.entry((&row.cause, &row.who)).or_insert(Cause {
            cause: &row.cause,
            who: &row.who,
            ns: 0,
            worst: (0, row.vcpu),
        });
        cause.ns = cause.ns.saturating_add(row.ns);
        if row.ns > cause.worst.0 {
            cause.worst = (row.ns, row.vcpu);
        }
    }
    let mut causes: Vec<_> = causes.into_values().collect();
    causes.sort_by(|a, b| {
        let names = (a.cause, a.who).cmp(&(b.cause, b.who));
        b.ns.cmp(&a.ns).then(names)
    });
    causes
}

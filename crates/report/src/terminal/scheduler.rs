//! Directed yields that `scx_stealtime` decided on.

use stealtime_analysis::Answers;
use stealtime_analysis::answers::SchedulerCount;

use super::Section;
use super::grid::{Grid, number, text};
use crate::units::{Times, count, share};

pub(super) fn section(answers: &Answers) -> Section {
    let mut grid = Grid::new(&[
        text("what"),
        text("which"),
        number("count"),
        number("of it"),
        number("time"),
        number("half within"),
    ]);
    for row in &answers.scheduler {
        // These are of the host's clock, whatever the trace's is.
        let time = |ns: Option<u64>| Times::Ns.show_or_dash(ns.unwrap_or(0));
        grid.row([
            name(&row.what).to_owned(),
            row.kind.replace('_', " "),
            count(row.count),
            share(row.count, total(answers, row)),
            time(row.ns),
            time(row.half_within_ns),
        ]);
    }
    Section::new(
        "Directed yields under scx_stealtime",
        grid,
        "The host's snapshots of the begin and the end have no counters of scx_stealtime.",
    )
    .explained(
        "Served yields run the receiver of the yielder's IPI, a vCPU with a pending interrupt, or KVM's \
         nominee; a refused one lets KVM try its next candidate. Targets that are missed have left the \
         queue. Times: from yields until targets ran, at the yielder's cost, and service moved by credits.",
    )
}

/// The whole that a row is a part of: all yields, all targets, all loans, all nominees, all IPIs.
fn total(answers: &Answers, row: &SchedulerCount) -> u64 {
    let is_part = |part: &&SchedulerCount| match row.what.as_str() {
        "served" | "refused" => matches!(part.what.as_str(), "served" | "refused"),
        "target" => part.what == "target",
        // What is lent, or tracked, has its ends in the other rows.
        "loan" => part.what == "loan" && part.kind == "lent",
        "request" => part.what == "served" && part.kind == "nominee",
        "ipi" => part.what == "ipi" && part.kind == "tracked",
        _ => *part == row,
    };
    let rows = answers.scheduler.iter().filter(is_part);
    rows.fold(0, |sum, row| sum.saturating_add(row.count))
}

fn name(group: &str) -> &str {
    match group {
        "served" => "yields served",
        "refused" => "yields refused",
        "target" => "targets",
        "loan" => "slices",
        "request" => "requests",
        "credit" => "credits",
        "ipi" => "IPIs",
        _ => group,
    }
}

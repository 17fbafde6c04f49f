//! VMs moved between hosts, as a page.

use stealtime_whatif::capacity::{Check, Figure, Limit, Outcome, RebalanceDocument, with_band};

use super::{Axis, Cell, Chart, Interval, Lead, Mark, Page, Table};
use crate::count;
use crate::terminal::fit::figure;
use crate::terminal::rebalance::{HostState, assumed, limits, moved, named, outcome, recorded};
use crate::whatif_text::{PARTIAL_RECORDING, errors};

/// All of it; `command` does it again.
#[must_use]
pub fn page(document: &RebalanceDocument, command: &str) -> Page {
    let rebalance = &document.rebalance;
    let paths: Vec<&str> = document
        .recordings
        .iter()
        .map(|host| host.path.as_str())
        .collect();
    let mut page = Page::new("fit", paths.join(", ")).made_by(command);
    for recording in &document.recordings {
        page.fact(format!(
            "{}{:.3} s, {} CPUs, {} events",
            named(recording),
            recording.span_ns as f64 / 1e9,
            recording.cpus,
            count(recording.events)
        ));
    }
    page.fact(limits(rebalance));
    page.fact("Answers are of CPU time alone: memory, caches, disks and networks are left out.");
    for recording in &document.recordings {
        let host = &recording.host;
        if recording.recording_partial {
            page.first(format!("{host}: {PARTIAL_RECORDING}"));
        }
        if !recording.error.is_close() {
            page.warning(format!(
                "{host}: the replay as recorded is too far from the recording to trust its figures: {}.",
                errors(&recording.error)
            ));
        }
        for lack in &recording.lacks {
            page.warning(format!("Lacking in {host}: {}", lack.shown()));
        }
    }
    page.lead(Lead {
        about: "Rebalance:".to_owned(),
        says: rebalance.sentence.clone(),
        more: Vec::new(),
        steps: Vec::new(),
        mark: match (rebalance.is_balanced, rebalance.moves.is_empty()) {
            (false, _) => Mark::Worse,
            (true, true) => Mark::Plain,
            (true, false) => Mark::Better,
        },
    });
    charts(document, &mut page);
    tables(document, &mut page);
    page.section("Left out");
    for line in document.refused.iter().chain(&document.unknown) {
        page.text(line.clone());
    }
    page.section("What was taken for true");
    for line in assumed(document) {
        page.text(line);
    }
    page.section("Run it again");
    page.lines(command);
    page
}

/// Each limit: the VMs before and after the moves.
fn charts(document: &RebalanceDocument, page: &mut Page) {
    page.section("Before and after");
    for limit in &document.rebalance.limits {
        let mut rows = Vec::new();
        for host in &document.rebalance.hosts {
            let states = [
                ("as recorded", Some(&host.before)),
                ("after the moves", host.after.as_ref()),
            ];
            for (state, point) in states {
                let checks = point.into_iter().flat_map(|point| &point.checks);
                let checks = checks.filter(|check| is_of(check, limit));
                rows.extend(checks.map(|check| row(&host.host, state, check)));
            }
        }
        let unit = if limit.figure.is_time() { "us" } else { "%" };
        let title = format!("{} of each VM (limit {})", limit.figure.name(), limit);
        page.chart(
            title.clone(),
            format!(
                "{title}: a row for each VM of each host, with its band; the table has the numbers."
            ),
            Chart::Limited {
                axis: Axis::plain(format!("{}, {unit}", limit.figure.name()), ""),
                limit: limit.value,
                rows,
            },
        );
    }
}

/// Whether a check is of a limit: it names the VM as the fleet does.
fn is_of(check: &Check, limit: &Limit) -> bool {
    let found = &check.limit;
    let is_named = match (&found.vm, &limit.vm) {
        (Some(vm), Some(name)) => vm == name || vm.starts_with(&format!("{name}@")),
        (vm, name) => vm.is_none() && name.is_none(),
    };
    is_named
        && (found.figure, found.side) == (limit.figure, limit.side)
        && found.value == limit.value
}

fn row(path: &str, state: &str, check: &Check) -> Interval {
    let subject = check.vm.as_deref().unwrap_or("the host");
    Interval {
        name: format!("{path} {state}: {subject}"),
        value: check.value.mean,
        half_width: check.value.half_width,
        published: None,
        mark: match check.outcome {
            Outcome::Holds => Mark::Better,
            Outcome::Fails => Mark::Worse,
            Outcome::ProbablyHolds | Outcome::ProbablyFails => Mark::Noise,
        },
        says: with_band(check.limit.figure, check.value),
    }
}

/// The hosts as recorded, and the two hosts of each move after it.
fn tables(document: &RebalanceDocument, page: &mut Page) {
    let rebalance = &document.rebalance;
    page.section("Step by step");
    table("As recorded".to_owned(), &recorded(rebalance), page);
    for (number, step) in (1..).zip(&rebalance.moves) {
        let number: usize = number;
        let title = format!("Move {number}: {}", step.shown());
        table(title, &moved(step), page);
    }
}

fn table(title: String, hosts: &[HostState<'_>], page: &mut Page) {
    let heads = [
        "host",
        "VM",
        "busy %",
        "ready",
        "wakeup p50",
        "p99",
        "work",
        "limits",
    ];
    let mut table = Table::new(title, &heads, 2).ending_in_words(1).explained(
        "±: 95 % of single replays, and the error of the replay as recorded. Work: in percent of the VM's \
         work alone on the host, where a limit is of it.",
    );
    for HostState { host, point } in hosts {
        for vm in point.iter().flat_map(|point| &point.vms) {
            let busy = point.map_or(0.0, |point| point.busy_percent);
            let cells = [
                (*host).to_owned(),
                vm.vm.clone(),
                format!("{busy:.0}"),
                figure(vm, Figure::Ready),
                figure(vm, Figure::WakeupP50),
                figure(vm, Figure::WakeupP99),
                figure(vm, Figure::Work),
                point.map_or("", |point| outcome(point, vm)).to_owned(),
            ];
            table.row(cells.map(Cell::from));
        }
    }
    page.table(table);
}

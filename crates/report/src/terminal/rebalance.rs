//! VMs moved between hosts, as tables.

use stealtime_whatif::CLOSE;
use stealtime_whatif::capacity::{
    Figure, HostRecording, Migration, Outcome, Point, PointVm, Rebalance, RebalanceDocument,
};

use super::fit::{figure, limits_line, paragraph};
use super::grid::{Grid, number, text};
use super::{Screen, Style};
use crate::whatif_text::{PARTIAL_RECORDING, errors};
use crate::{count, escape};

/// What the columns are.
const LEGEND: &str = "busy: the host. ±: 95 % of single replays, and the error of the replay as recorded. \
    limits: those of the VM, and of its host.";

/// All of it.
#[must_use]
pub fn render(document: &RebalanceDocument, style: Style) -> String {
    let mut screen = Screen::new(style);
    let rebalance = &document.rebalance;
    for recording in &document.recordings {
        head(recording, &mut screen);
    }
    let leaves_out = "Answers are of CPU time alone: memory, caches, disks and networks are left out (see \
                      the end).";
    paragraph(&mut screen, 0, leaves_out);
    screen.text.push('\n');
    paragraph(&mut screen, 0, &rebalance.sentence);
    screen.text.push('\n');
    paragraph(&mut screen, 0, &limits(rebalance));
    screen.heading("As recorded");
    table(rebalance, &recorded(rebalance), &mut screen);
    for (number, step) in (1..).zip(&rebalance.moves) {
        let number: usize = number;
        let title = format!("Move {number}: {}", step.shown());
        screen.heading(&escape::terminal(&title));
        table(rebalance, &moved(step), &mut screen);
    }
    paragraph(&mut screen, 2, LEGEND);
    screen.heading("Left out");
    for line in document.refused.iter().chain(&document.unknown) {
        paragraph(&mut screen, 2, line);
    }
    for recording in &document.recordings {
        for lack in &recording.lacks {
            let line = format!("Lacking in {}: {}", recording.host, lack.shown());
            paragraph(&mut screen, 2, &line);
        }
    }
    screen.heading("Assumed");
    for line in assumed(document) {
        paragraph(&mut screen, 2, &line);
    }
    screen.text
}

/// The host's name and the path of its recording, if they differ.
pub(crate) fn named(recording: &HostRecording) -> String {
    match recording.host == recording.path {
        true => format!("{}: ", recording.path),
        false => format!("{}: {}, ", recording.host, recording.path),
    }
}

fn head(recording: &HostRecording, screen: &mut Screen) {
    let facts = format!(
        "{}{:.3} s, {} CPUs, {} events",
        named(recording),
        recording.span_ns as f64 / 1e9,
        recording.cpus,
        count(recording.events)
    );
    paragraph(screen, 0, &facts);
    if recording.recording_partial {
        paragraph(screen, 2, PARTIAL_RECORDING);
    }
    if !recording.error.is_close() {
        let far = format!(
            "Note: the replay as recorded is too far from the recording to trust its figures: {}. {CLOSE}",
            errors(&recording.error)
        );
        paragraph(screen, 2, &far);
    }
}

/// The limits, or the definition of the knee.
pub(crate) fn limits(rebalance: &Rebalance) -> String {
    match rebalance.knee {
        Some(knee) => format!("No --limit: every VM stays below the knee. {knee}"),
        None => limits_line(&rebalance.limits),
    }
}

/// What all replays take for true.
pub(crate) fn assumed(document: &RebalanceDocument) -> Vec<String> {
    let mut lines = Vec::new();
    for recording in &document.recordings {
        let host = &recording.host;
        lines.extend(
            recording
                .assumed
                .iter()
                .map(|line| format!("{host}: {line}")),
        );
        if !recording.guessed.is_empty() {
            let guessed = recording.guessed.join(", ");
            lines.push(format!(
                "{host}: which threads are vCPUs of {guessed} is a guess"
            ));
        }
        lines.push(format!(
            "{host}: the replay as recorded is off by {}",
            errors(&recording.error)
        ));
    }
    lines.push(format!(
        "Replays: {}, {} seeds near a limit",
        document.replays, document.seeds
    ));
    lines
}

/// The least that holds of the limits of a VM and of its host.
pub(crate) fn outcome(point: &Point, vm: &PointVm) -> &'static str {
    let checks = point.checks.iter();
    let checks = checks.filter(|check| check.vm.as_ref().is_none_or(|name| *name == vm.vm));
    let outcomes: Vec<Outcome> = checks.map(|check| check.outcome).collect();
    let worst = [
        (Outcome::Fails, "fail"),
        (Outcome::ProbablyFails, "probably fail"),
        (Outcome::ProbablyHolds, "probably hold"),
        (Outcome::Holds, "hold"),
    ];
    let worst = worst.iter().find(|(outcome, _)| outcomes.contains(outcome));
    match worst {
        Some((_, word)) => word,
        None if vm.is_elastic => "none (elastic)",
        None => "none",
    }
}

/// A host in one state; `None` without VMs.
pub(crate) struct HostState<'p> {
    pub(crate) host: &'p str,
    pub(crate) point: Option<&'p Point>,
}

/// All hosts as recorded.
pub(crate) fn recorded(rebalance: &Rebalance) -> Vec<HostState<'_>> {
    let states = rebalance.hosts.iter().map(|host| HostState {
        host: &host.host,
        point: Some(&host.before),
    });
    states.collect()
}

/// The two hosts of a move after it.
pub(crate) fn moved(step: &Migration) -> [HostState<'_>; 2] {
    let state = |host, point| HostState { host, point };
    [
        state(&step.source, step.source_after.as_ref()),
        state(&step.destination, Some(&step.destination_after)),
    ]
}

/// Each VM of some hosts; a host without VMs has a row.
fn table(rebalance: &Rebalance, hosts: &[HostState<'_>], screen: &mut Screen) {
    let has_work = rebalance
        .limits
        .iter()
        .any(|limit| limit.figure == Figure::Work);
    let mut columns = vec![
        text("host"),
        number("busy"),
        text("VM"),
        number("ready"),
        number("wakeup p50"),
        number("p99"),
    ];
    columns.extend(has_work.then_some(number("work")));
    columns.push(text("limits"));
    let mut grid = Grid::new(&columns);
    for HostState { host, point } in hosts {
        let Some(point) = point else {
            let mut cells = vec![(*host).to_owned(), "-".to_owned(), "no VM".to_owned()];
            cells.resize(columns.len(), "-".to_owned());
            grid.row(cells);
            continue;
        };
        for vm in &point.vms {
            let mut cells = vec![
                (*host).to_owned(),
                format!("{:.0} %", point.busy_percent),
                vm.vm.clone(),
                figure(vm, Figure::Ready),
                vm.wakeup_p50_us
                    .map_or_else(|| "-".to_owned(), |p50| Figure::WakeupP50.shown(p50.mean)),
                figure(vm, Figure::WakeupP99),
            ];
            cells.extend(has_work.then(|| figure(vm, Figure::Work)));
            cells.push(outcome(point, vm).to_owned());
            grid.row(cells);
        }
    }
    grid.render(screen);
}

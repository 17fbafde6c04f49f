//! How many VMs fit, as a page.

use stealtime_whatif::capacity::{
    Curve, Figure, FitDocument, Limit, Outcome, Point, Removals, with_band,
};

use super::{Axis, Cell, Chart, Interval, Lead, Mark, Page, Table};
use crate::count;
use crate::terminal::fit::{count_name, curves, figure, limits, outcome};
use crate::whatif_text::{PARTIAL_RECORDING, errors, estimate};

/// Charts of a curve: one for each limit of each VM would be too many to look at.
const MOST_CHARTS: usize = 6;
/// Curves in the sentences at the top.
const MOST_LEADS: usize = 12;

/// All of it; `command` does it again.
#[must_use]
pub fn page(document: &FitDocument, command: &str) -> Page {
    let capacity = &document.capacity;
    let mut page = Page::new("fit", document.path.clone()).made_by(command);
    page.fact(format!(
        "{:.3} s, {} CPUs, {} events",
        document.span_ns as f64 / 1e9,
        document.cpus,
        count(document.events)
    ));
    if let Some(changes) = &document.changes {
        page.fact(format!("Changed: {changes}"));
    }
    page.fact(limits(document));
    page.fact("Answers are of CPU time alone: memory, caches, disks and networks are left out.");
    if let Some(memory) = document.memory_sentence() {
        page.fact(memory);
    }
    if document.recording_partial {
        page.first(PARTIAL_RECORDING);
    }
    if !document.error.is_close() {
        page.warning(format!(
            "The replay as recorded is too far from the recording to trust counts: {}.",
            errors(&document.error)
        ));
    }
    for lack in &document.lacks {
        page.warning(format!("Lacking: {}", lack.shown()));
    }
    if let Some(removals) = &capacity.removals {
        of_removals(removals, &mut page);
    }
    for curve in curves(capacity).iter().take(MOST_LEADS) {
        page.lead(Lead {
            about: format!("{}:", curve.of),
            says: document.answer(curve),
            more: Vec::new(),
            steps: Vec::new(),
            mark: match curve.largest {
                None => Mark::Worse,
                Some(largest) if largest == curve.first => Mark::Plain,
                Some(_) => Mark::Better,
            },
        });
    }
    for curve in curves(capacity) {
        of_curve(curve, &capacity.limits, &mut page);
    }
    page.section("Left out");
    for line in &capacity.unknown {
        page.text(line.clone());
    }
    page.section("What was taken for true");
    for assumed in &document.assumed {
        page.text(assumed.clone());
    }
    page.text(format!(
        "The replay as recorded is off by {}.",
        errors(&document.error)
    ));
    page.section("Run it again");
    page.lines(command);
    page
}

fn of_curve(curve: &Curve, limits: &[Limit], page: &mut Page) {
    page.section(format!("Count of {}", curve.of));
    let mut charts = 0;
    for limit in limits {
        for (vm, is_broken) in charted(curve, limit) {
            if charts < MOST_CHARTS || is_broken {
                charts += 1;
                chart(curve, limit, vm.as_deref(), page);
            }
        }
    }
    let heads = [
        "count",
        "VM",
        "how many",
        "busy %",
        "ready",
        "wakeup p50",
        "p99",
        "work",
        "limits",
    ];
    let mut table = Table::new("The curve", &heads, 2).ending_in_words(1).explained(
        "Figures of a VM are means over it and its copies. ±: 95 % of single replays, and the error of the \
         replay as recorded. Work: in percent of the VM's work alone on the host.",
    );
    for point in &curve.points {
        for vm in &point.vms {
            let cells = [
                count_name(curve, point.count),
                vm.vm.clone(),
                vm.count.to_string(),
                format!("{:.0}", point.busy_percent),
                figure(vm, Figure::Ready),
                figure(vm, Figure::WakeupP50),
                figure(vm, Figure::WakeupP99),
                figure(vm, Figure::Work),
                outcome(point).to_owned(),
            ];
            table.row(cells.map(Cell::from));
        }
    }
    page.table(table);
}

/// The VMs that a limit is held against, the one that breaks it first; `None` is the host.
fn charted(curve: &Curve, limit: &Limit) -> Vec<(Option<String>, bool)> {
    let broken = curve.failure.as_ref().map(|failure| &failure.check);
    let broken = broken.filter(|check| check.limit == *limit);
    let checks = curve.points.first().map(|point| &point.checks);
    let checks = checks
        .into_iter()
        .flatten()
        .filter(|check| check.limit == *limit);
    let vms = checks.map(|check| {
        let is_broken = broken.is_some_and(|broken| broken.vm == check.vm);
        (check.vm.clone(), is_broken)
    });
    let mut vms: Vec<(Option<String>, bool)> = vms.collect();
    vms.sort_by_key(|(_, is_broken)| !is_broken);
    vms
}

/// A figure over the count: the band of each count, and the limit.
fn chart(curve: &Curve, limit: &Limit, vm: Option<&str>, page: &mut Page) {
    let row = |point: &Point| {
        let is_it = |check: &&stealtime_whatif::capacity::Check| {
            check.limit == *limit && check.vm.as_deref() == vm
        };
        let check = point.checks.iter().find(is_it)?;
        Some(Interval {
            name: count_name(curve, point.count),
            value: check.value.mean,
            half_width: check.value.half_width,
            published: None,
            mark: match check.outcome {
                Outcome::Holds => Mark::Better,
                Outcome::Fails => Mark::Worse,
                Outcome::ProbablyHolds | Outcome::ProbablyFails => Mark::Noise,
            },
            says: with_band(limit.figure, check.value),
        })
    };
    let rows: Vec<Interval> = curve.points.iter().filter_map(row).collect();
    let unit = if limit.figure.is_time() { "us" } else { "%" };
    let title = format!(
        "{} of {} by the count of {} (limit {})",
        limit.figure.name(),
        vm.unwrap_or("the host"),
        curve.of,
        limit.figure.shown(limit.value)
    );
    let describes =
        format!("{title}: a row for each count, with its band; the table has the numbers.");
    page.chart(
        title,
        describes,
        Chart::Limited {
            axis: Axis::plain(format!("{}, {unit}", limit.figure.name()), ""),
            limit: limit.value,
            rows,
        },
    );
}

fn of_removals(removals: &Removals, page: &mut Page) {
    page.lead(Lead {
        about: "Take away:".to_owned(),
        says: removals.sentence.clone(),
        more: Vec::new(),
        steps: Vec::new(),
        mark: Mark::Plain,
    });
    page.section("Each VM taken away alone");
    let rows = removals.ranked.iter().map(|row| Interval {
        name: format!("without {}", row.vm),
        value: row.spared_ms.mean,
        half_width: row.spared_ms.half_width,
        published: None,
        mark: match row
            .vms
            .iter()
            .any(|vm| vm.is_beyond_noise && vm.spared_ms.mean > 0.0)
        {
            true => Mark::Better,
            false => Mark::Noise,
        },
        says: format!("{} ms/s", estimate(&row.spared_ms)),
    });
    page.chart(
        "Waiting that the other VMs are spared",
        "A row for each VM that is taken away, with a 95 % interval; the table has the numbers.",
        Chart::Intervals {
            axis: Axis::plain("waiting spared, ms a second", ""),
            rows: rows.collect(),
        },
    );
    let heads = [
        "without",
        "VM",
        "ready %",
        "then",
        "spared ms/s",
        "work ms/s",
    ];
    let mut table = Table::new("What each VM gains", &heads, 2);
    for row in &removals.ranked {
        for vm in &row.vms {
            let cells = [
                row.vm.clone(),
                vm.vm.clone(),
                format!("{:.1}", vm.ready_percent),
                format!("{:.1}", vm.ready_without_percent),
                estimate(&vm.spared_ms),
                estimate(&vm.work_ms),
            ];
            table.row(cells.map(Cell::from));
        }
    }
    page.table(table);
}

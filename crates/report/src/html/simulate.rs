//! Variants of a scenario, compared, as a page.

use stealtime_lab::compare::{Comparison, Row};
use stealtime_lab::metric::Subject;
use stealtime_lab::stats::{Difference, Verdict};

use super::effect::Effect;
use super::{Axis, Cell, Chart, Interval, Lead, Mark, Page, Table, time};
use crate::terminal::compare::number::{difference, value};
use crate::terminal::compare::{PARTIAL, changes, failures, parties, party, run_facts};

/// VMs and tasks that have sentences and charts of their own, up to eight charts each.
const MOST_PARTIES: usize = 8;
/// Metrics of each of them that have a chart, in this order, if something changed in them.
const CHARTED: [&str; 8] = [
    "throughput",
    "latency mean",
    "latency p99",
    "steal",
    "spinning",
    "interrupt response mean",
    "largest step back",
    "clocks are off by",
];
/// Metrics in the sentences at the top, in this order.
const HEADLINES: [&str; 5] = [
    "throughput",
    "latency mean",
    "latency p99",
    "steal",
    "clocks are off by",
];

/// The page of a comparison; `scenario` is the text of its file, `command` runs it again.
#[must_use]
pub fn page(comparison: &Comparison, scenario: &str, command: &str) -> Page {
    let title = match comparison.about.as_str() {
        "" => comparison.scenario.clone(),
        about => about.to_owned(),
    };
    let mut page = Page::new("simulate", title).made_by(command);
    page.fact(format!(
        "{}: {}.",
        comparison.scenario,
        run_facts(comparison)
    ));
    if comparison.partial {
        page.warning(PARTIAL);
    }
    for failure in failures(comparison) {
        page.warning(failure);
    }
    leads(comparison, &mut page);
    if comparison.variants.len() > 1 {
        effects(comparison, &mut page);
    }
    page.section("Tables");
    tables(comparison, &mut page);
    page.section("Where vCPU time went");
    times(comparison, &mut page);
    if let Some(row) = row(comparison, &Subject::Host, "share error") {
        fairness(comparison, row, &mut page);
    }
    page.section("The scenario");
    page.text("Run it again with:");
    page.lines(command);
    page.lines(scenario);
    page
}

fn row<'c>(comparison: &'c Comparison, subject: &Subject, name: &str) -> Option<&'c Row> {
    let mut rows = comparison.rows.iter();
    rows.find(|row| row.of == *subject && row.name == name)
}

fn of_variant(row: &Row, variant: usize) -> Option<&Difference> {
    row.cells.get(variant)?.as_ref()?.difference.as_ref()
}

/// Of each variant what it changes in what counts.
fn leads(comparison: &Comparison, page: &mut Page) {
    let parties = parties(comparison);
    for (index, variant) in comparison.variants.iter().enumerate().skip(1) {
        let mut says = Vec::new();
        let mut marks = Vec::new();
        for subject in parties.iter().take(MOST_PARTIES) {
            for name in HEADLINES {
                let Some(row) = row(comparison, subject, name) else {
                    continue;
                };
                let Some(change) = of_variant(row, index) else {
                    continue;
                };
                // What is the same or noise is said of the first of these only.
                let is_clear = matches!(change.verdict, Verdict::Better | Verdict::Worse);
                if is_clear || name == HEADLINES[0] {
                    let text = difference(row.unit, change);
                    says.push(match parties.len() {
                        1 => format!("{name} {text}"),
                        _ => format!("{} {name} {text}", party(subject)),
                    });
                    marks.push(Mark::difference(change, row.unit));
                }
            }
        }
        let mark = match (marks.contains(&Mark::Better), marks.contains(&Mark::Worse)) {
            (true, false) => Mark::Better,
            (false, true) => Mark::Worse,
            (true, true) => Mark::Plain,
            (false, false) => Mark::Noise,
        };
        page.lead(Lead {
            about: format!("{}:", variant.name),
            says: match says.is_empty() {
                true => "nothing to compare.".to_owned(),
                false => format!("{}.", says.join("; ")),
            },
            more: vec![changes(comparison, variant)],
            steps: Vec::new(),
            mark,
        });
    }
}

/// The effect of each variant against the first.
fn effects(comparison: &Comparison, page: &mut Page) {
    let first = comparison.variants.first().map_or("", |v| v.name.as_str());
    page.section(format!("What changes against {first}"));
    page.note(
        "Differences are paired by seed; a change is more than noise where its 95% interval leaves \
         out 0.",
    );
    let parties = parties(comparison);
    let mut drawn = 0;
    for subject in parties.iter().take(MOST_PARTIES) {
        for name in CHARTED {
            let Some(row) = row(comparison, subject, name) else {
                continue;
            };
            let moves = (1..comparison.variants.len())
                .filter_map(|index| of_variant(row, index))
                .any(|change| change.verdict != Verdict::Same);
            if moves {
                effect(comparison, row, first, page);
                drawn += 1;
            }
        }
    }
    if drawn == 0 {
        page.text("Nothing that is charted changes; the tables have all metrics.");
    }
    if parties.len() > MOST_PARTIES {
        page.note(format!(
            "Of {} VMs and tasks the first {MOST_PARTIES} have charts; the tables have all.",
            parties.len()
        ));
    }
}

fn effect(comparison: &Comparison, row: &Row, first: &str, page: &mut Page) {
    let changes = comparison
        .variants
        .iter()
        .enumerate()
        .skip(1)
        .map(|(index, variant)| (variant.name.clone(), of_variant(row, index)));
    Effect {
        what: format!("{}: {}", party(&row.of), row.name),
        first,
        unit: row.unit,
        better: row.better,
        changes: changes.collect(),
    }
    .chart(page);
}

/// Where the time of each VM's vCPUs went, a bar for each variant.
fn times(comparison: &Comparison, page: &mut Page) {
    let names: Vec<String> = comparison.variants.iter().map(|v| v.name.clone()).collect();
    for subject in parties(comparison).iter().take(MOST_PARTIES) {
        let mean = |name: &str, index: usize| {
            let cell =
                row(comparison, subject, name).and_then(|row| row.cells.get(index)?.as_ref());
            cell.map_or(0.0, |cell| cell.estimate.mean)
        };
        time::chart(
            format!("{}: time of its vCPUs", party(subject)),
            "Bars of the shares of time in the guest, in exits, polling, waiting for a CPU and asleep, \
             for each variant; the tables have the numbers.",
            names.clone(),
            mean,
            page,
        );
    }
}

/// How far VMs are from what their weights give them.
fn fairness(comparison: &Comparison, row: &Row, page: &mut Page) {
    page.section("Fairness");
    let cells = comparison.variants.iter().zip(&row.cells);
    let rows = cells.filter_map(|(variant, cell)| {
        let cell = cell.as_ref()?;
        let change = cell.difference.as_ref();
        let against = change.map_or_else(String::new, |change| {
            format!(" ({})", difference(row.unit, change))
        });
        Some(Interval {
            name: variant.name.clone(),
            value: cell.estimate.mean,
            half_width: cell.estimate.half_width,
            published: None,
            mark: change.map_or(Mark::Plain, |change| Mark::difference(change, row.unit)),
            says: format!("{}{against}", value(row.unit, &cell.estimate)),
        })
    });
    page.chart(
        "Largest difference between what a VM has got and its share by weight; lower is better",
        "Share error of each variant with 95 % intervals; the table of the host has the numbers.",
        Chart::Intervals {
            axis: Axis::plain("share error, % of all VMs' CPU time", " %"),
            rows: rows.collect(),
        },
    );
}

/// Every metric that is not 0 in all variants, a table for each VM and task, and the host.
fn tables(comparison: &Comparison, page: &mut Page) {
    let mut heads = vec!["metric"];
    heads.extend(comparison.variants.iter().map(|v| v.name.as_str()));
    let mut subjects = parties(comparison);
    subjects.push(&Subject::Host);
    for subject in subjects {
        let mut table = Table::new(party(subject), &heads, 1);
        let rows = comparison.rows.iter().filter(|row| {
            let is_zero = row
                .cells
                .iter()
                .flatten()
                .all(|cell| cell.estimate.mean == 0.0);
            row.of == *subject && !is_zero
        });
        for row in rows {
            let cells = row.cells.iter().map(|cell| match cell {
                None => Cell::from("-"),
                Some(cell) => {
                    let text = value(row.unit, &cell.estimate);
                    Cell::compared(text, cell.difference.as_ref(), row.unit)
                }
            });
            table.row(std::iter::once(Cell::from(row.name.as_str())).chain(cells));
        }
        if !table.is_empty() {
            page.table(table);
        }
    }
    page.note("Metrics that are 0 in every variant are left out.");
}

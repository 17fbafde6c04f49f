//! What a sweep found, as a page.

use stealtime_lab::sweep::{Effect as Varied, Summary};

use super::effect::Effect;
use super::{Cell, Lead, Mark, Page, Table, time};
use crate::terminal::compare::number::{difference, value};
use crate::terminal::compare::party;
use crate::terminal::sweep::{MEANS, failures};

/// The page of a sweep of `scenario` (its name and text); `facts` say what was varied, `command` runs
/// it again.
#[must_use]
pub fn page(summary: &Summary, scenario: (&str, &str), facts: Vec<String>, command: &str) -> Page {
    let (name, text) = scenario;
    let mut page = Page::new("sweep", name).made_by(command);
    facts.into_iter().for_each(|fact| page.fact(fact));
    if let Some(failures) = failures(summary) {
        page.warning(failures);
    }
    for best in &summary.best {
        let Some(point) = best.points.first() else {
            continue;
        };
        page.lead(Lead {
            about: format!("Best {}:", best.metric),
            says: value(best.unit, &point.estimate),
            more: vec![point.to_string()],
            mark: Mark::Plain,
        });
    }
    effects(summary, &mut page);
    times(summary, &mut page);
    page.section("Tables");
    tables(summary, &mut page);
    page.section("The scenario");
    page.text("Run it again with:");
    page.lines(command);
    page.lines(text);
    page
}

fn effects(summary: &Summary, page: &mut Page) {
    page.section("What each value changes");
    if summary.effects.is_empty() {
        page.text("Nothing is varied, or no run has such a metric.");
        return;
    }
    page.note(MEANS);
    for varied in &summary.effects {
        let first = varied.levels.first().map_or("", |level| &level.value);
        let levels = varied.levels.iter().skip(1);
        Effect {
            what: format!("{} by {}", varied.metric, varied.knob),
            first: &format!("{}={first}", varied.knob),
            unit: varied.unit,
            better: varied.better,
            changes: levels
                .map(|level| (level.value.clone(), level.difference.as_ref()))
                .collect(),
        }
        .chart(page);
    }
}

/// Rows of a chart of times; the results have all.
const MOST_LEVELS: usize = 60;
/// Charts of times.
const MOST_TIMES: usize = 12;

/// Where vCPUs' time went, a bar for each value of what is varied.
fn times(summary: &Summary, page: &mut Page) {
    if summary.times.is_empty() {
        return;
    }
    page.section("Where vCPU time went");
    page.note("Means over the rest of the grid and all seeds; the results have each run's.");
    for split in summary.times.iter().take(MOST_TIMES) {
        let of = |metric: &str| split.states.iter().find(|state| state.0 == metric);
        let mean = |metric: &str, at: usize| {
            let value = of(metric).and_then(|state| *state.1.get(at)?);
            value.unwrap_or(0.0)
        };
        let more = match split.levels.len() {
            all if all > MOST_LEVELS => format!(" (the first {MOST_LEVELS} of {all})"),
            _ => String::new(),
        };
        let levels = split.levels.iter().take(MOST_LEVELS);
        time::chart(
            format!(
                "{}: time of its vCPUs by {}{more}",
                party(&split.of),
                split.knob
            ),
            "Bars of the shares of time in the guest, in exits, polling, waiting for a CPU and asleep, \
             for each value; the results have the numbers.",
            levels.cloned().collect(),
            mean,
            page,
        );
    }
    if summary.times.len() > MOST_TIMES {
        page.note(format!(
            "The first {MOST_TIMES} of {} are charted.",
            summary.times.len()
        ));
    }
}

fn tables(summary: &Summary, page: &mut Page) {
    let mut metrics: Vec<&str> = Vec::new();
    for varied in &summary.effects {
        if !metrics.contains(&varied.metric.as_str()) {
            metrics.push(&varied.metric);
        }
    }
    for metric in metrics {
        let heads = ["varied", "value", "mean", "against the first"];
        let mut table = Table::new(metric, &heads, 2);
        for varied in summary.effects.iter().filter(|e| e.metric == metric) {
            levels(varied, &mut table);
        }
        page.table(table);
    }
    for best in &summary.best {
        let mut table = Table::new(format!("Best {}", best.metric), &["point", "mean"], 1);
        for point in &best.points {
            table.row([
                point.to_string().into(),
                value(best.unit, &point.estimate).into(),
            ]);
        }
        page.table(table);
    }
}

fn levels(varied: &Varied, table: &mut Table) {
    for level in &varied.levels {
        let mean = level.estimate.map(|mean| value(varied.unit, &mean));
        let told = level.difference.as_ref();
        table.row([
            varied.knob.as_str().into(),
            level.value.as_str().into(),
            mean.unwrap_or_else(|| "-".to_owned()).into(),
            Cell {
                text: String::new(),
                below: told.map_or_else(String::new, |told| difference(varied.unit, told)),
                mark: told.map(|told| Mark::difference(told, varied.unit)),
            },
        ]);
    }
}

//! What a sweep found, as a page.

use stealtime_lab::sweep::{Effect as Varied, Summary};

use super::chart::cut_note;
use super::effect::Effect;
use super::{Cell, Lead, Mark, Page, Table, time};
use crate::terminal::compare::number::value;
use crate::terminal::compare::party;
use crate::terminal::sweep::{failures, means};
use crate::units::distinct;

/// The page of a sweep of the scenario `name`, with its text; `facts` say what was varied, `command`
/// runs it again.
#[must_use]
pub fn page(
    summary: &Summary,
    name: &str,
    scenario: &str,
    facts: Vec<String>,
    command: &str,
) -> Page {
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
            steps: Vec::new(),
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
    page.lines(scenario);
    page
}

fn effects(summary: &Summary, page: &mut Page) {
    page.section("What each value changes");
    if summary.effects.is_empty() {
        page.text("Nothing is varied, or no run has such a metric.");
        return;
    }
    page.note(means(summary));
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

/// Rows of a chart of times: its bars stay readable. The results have all.
const MOST_LEVELS: usize = 60;
/// Charts of times: more would make the page slow to open.
const MOST_TIMES: usize = 12;

/// Where vCPUs' time went, a bar for each value of what is varied.
fn times(summary: &Summary, page: &mut Page) {
    if summary.times.is_empty() {
        return;
    }
    page.section("Where vCPU time went");
    page.note("Means over the rest of the grid and all seeds; the results have each run's.");
    for split in summary.times.iter().take(MOST_TIMES) {
        let mean = |metric: &str, level: usize| {
            let mut states = split.states.iter();
            let state = states.find(|state| state.0 == metric);
            state.and_then(|state| *state.1.get(level)?).unwrap_or(0.0)
        };
        let cut = cut_note(MOST_LEVELS, split.levels.len());
        let levels = split.levels.iter().take(MOST_LEVELS);
        time::chart(
            format!(
                "{}: time of its vCPUs by {}{cut}",
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
    for metric in distinct(summary.effects.iter().map(|e| e.metric.as_str())) {
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
        table.row([
            varied.knob.as_str().into(),
            level.value.as_str().into(),
            mean.unwrap_or_else(|| "-".to_owned()).into(),
            Cell::compared(String::new(), level.difference.as_ref(), varied.unit),
        ]);
    }
}

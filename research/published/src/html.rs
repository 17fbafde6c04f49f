//! Published results next to simulated ones, as a page.

use stealtime_report::html::{Axis, Cell, Chart, Interval, Lead, Mark, Page, Table};

use crate::Reproduced;
use crate::terminal::{bare, error, order, origin, published, simulated, verdict, what};

/// The page of results; `tolerance` in percent, `command` runs it again.
#[must_use]
pub fn page(results: &[Reproduced], tolerance: f64, quick: bool, command: &str) -> Page {
    let mut page = Page::new(
        "reproduce",
        "Published results, and what the simulated host makes of them",
    )
    .made_by(command);
    page.fact(format!(
        "Figures come out within {tolerance} % of what was published. Those of machines without a \
         mechanism may be fitted, and are marked; what a mechanism changes is predicted."
    ));
    if quick {
        page.warning("Quick: fewer seeds and shorter runs, so that intervals are wider.");
    }
    lead(results, &mut page);
    for result in results {
        one(result, &mut page);
    }
    page
}

fn described(result: &Reproduced) -> usize {
    result.figures.len() + result.claims.len()
}

fn lead(results: &[Reproduced], page: &mut Page) {
    let total: usize = results.iter().map(described).sum();
    let misses: usize = results.iter().map(Reproduced::misses).sum();
    let come_out = |total: usize, misses: usize| {
        format!("{} of {total} figures and claims come out.", total - misses)
    };
    let mark = |misses: usize| {
        if misses == 0 {
            Mark::Better
        } else {
            Mark::Worse
        }
    };
    if results.len() > 1 {
        page.lead(Lead {
            about: "All:".to_owned(),
            says: come_out(total, misses),
            more: Vec::new(),
            steps: Vec::new(),
            mark: mark(misses),
        });
    }
    for result in results {
        page.lead(Lead {
            about: format!("{}:", result.name),
            says: come_out(described(result), result.misses()),
            more: Vec::new(),
            steps: Vec::new(),
            mark: mark(result.misses()),
        });
    }
}

fn one(result: &Reproduced, page: &mut Page) {
    page.section(result.name.clone());
    for line in origin(result) {
        page.note(line);
    }
    let mut units: Vec<&str> = Vec::new();
    for row in &result.figures {
        if !units.contains(&row.unit.as_str()) {
            units.push(&row.unit);
        }
    }
    for unit in units {
        chart(result, unit, page);
    }
    if !result.figures.is_empty() {
        page.table(figures(result));
    }
    if !result.claims.is_empty() {
        page.table(claims(result));
    }
    for row in &result.orders {
        page.note(order(row));
    }
    if !result.left_out.is_empty() {
        let mut table = Table::new(
            "Published, and not simulated",
            &["what", "why it is not compared"],
            2,
        );
        for row in &result.left_out {
            table.row([row.what.as_str().into(), row.why.as_str().into()]);
        }
        page.table(table);
    }
}

/// The figures of one unit, published and simulated.
fn chart(result: &Reproduced, unit: &str, page: &mut Page) {
    let (name, suffix) = match unit {
        "percent" => ("%", " %"),
        "per second" => ("a second", " /s"),
        unit => (unit, ""),
    };
    let suffix = match suffix {
        "" => format!(" {unit}"),
        suffix => suffix.to_owned(),
    };
    let rows = result.figures.iter().filter(|row| row.unit == unit);
    let rows = rows.map(|row| Interval {
        name: row.name.clone(),
        value: row.simulated,
        half_width: row.half_width,
        published: Some(row.published),
        mark: match (row.within, row.fitted) {
            (true, true) => Mark::Noise,
            (true, false) => Mark::Better,
            (false, _) => Mark::Worse,
        },
        says: format!(
            "{}, published {}: {}",
            simulated(row),
            published(row),
            what(row)
        ),
    });
    page.chart(
        format!("{}: figures in {name}", result.name),
        format!(
            "Published figures of {} in {name} next to simulated ones with 95 % intervals; the table \
             \"Figures\" has the numbers.",
            result.name
        ),
        Chart::Intervals {
            axis: Axis::plain(format!("published and simulated, {name}"), suffix),
            rows: rows.collect(),
        },
    );
}

fn figures(result: &Reproduced) -> Table {
    let heads = ["figure", "published", "simulated", "error", "is"];
    let mut table = Table::new("Figures", &heads, 1).ending_in_words(1);
    for row in &result.figures {
        let name = Cell {
            text: row.name.clone(),
            below: row.miss.clone().unwrap_or_default(),
            mark: None,
        };
        let simulated = Cell::from(simulated(row));
        table.row([
            name,
            published(row).into(),
            simulated,
            error(row.error_percent).into(),
            what(row).into(),
        ]);
    }
    table.with_foot("Error: in percent of what was published.")
}

fn claims(result: &Reproduced) -> Table {
    let heads = ["published in words", "without", "with", "is"];
    let mut table = Table::new("Claims", &heads, 1).ending_in_words(1);
    for row in &result.claims {
        table.row([
            Cell {
                text: row.says.clone(),
                below: row.miss.clone().unwrap_or_default(),
                mark: None,
            },
            bare(row.base).into(),
            bare(row.simulated).into(),
            Cell::from(verdict(row)),
        ]);
    }
    table
}

//! Variants side by side.

pub(crate) mod number;

use std::fmt::Write as _;

use stealtime_lab::compare::{Cell, Column, Comparison, Row};
use stealtime_lab::metric::Subject;
use stealtime_lab::stats::Verdict;

use super::Style;
use crate::escape;
use crate::units::{counted, wrap};
use number::{difference, value};

/// Blanks before each row.
const INDENT: usize = 2;
/// Blanks between columns.
const GAP: usize = 2;
/// The widest column of metrics' names.
const WIDEST_NAME: usize = 32;
/// The widest head of a variant's column.
const WIDEST_HEAD: usize = 24;
/// VMs, groups or tasks that are shown one by one; of more, only the host is.
const MOST_SHOWN: usize = 8;
/// What is to be known of a comparison that was stopped.
pub(crate) const PARTIAL: &str = "Partial: stopped before all runs were finished.";

/// The comparison as tables: as many variants beside the first as the width holds, then the rest
/// below, each time with the first.
#[must_use]
pub fn render(comparison: &Comparison, style: Style) -> String {
    let mut out = String::new();
    header(comparison, style, &mut out);
    let rows = shown(comparison);
    let table = Table::new(comparison, &rows);
    let mut others: Vec<usize> = (1..comparison.variants.len()).collect();
    loop {
        let take = table.fitting(&others, style.width);
        let rest = others.split_off(take);
        let columns: Vec<usize> = std::iter::once(0).chain(others).collect();
        table.render(&columns, style, &mut out);
        if rest.is_empty() {
            break;
        }
        others = rest;
    }
    footer(comparison, &rows, style, &mut out);
    out
}

fn header(comparison: &Comparison, style: Style, out: &mut String) {
    let title = match comparison.about.as_str() {
        "" => comparison.scenario.clone(),
        about => format!("{}: {about}", comparison.scenario),
    };
    for line in wrap(&escape::terminal(&title), style.width) {
        out.push_str(&style.bold(&line));
        out.push('\n');
    }
    for line in wrap(&how(comparison), style.width) {
        out.push_str(&line);
        out.push('\n');
    }
    if comparison.partial {
        let _ = writeln!(out, "{}", style.warn(PARTIAL));
    }
    if comparison.variants.len() > 1 {
        variants(comparison, style, out);
    }
}

/// How often and how long it ran.
pub(crate) fn how(comparison: &Comparison) -> String {
    let seeds = comparison.seeds.len();
    let time = |ns| stealtime_lab::units::show_time(ns);
    let mut how = format!(
        "{}, {} each after {} of warm-up",
        counted(seeds as u64, "seed"),
        time(comparison.duration_ns),
        time(comparison.warmup_ns)
    );
    how.push_str(match seeds {
        1 => "; one seed gives no confidence intervals: add --seeds 10",
        _ => "; means with 95% confidence intervals",
    });
    if seeds > 1 && comparison.variants.len() > 1 {
        how.push_str(", differences paired by seed");
    }
    how
}

fn variants(comparison: &Comparison, style: Style, out: &mut String) {
    let _ = writeln!(out, "\n{}", style.bold("Variants"));
    let widest = comparison
        .variants
        .iter()
        .map(|v| escape::width(&head(v)))
        .max();
    let indent = INDENT + widest.unwrap_or(0) + GAP;
    for variant in &comparison.variants {
        let text = changes(comparison, variant);
        let name = head(variant);
        let lines = wrap(
            &escape::terminal(&text),
            style.width.saturating_sub(indent).max(20),
        );
        for (n, line) in lines.iter().enumerate() {
            let name = if n == 0 { name.as_str() } else { "" };
            let blanks = indent.saturating_sub(INDENT + escape::width(name));
            let _ = writeln!(
                out,
                "{}{name}{}{line}",
                " ".repeat(INDENT),
                " ".repeat(blanks)
            );
        }
    }
}

/// What a variant changes.
pub(crate) fn changes(comparison: &Comparison, variant: &Column) -> String {
    let settings = variant
        .settings
        .iter()
        .map(|s| format!("{}={}", s.knob, s.value));
    let mut text = settings.collect::<Vec<_>>().join(" ");
    if text.is_empty() {
        text.push_str("the scenario as it is");
    }
    if variant.partial {
        let of = comparison.seeds.len();
        let _ = write!(text, " (partial: {} of {of} runs)", variant.finished);
    }
    text
}

/// A variant's name as it stands above its column.
fn head(variant: &Column) -> String {
    escape::fit(&escape::terminal(&variant.name), WIDEST_HEAD).into_owned()
}

/// Rows that say something.
fn shown(comparison: &Comparison) -> Vec<&Row> {
    let many = parties(comparison) > MOST_SHOWN;
    let rows = comparison.rows.iter().filter(|row| {
        let zero = |cell: &Cell| cell.estimate.mean == 0.0;
        let nothing = row.cells.iter().flatten().all(zero);
        !nothing && (row.of == Subject::Host || !many)
    });
    rows.collect()
}

/// How many VMs, groups and tasks have rows.
fn parties(comparison: &Comparison) -> usize {
    let mut parties: Vec<&Subject> = comparison.rows.iter().map(|row| &row.of).collect();
    parties.sort();
    parties.dedup();
    parties.iter().filter(|of| ***of != Subject::Host).count()
}

fn footer(comparison: &Comparison, rows: &[&Row], style: Style, out: &mut String) {
    let mut notes = Vec::new();
    if rows.len() < comparison.rows.len() {
        notes.push("Metrics that are 0 in every variant are left out.".to_owned());
    }
    let parties = parties(comparison);
    if parties > MOST_SHOWN {
        notes.push(format!(
            "{parties} VMs and tasks: --format json has the metrics of each."
        ));
    }
    notes.extend(failures(comparison));
    if !notes.is_empty() {
        out.push('\n');
    }
    for note in notes {
        for line in note
            .lines()
            .flat_map(|line| wrap(&escape::terminal(line), style.width))
        {
            out.push_str(&line);
            out.push('\n');
        }
    }
}

/// Runs that failed, and why.
pub(crate) fn failures(comparison: &Comparison) -> Vec<String> {
    let mut notes = Vec::new();
    for variant in &comparison.variants {
        // One reason for all seeds is one problem.
        let mut reasons: Vec<&str> = variant.failures.iter().map(|f| f.why.as_str()).collect();
        reasons.sort_unstable();
        reasons.dedup();
        for why in reasons {
            let seeds = variant
                .failures
                .iter()
                .filter(|f| f.why == why)
                .map(|f| f.seed.to_string());
            let seeds: Vec<String> = seeds.collect();
            let word = if seeds.len() == 1 { "seed" } else { "seeds" };
            let few = seeds
                .iter()
                .take(10)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ");
            let more = if seeds.len() > 10 { ", …" } else { "" };
            let name = &variant.name;
            notes.push(format!("Variant {name}, {word} {few}{more} failed: {why}"));
        }
    }
    notes
}

/// Everything as text.
struct Table {
    names: Vec<(Subject, String)>,
    heads: Vec<String>,
    /// By row and variant: the value, the difference and what that means.
    cells: Vec<Vec<(String, String, Option<Verdict>)>>,
    name_width: usize,
    widths: Vec<usize>,
}

impl Table {
    fn new(comparison: &Comparison, rows: &[&Row]) -> Self {
        let heads: Vec<String> = comparison.variants.iter().map(head).collect();
        let names: Vec<(Subject, String)> = rows
            .iter()
            .map(|row| {
                let name = escape::terminal(&row.name);
                (row.of.clone(), escape::fit(&name, WIDEST_NAME).into_owned())
            })
            .collect();
        let cells: Vec<Vec<_>> = rows
            .iter()
            .map(|row| {
                row.cells
                    .iter()
                    .map(|cell| texts(row, cell.as_ref()))
                    .collect()
            })
            .collect();
        let name_width = names
            .iter()
            .map(|(_, name)| escape::width(name))
            .max()
            .unwrap_or(0);
        let widths = heads.iter().enumerate().map(|(at, head)| {
            let texts = cells
                .iter()
                .filter_map(|row: &Vec<(String, String, _)>| row.get(at));
            let widest = texts
                .map(|(a, b, _)| escape::width(a).max(escape::width(b)))
                .max();
            widest.unwrap_or(0).max(escape::width(head))
        });
        Self {
            widths: widths.collect(),
            name_width,
            names,
            heads,
            cells,
        }
    }

    fn width(&self, column: usize) -> usize {
        self.widths.get(column).copied().unwrap_or(0)
    }

    /// How many of these variants fit beside the first: one at least, if there is one.
    fn fitting(&self, others: &[usize], width: usize) -> usize {
        let mut used = INDENT + self.name_width + GAP + self.width(0);
        let mut count = 0;
        for other in others {
            used += GAP + self.width(*other);
            if used > width && count > 0 {
                break;
            }
            count += 1;
        }
        count
    }

    fn render(&self, columns: &[usize], style: Style, out: &mut String) {
        let mut last: Option<&Subject> = None;
        for ((of, name), cells) in self.names.iter().zip(&self.cells) {
            if last != Some(of) {
                out.push('\n');
                self.title(of, columns, style, out);
                last = Some(of);
            }
            let values = columns.iter().map(|&column| {
                let text = cells.get(column).map_or("", |cell| cell.0.as_str());
                (text, column, None)
            });
            self.line(name, values, style, out);
            let has_differences = columns
                .iter()
                .any(|&column| cells.get(column).is_some_and(|c| !c.1.is_empty()));
            if has_differences {
                let differences = columns.iter().filter_map(|&column| {
                    let cell = cells.get(column)?;
                    Some((cell.1.as_str(), column, cell.2))
                });
                self.line("", differences, style, out);
            }
        }
    }

    fn title(&self, of: &Subject, columns: &[usize], style: Style, out: &mut String) {
        let title = party(of);
        let width = INDENT + self.name_width;
        let title = escape::fit(&escape::terminal(&title), width).into_owned();
        let blanks = width.saturating_sub(escape::width(&title));
        out.push_str(&style.bold(&title));
        out.push_str(&" ".repeat(blanks));
        for &column in columns {
            let head = self.heads.get(column).map_or("", String::as_str);
            let blanks = GAP + self.width(column).saturating_sub(escape::width(head));
            out.push_str(&" ".repeat(blanks));
            out.push_str(&style.bold(head));
        }
        out.push('\n');
    }

    fn line<'c>(
        &self,
        name: &str,
        cells: impl Iterator<Item = (&'c str, usize, Option<Verdict>)>,
        style: Style,
        out: &mut String,
    ) {
        let mut line = " ".repeat(INDENT);
        line.push_str(name);
        line.push_str(&" ".repeat(self.name_width.saturating_sub(escape::width(name))));
        for (text, column, verdict) in cells {
            let blanks = GAP + self.width(column).saturating_sub(escape::width(text));
            line.push_str(&" ".repeat(blanks));
            line.push_str(&match verdict {
                Some(Verdict::Better) => style.paint("32", text),
                Some(Verdict::Worse) => style.paint("31", text),
                Some(_) => style.dim(text),
                None => text.to_owned(),
            });
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

/// Whose metrics they are, as a title.
pub(crate) fn party(of: &Subject) -> String {
    match of {
        Subject::Host => "Host".to_owned(),
        Subject::Vm(name) => format!("VM {name}"),
        Subject::Task(name) => format!("Task {name}"),
    }
}

fn texts(row: &Row, cell: Option<&Cell>) -> (String, String, Option<Verdict>) {
    let Some(cell) = cell else {
        return ("-".to_owned(), String::new(), None);
    };
    let shown = value(row.unit, &cell.estimate);
    match &cell.difference {
        // What is too small to matter is not coloured.
        Some(d) if !d.is_relevant(row.unit) => {
            (shown, difference(row.unit, d), Some(Verdict::Different))
        }
        Some(d) => (shown, difference(row.unit, d), Some(d.verdict)),
        None => (shown, String::new(), None),
    }
}

//! Variants side by side.

pub(crate) mod number;

use std::fmt::Write as _;

use stealtime_lab::compare::{Cell, Column, Comparison, Row};
use stealtime_lab::metric::Subject;
use stealtime_lab::scenario::Setting;
use stealtime_lab::stats::Verdict;

use super::{Screen, Style};
use crate::escape;
use crate::units::{counted, distinct, wrap};
use number::{difference, value};

/// Blanks before each row.
const INDENT: usize = 2;
/// Blanks between columns.
const GAP: usize = 2;
/// The widest column of metrics' names, which leaves two thirds of 100 columns for values.
const WIDEST_NAME: usize = 32;
/// The widest head of a variant's column: about as wide as a difference with its interval.
const WIDEST_HEAD: usize = 24;
/// Columns for what a variant changes, however long the names of variants are.
const NARROWEST: usize = 20;
/// VMs, groups or tasks that are shown one by one, each with a table of some ten rows; of more, only the
/// host is.
const MOST_SHOWN: usize = 8;
/// What is to be known of a comparison that was stopped.
pub(crate) const PARTIAL: &str = "Partial: stopped before all runs were finished.";

/// The comparison as tables: as many variants next to the first as the width holds, then the rest
/// below, each time with the first.
#[must_use]
pub fn render(comparison: &Comparison, style: Style) -> String {
    let mut screen = Screen::new(style);
    header(comparison, &mut screen);
    let rows = shown(comparison);
    let table = Table::new(comparison, &rows);
    let mut remaining: Vec<usize> = (1..comparison.variants.len()).collect();
    loop {
        let take = table.fitting(&remaining, style.width);
        let rest = remaining.split_off(take);
        let columns: Vec<usize> = std::iter::once(0).chain(remaining).collect();
        table.render(&columns, &mut screen);
        if rest.is_empty() {
            break;
        }
        remaining = rest;
    }
    footer(comparison, &rows, &mut screen);
    screen.text
}

fn header(comparison: &Comparison, screen: &mut Screen) {
    let title = match comparison.about.as_str() {
        "" => comparison.scenario.clone(),
        about => format!("{}: {about}", comparison.scenario),
    };
    screen.wrapped(0, &title, Style::bold);
    screen.plain(0, &run_facts(comparison));
    if !comparison.set.is_empty() {
        let text = format!(
            "--set in each variant that does not: {}",
            list(&comparison.set)
        );
        screen.plain(0, &text);
    }
    if comparison.partial {
        screen.warn(0, PARTIAL);
    }
    if comparison.variants.len() > 1 {
        variants(comparison, screen);
    }
}

/// What follows from runs that are all equal.
const IDENTICAL: &str =
    "; all seeds give the same, for nothing in the scenario is random: no confidence intervals";

/// How often and how long it ran.
pub(crate) fn run_facts(comparison: &Comparison) -> String {
    let seeds = comparison.seeds.len();
    let time = |ns| stealtime_lab::units::show_time(ns);
    let mut text = format!(
        "{}, {} each after {} of warm-up",
        counted(seeds as u64, "seed"),
        time(comparison.duration_ns),
        time(comparison.warmup_ns)
    );
    let is_estimated = seeds > 1 && !comparison.identical_seeds;
    text.push_str(match seeds {
        1 => "; one seed gives no confidence intervals: add --seeds 10",
        _ if comparison.identical_seeds => IDENTICAL,
        _ => "; means with 95% confidence intervals",
    });
    if is_estimated && comparison.variants.len() > 1 {
        text.push_str(", differences paired by seed");
    }
    text
}

fn variants(comparison: &Comparison, screen: &mut Screen) {
    screen.heading("Variants");
    let widest = comparison
        .variants
        .iter()
        .map(|v| escape::width(&head(v)))
        .max();
    let indent = INDENT + widest.unwrap_or(0) + GAP;
    for variant in &comparison.variants {
        let text = changes(comparison, variant);
        let name = head(variant);
        let width = screen.style.width.saturating_sub(indent).max(NARROWEST);
        let lines = wrap(&escape::terminal(&text), width);
        for (n, line) in lines.iter().enumerate() {
            let name = if n == 0 { name.as_str() } else { "" };
            let blanks = indent.saturating_sub(INDENT + escape::width(name));
            screen.line(&format!("{:INDENT$}{name}{:blanks$}{line}", "", ""));
        }
    }
}

fn list(settings: &[Setting]) -> String {
    let texts = settings.iter().map(|s| format!("{}={}", s.knob, s.value));
    texts.collect::<Vec<_>>().join(" ")
}

/// What a variant changes.
pub(crate) fn changes(comparison: &Comparison, variant: &Column) -> String {
    let mut text = list(&variant.settings);
    if text.is_empty() {
        text.push_str(match comparison.set.is_empty() {
            true => "the scenario as it is",
            false => "the scenario with --set",
        });
    }
    if variant.partial {
        let seeds = comparison.seeds.len();
        let _ = write!(text, " (partial: {} of {seeds} runs)", variant.finished);
    }
    text
}

/// A variant's name as it stands above its column.
fn head(variant: &Column) -> String {
    escape::fit(&escape::terminal(&variant.name), WIDEST_HEAD).into_owned()
}

/// Rows that say something.
fn shown(comparison: &Comparison) -> Vec<&Row> {
    let host_only = parties(comparison).len() > MOST_SHOWN;
    let rows = comparison.rows.iter().filter(|row| {
        let zero = |cell: &Cell| cell.estimate.mean == 0.0;
        let is_zero = row.cells.iter().flatten().all(zero);
        !is_zero && (row.of == Subject::Host || !host_only)
    });
    rows.collect()
}

/// VMs, groups and tasks in the order of their rows.
pub(crate) fn parties(comparison: &Comparison) -> Vec<&Subject> {
    let subjects = comparison.rows.iter().map(|row| &row.of);
    distinct(subjects.filter(|subject| **subject != Subject::Host))
}

fn footer(comparison: &Comparison, rows: &[&Row], screen: &mut Screen) {
    let mut notes = Vec::new();
    if rows.len() < comparison.rows.len() {
        notes.push("Metrics that are 0 in every variant are left out.".to_owned());
    }
    let parties = parties(comparison).len();
    if parties > MOST_SHOWN {
        notes.push(format!(
            "{parties} VMs and tasks: --format json has the metrics of each."
        ));
    }
    notes.extend(failures(comparison));
    if !notes.is_empty() {
        screen.line("");
    }
    for line in notes.iter().flat_map(|note| note.lines()) {
        screen.plain(0, line);
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
        for reason in reasons {
            let seeds = variant
                .failures
                .iter()
                .filter(|f| f.why == reason)
                .map(|f| f.seed.to_string());
            let seeds: Vec<String> = seeds.collect();
            let word = if seeds.len() == 1 { "seed" } else { "seeds" };
            let shown = seeds
                .iter()
                .take(10)
                .cloned()
                .collect::<Vec<_>>()
                .join(", ");
            let ellipsis = if seeds.len() > 10 { ", …" } else { "" };
            let name = &variant.name;
            notes.push(format!(
                "Variant {name}, {word} {shown}{ellipsis} failed: {reason}"
            ));
        }
    }
    notes
}

/// A cell as text.
struct Texts {
    value: String,
    /// Empty without a difference.
    difference: String,
    /// What the difference means.
    verdict: Option<Verdict>,
}

/// Everything as text.
struct Table {
    names: Vec<(Subject, String)>,
    heads: Vec<String>,
    /// By row and variant.
    cells: Vec<Vec<Texts>>,
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
        let cells: Vec<Vec<Texts>> = rows
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
        let widths = heads.iter().enumerate().map(|(index, head)| {
            let texts = cells.iter().filter_map(|row| row.get(index));
            let widest = texts
                .map(|cell| escape::width(&cell.value).max(escape::width(&cell.difference)))
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

    /// How many of these variants fit next to the first: one at least, if there is one.
    fn fitting(&self, columns: &[usize], width: usize) -> usize {
        let mut used = INDENT + self.name_width + GAP + self.width(0);
        let mut count = 0;
        for column in columns {
            used += GAP + self.width(*column);
            if used > width && count > 0 {
                break;
            }
            count += 1;
        }
        count
    }

    fn render(&self, columns: &[usize], screen: &mut Screen) {
        let mut last: Option<&Subject> = None;
        for ((subject, name), cells) in self.names.iter().zip(&self.cells) {
            if last != Some(subject) {
                screen.line("");
                self.title(subject, columns, screen);
                last = Some(subject);
            }
            let shown = || {
                columns
                    .iter()
                    .filter_map(|column| Some((*column, cells.get(*column)?)))
            };
            let mut line = self.name(name);
            for (column, cell) in shown() {
                self.push(&mut line, column, &cell.value, str::to_owned);
            }
            screen.line(line.trim_end());
            if shown().any(|(_, cell)| !cell.difference.is_empty()) {
                let mut line = self.name("");
                for (column, cell) in shown() {
                    let paint = |text: &str| match cell.verdict {
                        Some(Verdict::Better) => screen.style.paint("32", text),
                        Some(Verdict::Worse) => screen.style.paint("31", text),
                        Some(_) => screen.style.dim(text),
                        None => text.to_owned(),
                    };
                    self.push(&mut line, column, &cell.difference, paint);
                }
                screen.line(line.trim_end());
            }
        }
    }

    fn title(&self, subject: &Subject, columns: &[usize], screen: &mut Screen) {
        let title = party(subject);
        let width = INDENT + self.name_width;
        let title = escape::fit(&escape::terminal(&title), width).into_owned();
        let blanks = width.saturating_sub(escape::width(&title));
        let mut line = screen.style.bold(&title) + &" ".repeat(blanks);
        for &column in columns {
            let head = self.heads.get(column).map_or("", String::as_str);
            let blanks = GAP + self.width(column).saturating_sub(escape::width(head));
            line.push_str(&" ".repeat(blanks));
            line.push_str(&screen.style.bold(head));
        }
        screen.line(&line);
    }

    /// The name of a row, as wide as all names.
    fn name(&self, name: &str) -> String {
        let blanks = self.name_width.saturating_sub(escape::width(name));
        format!("{:INDENT$}{name}{:blanks$}", "", "")
    }

    /// Appends a text that ends where its column does.
    fn push(&self, line: &mut String, column: usize, text: &str, paint: impl Fn(&str) -> String) {
        let blanks = GAP + self.width(column).saturating_sub(escape::width(text));
        line.push_str(&" ".repeat(blanks));
        line.push_str(&paint(text));
    }
}

/// The subject of metrics, as a title.
pub(crate) fn party(subject: &Subject) -> String {
    match subject {
        Subject::Host => "Host".to_owned(),
        Subject::Vm(name) => format!("VM {name}"),
        Subject::Task(name) => format!("Task {name}"),
    }
}

fn texts(row: &Row, cell: Option<&Cell>) -> Texts {
    let change = cell.and_then(|cell| cell.difference.as_ref());
    Texts {
        value: cell.map_or("-".to_owned(), |cell| value(row.unit, &cell.estimate)),
        difference: change.map_or(String::new(), |change| difference(row.unit, change)),
        verdict: change.map(|change| match change.is_relevant(row.unit) {
            true => change.verdict,
            // What is too small to matter has no color.
            false => Verdict::Different,
        }),
    }
}

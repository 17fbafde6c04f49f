//! Answers as tables for a terminal.
//!
//! Rows of nothing are left out; a table without rows says why in a sentence. `-` is nothing, `?`
//! what the recording cannot tell.

pub mod compare;
mod exits;
mod grid;
pub(crate) mod header;
pub mod knobs;
pub(crate) mod more;
pub(crate) mod ready;
pub mod sweep;
pub(crate) mod time;
pub mod timeline;
pub mod whatif;

use stealtime_analysis::Answers;

use crate::units::{Times, wrap};
use crate::{Key, escape};

/// Rows of a VM that are shown where there may be many; the rest is in JSON and CSV.
const ROWS: usize = 8;

/// How to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Style {
    /// Whether to use colours (ANSI escapes).
    pub color: bool,
    /// Columns to stay within.
    pub width: usize,
}

impl Style {
    /// 100 columns.
    #[must_use]
    pub const fn new(color: bool) -> Self {
        Self { color, width: 100 }
    }

    fn paint(self, code: &str, text: &str) -> String {
        if self.color {
            format!("\u{1b}[{code}m{text}\u{1b}[0m")
        } else {
            text.to_owned()
        }
    }

    /// A heading.
    #[must_use]
    pub fn bold(self, text: &str) -> String {
        self.paint("1", text)
    }

    /// Explanations, which a reader may skip.
    #[must_use]
    pub fn dim(self, text: &str) -> String {
        self.paint("2", text)
    }

    /// What a reader must not miss.
    #[must_use]
    pub fn warn(self, text: &str) -> String {
        self.paint("33", text)
    }
}

/// A table and what stands around it.
pub(crate) struct Section {
    title: String,
    /// What the numbers are, where the column titles do not say.
    explain: &'static str,
    grid: grid::Grid,
    /// Why there are no rows.
    empty: String,
    /// A line below.
    foot: String,
}

/// The recording, then the tables of `keys` in the order of [`Key::ALL`].
#[must_use]
pub fn render(answers: &Answers, keys: &[Key], style: Style) -> String {
    let answers = &*answers.with_guesses_shown();
    let mut out = String::new();
    header::render(answers, style, &mut out);
    for key in Key::ALL.into_iter().filter(|key| keys.contains(key)) {
        if key == Key::Findings {
            header::findings(answers, style, &mut out);
        } else if let Some(section) = section(answers, key, ROWS) {
            section.render(style, &mut out);
        }
    }
    let left: Vec<_> = Key::ALL
        .into_iter()
        .filter(|key| !keys.contains(key))
        .map(Key::name)
        .collect();
    if keys == Key::DEFAULT && !left.is_empty() {
        let text = format!("More tables: --key {}, or --key all.", left.join(", "));
        out.push('\n');
        paragraph(&text, "", style, |line| style.dim(line), &mut out);
    }
    out
}

/// The table of a key, with at most so many rows of a VM where there may be many. [`Key::Findings`] are
/// no table.
pub(crate) fn section(answers: &Answers, key: Key, most: usize) -> Option<Section> {
    let times = Times::of(&answers.source.clock_unit);
    Some(match key {
        Key::Findings => return None,
        Key::Vms => more::vms(answers),
        Key::Time => time::split(answers, times),
        Key::Handling => time::handling(answers, times, most),
        Key::Ready => ready::section(answers, times, most),
        Key::Exits => exits::by_vm(answers, times),
        Key::ExitTotals => exits::totals(answers, times),
        Key::Msr => exits::msr(answers, times),
        Key::Ioport => exits::ioport(answers, times),
        Key::Mmio => exits::mmio(answers, times),
        Key::Latency => more::latencies(answers, times),
        Key::Yield => more::yields(answers),
        Key::Poll => more::polls(answers, times),
        Key::Interrupts => more::interrupts(answers),
        Key::Events => more::events(answers),
    })
}

impl Section {
    pub(crate) fn title(&self) -> &str {
        &self.title
    }

    pub(crate) const fn explain(&self) -> &'static str {
        self.explain
    }

    /// Columns' titles, and whether they hold numbers.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let columns = self.grid.columns().iter();
        columns.map(|(title, side)| (*title, *side == grid::Side::Number))
    }

    pub(crate) fn rows(&self) -> &[Vec<String>] {
        self.grid.rows()
    }

    pub(crate) fn empty(&self) -> &str {
        &self.empty
    }

    pub(crate) fn foot(&self) -> &str {
        &self.foot
    }

    fn render(&self, style: Style, out: &mut String) {
        out.push('\n');
        out.push_str(&style.bold(&self.title));
        out.push('\n');
        if self.grid.is_empty() {
            paragraph(&self.empty, "  ", style, str::to_owned, out);
            return;
        }
        paragraph(self.explain, "  ", style, |line| style.dim(line), out);
        self.grid.render(style, out);
        paragraph(&self.foot, "  ", style, |line| style.dim(line), out);
    }
}

/// Text wrapped at the width, every line behind `indent`.
fn paragraph(
    text: &str,
    indent: &str,
    style: Style,
    paint: impl Fn(&str) -> String,
    out: &mut String,
) {
    let text = escape::terminal(text);
    for line in wrap(&text, style.width.saturating_sub(indent.len())) {
        out.push_str(indent);
        out.push_str(&paint(&line));
        out.push('\n');
    }
}

/// How often a tracepoint fired in the selection.
fn fired(answers: &Answers, tracepoint: &str) -> u64 {
    let of_name = answers.events.iter().find(|event| event.is(tracepoint));
    of_name.map_or(0, |event| event.count)
}

/// Why a table that needs these tracepoints has no rows.
fn nothing(answers: &Answers, what: &str, tracepoints: &[&str]) -> String {
    let missing: Vec<_> = tracepoints
        .iter()
        .filter(|name| fired(answers, name.rsplit(':').next().unwrap_or(name)) == 0)
        .copied()
        .collect();
    if missing.is_empty() {
        return format!("No {what} in this selection.");
    }
    if answers.source.partial {
        // It may have been recorded, in what could not be read.
        return format!(
            "No {what}: what could be read has no {}.",
            missing.join(" and no ")
        );
    }
    let (verb, them) = if missing.len() == 1 {
        ("is", "it")
    } else {
        ("are", "them")
    };
    format!(
        "No {what}: there {verb} no {} in this selection; record {them} to see this.",
        missing.join(" and no ")
    )
}

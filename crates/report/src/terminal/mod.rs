//! Answers as tables for a terminal.
//!
//! Rows of nothing are left out; a table without rows says why in a sentence. `-` is nothing, `?`
//! what the recording cannot tell.

pub mod compare;
pub mod decision;
pub mod difference;
pub mod doctor;
mod events;
mod exits;
pub mod fit;
mod grid;
pub(crate) mod header;
pub mod host;
mod interrupts;
pub mod knobs;
pub(crate) mod latencies;
pub(crate) mod overview;
mod polls;
pub(crate) mod ready;
pub mod rebalance;
mod scheduler;
pub mod sweep;
pub(crate) mod time;
pub mod timeline;
mod vms;
pub mod whatif;
mod yields;

use stealtime_analysis::Answers;
use stealtime_whatif::Remedy;

use crate::units::{Times, counted, wrap};
use crate::{Key, escape};

/// Rows of a VM that are shown where there may be many: the largest causes, within one screen for a few
/// VMs. JSON and CSV have all.
const ROWS: usize = 8;
/// Rows of a table, unless another number is asked for: all of a host with some ten VMs.
pub const TOP: usize = 40;

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

/// Lines for a terminal.
pub(crate) struct Screen {
    pub(crate) style: Style,
    text: String,
}

impl Screen {
    const fn new(style: Style) -> Self {
        let text = String::new();
        Self { style, text }
    }

    /// A line as it is.
    fn line(&mut self, line: &str) {
        self.text.push_str(line);
        self.text.push('\n');
    }

    /// A heading below a blank line.
    fn heading(&mut self, title: &str) {
        if !self.text.is_empty() {
            self.text.push('\n');
        }
        self.line(&self.style.bold(title));
    }

    fn plain(&mut self, indent: usize, text: &str) {
        self.wrapped(indent, text, |_, line| line.to_owned());
    }

    fn dim(&mut self, indent: usize, text: &str) {
        self.wrapped(indent, text, Style::dim);
    }

    fn warn(&mut self, indent: usize, text: &str) {
        self.wrapped(indent, text, Style::warn);
    }

    /// A command behind its label: in one piece, so that it can be copied.
    fn command(&mut self, indent: usize, label: &str, command: &str) {
        let label = self.style.dim(&format!("{label}: "));
        self.line(&format!(
            "{:indent$}{label}{}",
            "",
            escape::terminal(command)
        ));
    }

    /// Text wrapped at the width, each line behind `indent` blanks. It is escaped here, because it may
    /// hold names out of a trace.
    fn wrapped(&mut self, indent: usize, text: &str, paint: fn(Style, &str) -> String) {
        let text = escape::terminal(text);
        for line in wrap(&text, self.style.width.saturating_sub(indent)) {
            self.line(&format!("{:indent$}{}", "", paint(self.style, &line)));
        }
    }
}

/// What [`Section::with_command`] shows.
const COMMAND: &str = "The first of them in Perfetto:";

/// A table and what stands around it.
pub(crate) struct Section {
    title: &'static str,
    /// What the numbers are, where the column titles do not say.
    explain: &'static str,
    grid: grid::Grid,
    /// What the weights of rows are a sum of; empty: rows have none.
    sum_of: &'static str,
    /// Why there are no rows.
    empty: String,
    /// A line below.
    foot: String,
    /// A command that shows more; empty: none.
    command: String,
}

/// The recording, then the tables of `keys` in the order of [`Key::ALL`], of at most `top` rows each.
#[must_use]
pub fn render(
    answers: &Answers,
    remedies: &[Remedy],
    keys: &[Key],
    style: Style,
    top: usize,
) -> String {
    let times = Times::of(&answers.source.clock_unit);
    let answers = &*answers.with_guesses_shown();
    let mut screen = Screen::new(style);
    header::render(answers, &mut screen);
    // Without a loaded scheduler there is nothing to show.
    let is_known = |key: &Key| *key != Key::Scheduler || !answers.scheduler.is_empty();
    let is_default = keys == Key::DEFAULT;
    let is_shown =
        |key: &Key| keys.contains(key) || is_default && *key == Key::Scheduler && is_known(key);
    for key in Key::ALL.into_iter().filter(is_shown) {
        if key == Key::Findings {
            header::findings(answers, remedies, top, &mut screen);
        } else if let Some(section) = section(answers, key, ROWS) {
            section.bounded(top, times).render(&mut screen);
        }
    }
    let hidden: Vec<_> = Key::ALL
        .into_iter()
        .filter(|key| !is_shown(key) && is_known(key))
        .map(Key::name)
        .collect();
    if is_default && !hidden.is_empty() {
        let text = format!("More tables: --key {}, or --key all.", hidden.join(", "));
        screen.line("");
        screen.dim(0, &text);
    }
    screen.text
}

/// The table of a key, with at most so many rows of a VM where there may be many. [`Key::Findings`] are
/// no table.
pub(crate) fn section(answers: &Answers, key: Key, limit: usize) -> Option<Section> {
    let times = Times::of(&answers.source.clock_unit);
    Some(match key {
        Key::Findings => return None,
        Key::Stalls => overview::stalls(answers, times),
        Key::Vms => vms::section(answers),
        Key::States => overview::states(answers),
        Key::Host => overview::host(answers, times),
        Key::OverTime => overview::over_time(answers, times),
        Key::Vmm => overview::vmm_threads(answers, times),
        Key::Waits => overview::waits(answers, times),
        Key::Time => time::split(answers, times),
        Key::Handling => time::handling(answers, times, limit),
        Key::Ready => ready::section(answers, times, limit),
        Key::Exits => exits::by_vm(answers, times),
        Key::ExitTotals => exits::totals(answers, times),
        Key::Msr => exits::msr(answers, times),
        Key::Ioport => exits::ioport(answers, times),
        Key::Mmio => exits::mmio(answers, times),
        Key::Latency => latencies::section(answers, times),
        Key::Yield => yields::section(answers),
        Key::Scheduler => scheduler::section(answers),
        Key::Poll => polls::section(answers, times),
        Key::Interrupts => interrupts::section(answers),
        Key::Events => events::section(answers),
    })
}

impl Section {
    /// A table, and the sentence that stands for it if it has no rows.
    fn new(title: &'static str, grid: grid::Grid, empty: impl Into<String>) -> Self {
        Self {
            title,
            explain: "",
            grid,
            sum_of: "",
            empty: empty.into(),
            foot: String::new(),
            command: String::new(),
        }
    }

    /// Says what the numbers are.
    const fn explained(mut self, explain: &'static str) -> Self {
        self.explain = explain;
        self
    }

    /// Adds a sentence below.
    fn with_foot(mut self, foot: String) -> Self {
        self.foot = foot;
        self
    }

    /// Adds a command that shows more.
    fn with_command(mut self, command: String) -> Self {
        self.command = command;
        self
    }

    /// Says what the weights of rows are a sum of.
    const fn summed(mut self, sum_of: &'static str) -> Self {
        self.sum_of = sum_of;
        self
    }

    /// At most so many rows, and a sentence on the others.
    pub(crate) fn bounded(mut self, limit: usize, times: Times) -> Self {
        let (omitted, sum) = self.grid.keep(limit);
        if omitted == 0 {
            return self;
        }
        let together = match self.sum_of {
            "" => String::new(),
            sum_of => format!(
                ", together {} {sum_of}",
                times.show(sum).replace("  s", " s")
            ),
        };
        let rows = counted(omitted as u64, "more row");
        let text = format!("And {rows}{together}; --top shows more, JSON and CSV have all.");
        if !self.foot.is_empty() {
            self.foot.insert(0, ' ');
        }
        self.foot.insert_str(0, &text);
        self
    }

    pub(crate) const fn title(&self) -> &'static str {
        self.title
    }

    pub(crate) const fn explain(&self) -> &'static str {
        self.explain
    }

    /// Columns' titles, and whether they hold numbers.
    pub(crate) fn heads(&self) -> impl Iterator<Item = (&'static str, bool)> {
        let columns = self.grid.columns().iter();
        columns.map(|column| (column.title, column.side == grid::Side::Number))
    }

    pub(crate) fn rows(&self) -> &[Vec<String>] {
        self.grid.rows()
    }

    pub(crate) fn empty(&self) -> &str {
        &self.empty
    }

    /// The line below, with the command.
    pub(crate) fn foot_with_command(&self) -> String {
        let intro = if self.command.is_empty() { "" } else { COMMAND };
        [self.foot(), intro, &self.command]
            .join(" ")
            .trim()
            .to_owned()
    }

    fn foot(&self) -> &str {
        &self.foot
    }

    fn render(&self, screen: &mut Screen) {
        screen.heading(self.title);
        if self.grid.is_empty() {
            screen.plain(2, &self.empty);
            return;
        }
        screen.dim(2, self.explain);
        self.grid.render(screen);
        screen.dim(2, self.foot());
        if !self.command.is_empty() {
            screen.dim(2, COMMAND);
            // Not wrapped, so that it can be copied.
            screen.line(&format!("    {}", escape::terminal(&self.command)));
        }
    }
}

/// How often a tracepoint fired in the selection.
fn fired(answers: &Answers, tracepoint: &str) -> u64 {
    let of_name = answers.events.iter().find(|event| event.is(tracepoint));
    of_name.map_or(0, |event| event.count)
}

/// Why a table that needs these tracepoints has no rows.
fn nothing(answers: &Answers, noun: &str, tracepoints: &[&str]) -> String {
    let missing: Vec<_> = tracepoints
        .iter()
        .filter(|name| fired(answers, name.rsplit(':').next().unwrap_or(name)) == 0)
        .copied()
        .collect();
    if missing.is_empty() {
        return format!("No {noun} in this selection.");
    }
    if answers.source.partial {
        // It may have been recorded, in what could not be read.
        return format!(
            "No {noun}: what could be read has no {}.",
            missing.join(" and no ")
        );
    }
    let (verb, pronoun) = if missing.len() == 1 {
        ("is", "it")
    } else {
        ("are", "them")
    };
    format!(
        "No {noun}: there {verb} no {} in this selection; record {pronoun} to see this.",
        missing.join(" and no ")
    )
}

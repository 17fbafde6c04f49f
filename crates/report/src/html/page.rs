//! A page and how it is written.

use std::fmt::Write as _;
use std::io::{self, Write};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Serde, Value};
use minijinja::{Environment, Error, ErrorKind, Output, State};
use serde::Serialize;

use super::{Chart, Mark, Table};
use crate::escape;
use crate::terminal::overview::LEVELS;

const TEMPLATE: &str = include_str!("../../assets/page.html");
/// Commands of a lead or a recipe, from `steps`.
const STEPS: &str = include_str!("../../assets/steps.html");
const STYLE: &str = include_str!("../../assets/page.css");
const SCRIPT: &str = include_str!("../../assets/page.js");
const CHARTS: &str = include_str!("../../assets/charts.min.js");
/// The Content-Security-Policy, with the hashes of the style and both scripts; a test holds that they
/// are right.
const POLICY: &str = include_str!("../../assets/policy.txt");

/// A command, behind a label such as `undo`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Step {
    /// What it is for.
    pub label: String,
    /// The command, as a shell takes it.
    pub command: String,
}

/// A change of the host, with its commands.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Recipe {
    /// The change, in bold.
    pub(super) change: String,
    /// From when on it acts, and conditions.
    pub(super) notes: Vec<String>,
    pub(super) steps: Vec<Step>,
}

/// A sentence that answers the question.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lead {
    /// What it is about, in bold.
    pub about: String,
    /// The answer.
    pub says: String,
    /// Further sentences, smaller.
    pub more: Vec<String>,
    /// Commands below them.
    pub steps: Vec<Step>,
    /// What it means.
    pub mark: Mark,
}

/// A piece of a section.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
enum Item {
    Chart {
        title: String,
        /// Text in place of the picture, for screen readers.
        describes: String,
        /// Its number among all of the page.
        number: usize,
        /// A guess, so that the page does not jump when it is drawn.
        rows: usize,
    },
    Table(Table),
    Text {
        text: String,
        /// Smaller.
        is_note: bool,
    },
    Lines {
        lines: Vec<String>,
    },
    Recipes {
        title: String,
        recipes: Vec<Recipe>,
    },
}

/// A line below the title.
#[derive(Debug, Default, Serialize)]
struct Fact {
    text: String,
    /// A sparkline behind it, which must not be broken.
    marks: String,
    /// The text behind that.
    rest: String,
}

impl Fact {
    fn new(line: &str) -> Self {
        let is_mark = |c: char| LEVELS.contains(&c);
        // A single one may be a letter of a name.
        let mut words = line.split(' ');
        let marks = words.rfind(|word| word.chars().count() > 1 && word.chars().all(is_mark));
        match marks.and_then(|marks| Some((marks, line.rsplit_once(marks)?))) {
            Some((marks, (text, rest))) => Self {
                text: text.to_owned(),
                marks: marks.to_owned(),
                rest: rest.to_owned(),
            },
            None => Self {
                text: line.to_owned(),
                ..Self::default()
            },
        }
    }
}

/// A section under a title.
#[derive(Debug, Serialize)]
pub struct Section {
    title: String,
    id: String,
    items: Vec<Item>,
}

/// A page, built from the top to the bottom.
#[derive(Debug, Default, Serialize)]
pub struct Page {
    verb: &'static str,
    title: String,
    first: Vec<String>,
    facts: Vec<Fact>,
    warnings: Vec<String>,
    leads: Vec<Lead>,
    sections: Vec<Section>,
    #[serde(skip)]
    charts: Vec<Chart>,
    command: String,
    version: &'static str,
}

impl Page {
    /// A page of what `verb` gave, about `title` (a file, mostly).
    #[must_use]
    pub fn new(verb: &'static str, title: impl Into<String>) -> Self {
        Self {
            verb,
            title: title.into(),
            version: env!("CARGO_PKG_VERSION"),
            ..Self::default()
        }
    }

    /// The command line that makes the results again.
    #[must_use]
    pub fn made_by(mut self, command: impl Into<String>) -> Self {
        self.command = command.into();
        self
    }

    /// Adds what holds of all numbers on the page: right below the title, before [`Self::fact`].
    pub fn first(&mut self, text: impl Into<String>) {
        self.first.push(text.into());
    }

    /// Adds a line below the title.
    pub fn fact(&mut self, text: impl Into<String>) {
        self.facts.push(Fact::new(&text.into()));
    }

    /// Adds something at the top that makes all below doubtful.
    pub fn warning(&mut self, text: impl Into<String>) {
        self.warnings.push(text.into());
    }

    /// Adds an answer, before all sections.
    pub fn lead(&mut self, lead: Lead) {
        self.leads.push(lead);
    }

    /// Begins a section; what is added goes there from now on.
    pub fn section(&mut self, title: impl Into<String>) {
        self.sections.push(Section {
            title: title.into(),
            id: format!("section-{}", self.sections.len() + 1),
            items: Vec::new(),
        });
    }

    /// Adds a chart, unless it has no row; `describes` stands in its place for screen readers.
    pub fn chart(&mut self, title: impl Into<String>, describes: impl Into<String>, chart: Chart) {
        if chart.rows() == 0 {
            return;
        }
        let item = Item::Chart {
            title: title.into(),
            describes: describes.into(),
            number: self.charts.len(),
            rows: chart.rows(),
        };
        self.charts.push(chart);
        self.item(item);
    }

    /// Adds a table.
    pub fn table(&mut self, table: Table) {
        self.item(Item::Table(table));
    }

    /// Adds a paragraph.
    pub fn text(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.item(Item::Text {
                text,
                is_note: false,
            });
        }
    }

    /// Adds a paragraph in small print.
    pub fn note(&mut self, text: impl Into<String>) {
        let text = text.into();
        if !text.is_empty() {
            self.item(Item::Text {
                text,
                is_note: true,
            });
        }
    }

    /// Adds a text as it is, line by line.
    pub fn lines(&mut self, text: &str) {
        let lines = text.lines().map(str::to_owned).collect();
        self.item(Item::Lines { lines });
    }

    /// Adds changes with their commands.
    pub(super) fn recipes(&mut self, title: impl Into<String>, recipes: Vec<Recipe>) {
        let title = title.into();
        self.item(Item::Recipes { title, recipes });
    }

    fn item(&mut self, item: Item) {
        if self.sections.is_empty() {
            self.section("Result");
        }
        if let Some(section) = self.sections.last_mut() {
            section.items.push(item);
        }
    }

    /// Writes the page.
    ///
    /// # Errors
    /// Those of the writer.
    pub fn write(&self, mut writer: impl Write) -> io::Result<()> {
        let mut environment = Environment::new();
        environment.set_formatter(put);
        let mut syntax = SyntaxConfig::builder();
        syntax
            .trim_blocks(true)
            .lstrip_blocks(true)
            .keep_trailing_newline(true);
        environment.set_syntax(syntax.build().map_err(io::Error::other)?);
        environment
            .add_template("steps", STEPS)
            .map_err(io::Error::other)?;
        let data = data(&self.charts)?;
        let page = environment
            .render_str(
                TEMPLATE,
                minijinja::context! {
                    page => Value::from(Serde(self)),
                    policy => POLICY.trim_end(),
                    style => Value::from_safe_string(STYLE.to_owned()),
                    charts => Value::from_safe_string(CHARTS.to_owned()),
                    script => Value::from_safe_string(SCRIPT.to_owned()),
                    data => Value::from_safe_string(data),
                },
            )
            .map_err(io::Error::other)?;
        writer.write_all(page.as_bytes())
    }
}

/// Puts a value into the page. Everything but the page's own parts is escaped here. What would act on a
/// terminal comes first, because HTML's escapes must stay as they are.
fn put(output: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    let failed = |_| Error::new(ErrorKind::WriteFailure, "the page cannot be put together");
    let text = value.to_string();
    if value.is_safe() {
        return output.write_str(&text).map_err(failed);
    }
    for c in escape::terminal(&text).chars() {
        match c {
            '&' => output.write_str("&amp;"),
            '<' => output.write_str("&lt;"),
            '>' => output.write_str("&gt;"),
            '"' => output.write_str("&quot;"),
            '\'' => output.write_str("&#39;"),
            c => output.write_char(c),
        }
        .map_err(failed)?;
    }
    Ok(())
}

/// The charts as JSON. `</script>` in a string would end the element around it, so that `<`, `>` and
/// `&` are written as JSON's escapes. They occur in strings only.
fn data(charts: &[Chart]) -> io::Result<String> {
    let mut value = serde_json::to_value(charts)?;
    make_safe(&mut value);
    let text = serde_json::to_string(&value)?;
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' | '>' | '&' => {
                safe.push_str(&format!("\\u{:04x}", u32::from(c)));
            }
            c => safe.push(c),
        }
    }
    Ok(safe)
}

/// Strings as for a terminal: no control characters, nothing invisible, no separators of lines.
fn make_safe(value: &mut serde_json::Value) {
    match value {
        serde_json::Value::String(text) => {
            if let std::borrow::Cow::Owned(safe) = escape::terminal(text) {
                *text = safe;
            }
        }
        serde_json::Value::Array(values) => values.iter_mut().for_each(make_safe),
        serde_json::Value::Object(values) => values.values_mut().for_each(make_safe),
        _ => {}
    }
}

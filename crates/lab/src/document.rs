//! Reads a TOML file key by key. A key that no reader takes is a problem with its line.
//!
//! ```
//! use stealtime_lab::document::{Notes, Table, parse};
//!
//! let text = "vcpus = 4\nvcpu = 2\n";
//! let document = parse("guest.toml", text)?;
//! let mut notes = Notes::default();
//! let mut table = Table::new("", document.span(), document.get_ref(), &mut notes);
//! assert_eq!(table.number("vcpus", 1..1024, &mut notes), Some(4));
//! table.finish(&[], &mut notes);
//! // A key that no reader has taken.
//! let problems = notes.diagnostics("guest.toml", text);
//! assert_eq!(problems.len(), 1);
//! # Ok::<(), stealtime_lab::LoadError>(())
//! ```

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::error::{Diagnostic, LoadError, Problem};
use crate::spelling::suggestion;
use crate::units::{Plain, time};

/// The most bytes of a file.
const MOST_BYTES: u64 = 4 << 20;
/// The most problems of a file that are shown: what follows is mostly their echo.
const MOST_SHOWN: usize = 20;

/// Reads a text file that may have a few MiB at most.
pub(crate) fn read_text(path: &Path) -> Result<String, LoadError> {
    use std::io::Read;
    let failed = |source| LoadError::Read {
        path: path.to_owned(),
        source,
    };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(failed)?;
    let read = file.take(MOST_BYTES + 1).read_to_string(&mut text);
    match read.map_err(failed)? as u64 > MOST_BYTES {
        true => Err(LoadError::TooLarge {
            path: path.to_owned(),
            most: MOST_BYTES,
        }),
        false => Ok(text),
    }
}

/// Parses the text of a file.
///
/// # Errors
///
/// [`LoadError`]: it is no TOML.
pub fn parse<'a>(file: &str, text: &'a str) -> Result<Spanned<DeTable<'a>>, LoadError> {
    DeTable::parse(text).map_err(|error| {
        let problem = Problem {
            key: String::new(),
            span: error.span().unwrap_or(0..0),
            problem: error.message().to_owned(),
            help: None,
        };
        LoadError::Wrong(vec![problem.at(file, text)])
    })
}

/// The problems found in a file, and the places of its keys.
#[derive(Debug, Default)]
pub struct Notes {
    problems: Vec<Problem>,
    places: BTreeMap<String, Range<usize>>,
}

impl Notes {
    /// Adds a problem of a key.
    pub fn problem(&mut self, key: &str, span: Range<usize>, problem: String) {
        self.push(key, span, problem, None);
    }

    pub(crate) fn push(
        &mut self,
        key: &str,
        span: Range<usize>,
        problem: String,
        help: Option<String>,
    ) {
        self.problems.push(Problem {
            key: key.to_owned(),
            span,
            problem,
            help,
        });
    }

    /// Whether the file has no problem so far.
    #[must_use]
    pub fn is_fine(&self) -> bool {
        self.problems.is_empty()
    }

    /// The place of a key that was read, or of the nearest table around it.
    #[must_use]
    pub fn place(&self, key: &str) -> Range<usize> {
        place(&self.places, key)
    }

    /// The places of all keys, by dotted path.
    pub(crate) fn places(self) -> BTreeMap<String, Range<usize>> {
        self.places
    }

    /// The first problems in the order of their lines.
    #[must_use]
    pub fn diagnostics(mut self, file: &str, text: &str) -> Vec<Diagnostic> {
        self.problems.sort_by_key(|problem| problem.span.start);
        let problems = self.problems.into_iter().take(MOST_SHOWN);
        problems.map(|problem| problem.at(file, text)).collect()
    }
}

/// The place of a key, or of the nearest table around it that the file has.
pub(crate) fn place(places: &BTreeMap<String, Range<usize>>, key: &str) -> Range<usize> {
    let mut key = key;
    loop {
        if let Some(span) = places.get(key) {
            return span.clone();
        }
        match key.rsplit_once('.') {
            Some((outer, _)) => key = outer,
            None => return 0..0,
        }
    }
}

/// A value with its place.
#[derive(Clone, Debug)]
pub struct Item<'t, 'a> {
    /// Dotted path.
    pub key: String,
    pub(crate) key_span: Range<usize>,
    pub(crate) span: Range<usize>,
    /// As the parser gives it.
    pub value: &'t DeValue<'a>,
}

/// A table with keys that are taken one by one.
#[derive(Debug)]
pub struct Table<'t, 'a> {
    /// Dotted path.
    pub key: String,
    items: Vec<(String, Item<'t, 'a>)>,
    asked: Vec<String>,
}

/// `outer.name`, or `name` at the top.
fn joined(outer: &str, name: &str) -> String {
    match outer {
        "" => name.to_owned(),
        outer => format!("{outer}.{name}"),
    }
}

impl<'t, 'a> Table<'t, 'a> {
    /// A table of the file, with the place of its header.
    #[must_use]
    pub fn new(key: &str, span: Range<usize>, table: &'t DeTable<'a>, notes: &mut Notes) -> Self {
        let mut items: Vec<_> = table
            .iter()
            .map(|(name, value)| {
                let item = Item {
                    key: joined(key, name.get_ref()),
                    key_span: name.span(),
                    span: value.span(),
                    value: value.get_ref(),
                };
                (name.get_ref().clone().into_owned(), item)
            })
            .collect();
        // The file's order.
        items.sort_by_key(|(_, item)| item.key_span.start);
        notes.places.entry(key.to_owned()).or_insert(span);
        for (_, item) in &items {
            // A table's span is its header; that of anything else its value.
            let span = match item.value.is_table() {
                true => item.key_span.clone(),
                false => item.span.clone(),
            };
            notes.places.insert(item.key.clone(), span);
        }
        Self {
            key: key.to_owned(),
            items,
            asked: Vec::new(),
        }
    }

    /// Takes a key out.
    pub fn take(&mut self, name: &str) -> Option<Item<'t, 'a>> {
        self.asked.push(name.to_owned());
        let index = self.items.iter().position(|(key, _)| key == name)?;
        Some(self.items.remove(index).1)
    }

    /// All that is left, in the file's order.
    pub(crate) fn rest(&mut self) -> Vec<(String, Item<'t, 'a>)> {
        std::mem::take(&mut self.items)
    }

    /// Whatever was not taken is unknown. `also` are names that would have been taken otherwise.
    pub fn finish(self, extras: &[&str], notes: &mut Notes) {
        let mut known: Vec<&str> = self.asked.iter().map(String::as_str).collect();
        known.extend(extras);
        known.dedup();
        for (name, item) in &self.items {
            let where_ = match self.key.as_str() {
                "" => "here".to_owned(),
                key => format!("in {key}"),
            };
            notes.push(
                &item.key,
                item.key_span.clone(),
                format!("no key `{name}` is known {where_}"),
                Some(suggestion(name, &known)),
            );
        }
    }

    /// A text, if the key is there.
    pub fn text(&mut self, name: &str, notes: &mut Notes) -> Option<&'t str> {
        self.take(name)?.text(notes)
    }

    /// A number within a range, if the key is there.
    pub fn number(&mut self, name: &str, range: Range<u64>, notes: &mut Notes) -> Option<u64> {
        self.take(name)?.number(range, notes)
    }

    /// A table, if the key is there.
    pub fn table(&mut self, name: &str, notes: &mut Notes) -> Option<Table<'t, 'a>> {
        self.take(name)?.table(notes)
    }

    /// An array of tables (`[[name]]`), empty without the key.
    pub fn tables(&mut self, name: &str, notes: &mut Notes) -> Vec<Table<'t, 'a>> {
        let Some(item) = self.take(name) else {
            return Vec::new();
        };
        let Some(array) = item.value.as_array() else {
            let help = Some(format!("write [[{name}]] with two brackets"));
            notes.push(
                &item.key,
                item.key_span,
                "must be an array of tables".into(),
                help,
            );
            return Vec::new();
        };
        let mut tables = Vec::new();
        for (n, value) in array.iter().enumerate() {
            let item = Item {
                key: format!("{}.{n}", item.key),
                key_span: value.span(),
                span: value.span(),
                value: value.get_ref(),
            };
            tables.extend(item.table(notes));
        }
        tables
    }
}

impl<'t, 'a> Item<'t, 'a> {
    /// Adds a problem of this value.
    pub fn wrong(&self, problem: String, notes: &mut Notes) {
        notes.problem(&self.key, self.span.clone(), problem);
    }

    fn expected(&self, wanted: &str, notes: &mut Notes) {
        let found = self.value.type_str();
        self.wrong(
            format!("{wanted} must stand here, not one of type {found}"),
            notes,
        );
    }

    /// The text, or a problem.
    pub fn text(&self, notes: &mut Notes) -> Option<&'t str> {
        let text = self.value.as_str();
        if text.is_none() {
            self.expected("a text in quotes", notes);
        }
        text
    }

    /// A number that `range` holds (its end excluded).
    pub(crate) fn number(&self, range: Range<u64>, notes: &mut Notes) -> Option<u64> {
        let Some(integer) = self.value.as_integer() else {
            self.expected("a whole number", notes);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let number = number.filter(|number| range.contains(number));
        if number.is_none() {
            let (first, last) = (range.start, range.end.saturating_sub(1));
            self.wrong(format!("{integer} is not within {first} to {last}"), notes);
        }
        number
    }

    /// A time in ns within a range (its end excluded).
    pub fn time(&self, range: Range<u64>, notes: &mut Notes) -> Option<u64> {
        use crate::units::show_time;
        let text = match self.value {
            DeValue::String(text) => text.to_string(),
            DeValue::Integer(number) => number.to_string(),
            _ => {
                self.expected("a time such as \"50ms\"", notes);
                return None;
            }
        };
        match time(&text, Plain::Refused) {
            Ok(ns) if range.contains(&ns) => return Some(ns),
            Ok(ns) => {
                let (first, last) = (
                    show_time(range.start),
                    show_time(range.end.saturating_sub(1)),
                );
                let ns = show_time(ns);
                self.wrong(format!("{ns} is not within {first} to {last}"), notes);
            }
            Err(error) => self.wrong(error.to_string(), notes),
        }
        None
    }

    pub(crate) fn table(&self, notes: &mut Notes) -> Option<Table<'t, 'a>> {
        let Some(table) = self.value.as_table() else {
            self.expected("a table", notes);
            return None;
        };
        Some(Table::new(&self.key, self.key_span.clone(), table, notes))
    }

    /// The value as one would type it after `--set KEY=`: lists with commas.
    pub fn words(&self, notes: &mut Notes) -> Option<String> {
        let text = words(self.value, true);
        if text.is_none() {
            self.expected("a number, a text, true, false or a list of them", notes);
        }
        text
    }
}

/// A value as text; `None` for a table, or a list within a list.
pub(crate) fn words(value: &DeValue<'_>, lists: bool) -> Option<String> {
    match value {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Boolean(value) => Some(value.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        DeValue::Integer(number) => {
            let value = u64::from_str_radix(number.as_str(), number.radix()).ok()?;
            Some(value.to_string())
        }
        DeValue::Float(number) => Some(number.as_str().to_owned()),
        DeValue::Array(list) if lists => {
            let words: Option<Vec<_>> = list.iter().map(|v| words(v.get_ref(), false)).collect();
            Some(words?.join(","))
        }
        _ => None,
    }
}

//! Parses an event's text by the table of tracepoints.
//!
//! A field is behind the word that the row's `print fmt` puts before it. In events that trace-cmd
//! cannot format it is behind its name in C. The functions of [`irregular`](super::irregular) come
//! first: they read texts that differ from their `print fmt`.

use std::collections::HashMap;
use std::sync::LazyLock;

use memchr::memmem::Finder;
use stealtime_events::{Kind, NameId, Tid};

use super::decoded::Decoded;
use super::fields::{after_word, bare_hex, named, number_or_bool, symbol};
use super::irregular::{self, Exits};
use super::print::{Notation, Position, Printed, printed};
use crate::NameTable;
use crate::tracepoint::{self, Field, Fields, Integer, MAX_FIELDS, Role, Tracepoint};

/// The result for an event's text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Body<'a> {
    Decoded(Decoded<'a>),
    /// The tracepoint is in the table, but its fields are not in the text.
    Unreadable,
    /// The tracepoint is not in the table.
    Unknown,
}

/// A tracepoint's row, compiled.
struct Row {
    tracepoint: Tracepoint,
    fields: Vec<FieldText>,
    comm: Option<CommText>,
}

/// The marks around a task's name at the beginning of the text, for a row with one task.
struct CommText {
    /// `comm=`.
    start: String,
    /// ` pid=`, which follows the name.
    end: String,
    /// The place of the tid.
    tid: usize,
}

/// The marks and the notation of one field.
struct FieldText {
    place: usize,
    required: bool,
    integer: Integer,
    /// The letters at which the text begins, with the value at once behind them.
    start: Option<&'static str>,
    /// The words before the value: that of the `print fmt`, then its names in C. They are compiled,
    /// because each line is searched for each of its fields.
    words: Vec<Finder<'static>>,
    notation: Notation,
}

/// Rows by name, former names included.
type Rows = HashMap<&'static [u8], Vec<Row>>;

/// Compiled once: for a small text this costs more than all of its lines.
static ROWS: LazyLock<Rows> = LazyLock::new(|| {
    let mut by_name = Rows::new();
    for tracepoint in tracepoint::all().filter(|row| !row.is_read_only()) {
        for name in [Some(tracepoint.name), tracepoint.former]
            .into_iter()
            .flatten()
        {
            let row = Row::compile(tracepoint);
            by_name.entry(name.as_bytes()).or_default().push(row);
        }
    }
    by_name
});

/// The parser of all tracepoints.
pub(super) struct Bodies {
    by_name: &'static Rows,
    exits: Exits,
}

impl Bodies {
    pub(super) fn new() -> Self {
        let exits = Exits::default();
        Self {
            by_name: &ROWS,
            exits,
        }
    }

    /// Reads the text of an event.
    pub(super) fn parse<'a>(
        &mut self,
        event: &[u8],
        body: &'a [u8],
        names: &mut NameTable,
    ) -> Body<'a> {
        let Some(rows) = self.by_name.get(event) else {
            return Body::Unknown;
        };
        let irregular = irregular::parse(event, body, &mut self.exits);
        let decoded = irregular.or_else(|| rows.iter().find_map(|row| row.parse(body, names)));
        decoded.map_or(Body::Unreadable, Body::Decoded)
    }
}

impl Row {
    fn compile(tracepoint: Tracepoint) -> Self {
        let fields = (0..).zip(tracepoint.fields);
        let fields =
            fields.filter_map(|(place, field)| FieldText::compile(&tracepoint, place, field));
        Self {
            tracepoint,
            fields: fields.collect(),
            comm: CommText::compile(&tracepoint),
        }
    }

    /// The event of a text. `None` where it lacks a required field or all fields, and where a value
    /// is not of its field's type.
    fn parse<'a>(&self, body: &'a [u8], names: &mut NameTable) -> Option<Decoded<'a>> {
        let (comm, body) = match &self.comm {
            Some(comm) => comm.split(body)?,
            None => (&[][..], body),
        };
        let mut found = TextFields {
            values: [None; MAX_FIELDS],
            names,
        };
        // trace-cmd marks events that it prints field by field, with bare numbers in decimal.
        let unformatted = body.starts_with(b"[FAILED TO PARSE]");
        for field in &self.fields {
            match (field.find(body), found.values.get_mut(field.place)) {
                (Some(text), Some(slot)) => *slot = Some(field.value(text, unformatted)?),
                (None, _) if field.required => return None,
                _ => {}
            }
        }
        if found.values.iter().all(Option::is_none) {
            return None;
        }
        let tid = self.comm.as_ref().map(|comm| found.number(comm.tid) as i32);
        let mut kind = Kind::Other { name: NameId::NONE };
        if !tracepoint::read(self.tracepoint.point, &mut found, &mut kind) {
            return None;
        }
        let tasks = [tid.map(|tid| (Tid(tid), comm)), None];
        Some(Decoded { kind, tasks })
    }
}

impl CommText {
    /// `None` for a row without a task's name, and for one with several.
    fn compile(tracepoint: &Tracepoint) -> Option<Self> {
        let fields = tracepoint.fields;
        let mut comms = fields.iter().filter_map(|field| match field.role {
            Role::Comm { task } => Some((field.name(), tracepoint.place_of(task)?)),
            _ => None,
        });
        let (comm, tid) = comms.next().filter(|_| comms.next().is_none())?;
        Some(Self {
            start: format!("{comm}="),
            end: format!(" {}=", fields.get(tid)?.name()),
            tid,
        })
    }

    /// The task's name and the fields behind it. A name may hold anything, also ` pid=`: it ends where
    /// its tid begins for the last time.
    fn split<'a>(&self, body: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let rest = body.strip_prefix(self.start.as_bytes())?;
        rest.split_at_checked(memchr::memmem::rfind(rest, self.end.as_bytes())?)
    }
}

impl FieldText {
    /// `None` for a field that is not read.
    fn compile(tracepoint: &Tracepoint, place: usize, field: &'static Field) -> Option<Self> {
        let Role::Value { required, .. } = field.role else {
            return None;
        };
        let (position, notation) = match printed(tracepoint, field.name()) {
            Some(Printed { position, notation }) => (position, notation),
            None => (None, Notation::Number),
        };
        let (start, key) = match position {
            Some(Position::Start(letters)) => (Some(letters), None),
            Some(Position::Key(key)) => (None, Some(key)),
            None => (None, None),
        };
        let words = [key, Some(field.name()), field.former];
        Some(Self {
            place,
            // A function may be NULL in records too, so an event without one is still whole.
            required: required && notation != Notation::Symbol,
            integer: field.integer()?,
            start,
            words: words.into_iter().flatten().map(Finder::new).collect(),
            notation,
        })
    }

    /// The text that begins with the value.
    fn find<'a>(&self, body: &'a [u8]) -> Option<&'a [u8]> {
        if let (Some(letters), Notation::Choice(words)) = (self.start, &self.notation)
            && let Some(text) = body.strip_prefix(letters.as_bytes())
            && choice(text, words).is_some()
        {
            return Some(text);
        }
        self.words.iter().find_map(|word| after_word(body, word))
    }

    /// The value that a text begins with, or `None` where the field cannot hold it.
    fn value<'a>(&self, text: &'a [u8], unformatted: bool) -> Option<TextValue<'a>> {
        let number = match &self.notation {
            Notation::Hex if !unformatted => bare_hex(text)?.into(),
            Notation::Number | Notation::Hex => number_or_bool(text)?,
            Notation::Symbol => return Some(TextValue::Function(symbol(text))),
            Notation::Choice(words) => match choice(text, words) {
                Some(value) => value.into(),
                None => number_or_bool(text)?,
            },
            Notation::Symbolic(table) => named(text, table)?.into(),
        };
        self.integer.value(number).map(TextValue::Number)
    }
}

/// The value of the word at the beginning of a text; `None` where neither word is.
fn choice(text: &[u8], words: &[&str; 2]) -> Option<bool> {
    let begins = |word: &str| !word.is_empty() && text.starts_with(word.as_bytes());
    let [truth, falsehood] = words;
    (begins(truth) || begins(falsehood)).then(|| begins(truth))
}

#[derive(Debug, Clone, Copy)]
enum TextValue<'a> {
    Number(u64),
    /// The name of a function, empty for a null pointer.
    Function(&'a [u8]),
}

/// The fields of one text by their place in the row.
struct TextFields<'a, 'n> {
    values: [Option<TextValue<'a>>; MAX_FIELDS],
    names: &'n mut NameTable,
}

impl TextFields<'_, '_> {
    fn value(&self, place: usize) -> Option<TextValue<'_>> {
        self.values.get(place).copied().flatten()
    }
}

impl Fields for TextFields<'_, '_> {
    fn number(&self, place: usize) -> u64 {
        match self.value(place) {
            Some(TextValue::Number(number)) => number,
            _ => 0,
        }
    }

    fn exists(&self, place: usize) -> bool {
        self.value(place).is_some()
    }

    fn function(&mut self, place: usize) -> NameId {
        match self.values.get(place) {
            Some(Some(TextValue::Function(name))) => self.names.intern_bytes(name),
            _ => NameId::NONE,
        }
    }
}

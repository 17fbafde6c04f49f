//! Builders of columns, in which most rows may have no value.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::builder::{
    ArrayBuilder as _, BooleanBuilder, Int32Builder, Int64Builder, UInt64Builder,
};
use arrow_array::types::Int32Type;
use arrow_array::{ArrayRef, DictionaryArray, StringArray};
use arrow_schema::{ArrowError, DataType};
use stealtime_events::{ExitReason, FieldValue, Kind, NameId, Names};

use super::condition::exit_name;

/// A column of a batch.
pub(crate) enum Builder {
    Integer(Int64Builder),
    Wide(UInt64Builder),
    Switch(BooleanBuilder),
    Text(Box<Texts>),
}

/// A column of texts: each text once, and its number in the rows. Texts keep their numbers in all batches.
#[derive(Default)]
pub(crate) struct Texts {
    rows: Int32Builder,
    texts: Vec<String>,
    numbers: HashMap<String, i32>,
    /// Numbers of names of the recording, by their ids; -1: not yet known.
    of_names: Vec<i32>,
    /// The same of tracepoints.
    of_tracepoints: Vec<i32>,
    of_exits: HashMap<ExitReason, i32>,
    /// The texts as an array, while there are no further ones.
    array: Option<ArrayRef>,
}

impl Builder {
    pub(crate) fn new(kind: &DataType) -> Self {
        match kind {
            DataType::Int64 => Self::Integer(Int64Builder::new()),
            DataType::UInt64 => Self::Wide(UInt64Builder::new()),
            DataType::Boolean => Self::Switch(BooleanBuilder::new()),
            _ => Self::Text(Box::default()),
        }
    }

    /// Sets the value of this row, the latest so far; rows before it that have none are missing values.
    #[inline]
    pub(crate) fn add(&mut self, row: usize, value: FieldValue, names: &dyn Names) {
        match (self, value) {
            (Self::Integer(builder), FieldValue::Integer(number)) => {
                builder.append_nulls(row - builder.len());
                builder.append_value(number);
            }
            (Self::Wide(builder), FieldValue::Wide(number)) => {
                builder.append_nulls(row - builder.len());
                builder.append_value(number);
            }
            (Self::Wide(builder), FieldValue::Integer(number)) => {
                builder.append_nulls(row - builder.len());
                builder.append_option(u64::try_from(number).ok());
            }
            (Self::Switch(builder), FieldValue::Switch(on)) => {
                builder.append_nulls(row - builder.len());
                builder.append_value(on);
            }
            (Self::Text(texts), FieldValue::Name(name)) => {
                if name != NameId::NONE {
                    let number = texts.of_name(name, names);
                    texts.push(row, number);
                }
            }
            (Self::Text(texts), FieldValue::Exit(reason)) => {
                let number = texts.of_exit(reason);
                texts.push(row, number);
            }
            (_, value) => {
                debug_assert!(value == FieldValue::Missing, "{value:?} in another column")
            }
        }
    }

    /// Sets the text of this row to the name of a tracepoint.
    #[inline]
    pub(crate) fn tracepoint(&mut self, row: usize, number: usize) {
        if let Self::Text(texts) = self {
            let number = texts.of_tracepoint(number);
            texts.push(row, number);
        }
    }

    /// Sets the text of this row.
    pub(crate) fn text(&mut self, row: usize, text: &str) {
        if let Self::Text(texts) = self {
            let number = texts.number(text);
            texts.push(row, number);
        }
    }

    /// The column of so many rows; the next row is the first again.
    pub(crate) fn finish(&mut self, rows: usize) -> Result<ArrayRef, ArrowError> {
        Ok(match self {
            Self::Integer(builder) => {
                builder.append_nulls(rows - builder.len());
                Arc::new(builder.finish())
            }
            Self::Wide(builder) => {
                builder.append_nulls(rows - builder.len());
                Arc::new(builder.finish())
            }
            Self::Switch(builder) => {
                builder.append_nulls(rows - builder.len());
                Arc::new(builder.finish())
            }
            Self::Text(texts) => return texts.finish(rows),
        })
    }
}

impl Texts {
    fn push(&mut self, row: usize, number: i32) {
        self.rows.append_nulls(row - self.rows.len());
        self.rows.append_value(number);
    }

    /// The number of a text, new or known.
    fn number(&mut self, text: &str) -> i32 {
        if let Some(number) = self.numbers.get(text) {
            return *number;
        }
        let number = i32::try_from(self.texts.len()).unwrap_or(i32::MAX);
        self.texts.push(text.to_owned());
        self.numbers.insert(text.to_owned(), number);
        self.array = None;
        number
    }

    fn of_name(&mut self, name: NameId, names: &dyn Names) -> i32 {
        let place = name.0 as usize;
        if place >= self.of_names.len() {
            self.of_names.resize(place + 1, -1);
        }
        if self.of_names[place] < 0 {
            self.of_names[place] = self.number(names.name(name));
        }
        self.of_names[place]
    }

    fn of_tracepoint(&mut self, tracepoint: usize) -> i32 {
        if self.of_tracepoints.is_empty() {
            self.of_tracepoints = vec![-1; Kind::TRACEPOINTS];
        }
        if self.of_tracepoints[tracepoint] < 0 {
            self.of_tracepoints[tracepoint] = self.number(Kind::name_of(tracepoint));
        }
        self.of_tracepoints[tracepoint]
    }

    fn of_exit(&mut self, reason: ExitReason) -> i32 {
        if let Some(number) = self.of_exits.get(&reason) {
            return *number;
        }
        let number = self.number(&exit_name(reason));
        self.of_exits.insert(reason, number);
        number
    }

    fn finish(&mut self, rows: usize) -> Result<ArrayRef, ArrowError> {
        self.rows.append_nulls(rows - self.rows.len());
        let texts = &self.texts;
        let array = self
            .array
            .get_or_insert_with(|| Arc::new(StringArray::from_iter_values(texts)));
        let column = DictionaryArray::<Int32Type>::try_new(self.rows.finish(), Arc::clone(array))?;
        Ok(Arc::new(column))
    }
}

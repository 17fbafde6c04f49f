//! Conditions on events: a column has one of some values.

use arrow_schema::DataType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use stealtime_events::{ExitReason, FieldValue, Names};

use crate::columns::Column;

/// A value that a condition names.
#[derive(Debug, FromPyObject)]
pub(crate) enum Value {
    Switch(bool),
    Number(i64),
    Wide(u64),
    Text(String),
}

impl Value {
    /// The name of its type in Python.
    const fn kind(&self) -> &'static str {
        match self {
            Self::Switch(_) => "bool",
            Self::Number(_) | Self::Wide(_) => "int",
            Self::Text(_) => "str",
        }
    }

    /// The text, if it is one.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// A column has one of these values.
#[derive(Debug)]
pub(crate) struct Condition {
    pub(crate) column: Column,
    numbers: Vec<i128>,
    texts: Vec<String>,
    switches: Vec<bool>,
}

impl Condition {
    /// A column that is named `name`, with values of type `kind`.
    ///
    /// # Errors
    /// No value of the column can be equal to one of these.
    pub(crate) fn new(
        name: &str,
        column: Column,
        kind: &DataType,
        values: Vec<Value>,
    ) -> PyResult<Self> {
        let expected = match kind {
            DataType::Int64 | DataType::UInt64 => "int",
            DataType::Boolean => "bool",
            _ => "str",
        };
        if let Some(wrong) = values.iter().find(|value| value.kind() != expected) {
            let article = if expected == "int" { "an" } else { "a" };
            return Err(PyTypeError::new_err(format!(
                "where['{name}']: expected {article} {expected}, not {}",
                wrong.kind()
            )));
        }
        let mut condition = Self {
            column,
            numbers: Vec::new(),
            texts: Vec::new(),
            switches: Vec::new(),
        };
        for value in values {
            match value {
                Value::Switch(value) => condition.switches.push(value),
                Value::Number(value) => condition.numbers.push(value.into()),
                Value::Wide(value) => condition.numbers.push(value.into()),
                Value::Text(value) => condition.texts.push(value),
            }
        }
        Ok(condition)
    }

    pub(crate) fn has_number(&self, number: i128) -> bool {
        self.numbers.contains(&number)
    }

    pub(crate) fn has_text(&self, text: &str) -> bool {
        self.texts.iter().any(|wanted| wanted == text)
    }

    pub(crate) fn has(&self, value: FieldValue, names: &dyn Names) -> bool {
        match value {
            FieldValue::Missing => false,
            FieldValue::Integer(number) => self.has_number(number.into()),
            FieldValue::Wide(number) => self.has_number(number.into()),
            FieldValue::Switch(on) => self.switches.contains(&on),
            FieldValue::Name(name) => self.has_text(names.name(name)),
            FieldValue::Exit(reason) => self.has_text(&exit_name(reason)),
        }
    }
}

/// The name of an exit reason, or its number where it has none.
pub(crate) fn exit_name(reason: ExitReason) -> std::borrow::Cow<'static, str> {
    match reason.name() {
        Some(name) => name.into(),
        None => format!("{:#x}", reason.code).into(),
    }
}

//! Columns, and values as results have them: switches, whole numbers, numbers and texts.

use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, Visitor};

/// What type a column has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CellKind {
    /// Booleans.
    Switch,
    /// 64-bit integers; times are in ns.
    Integer,
    /// 64-bit floating point.
    Number,
    /// UTF-8.
    Text,
}

/// A column of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its name, with the unit at its end.
    pub name: String,
    /// Its type.
    pub kind: CellKind,
}

/// A value of a column. In JSON it has the type of the same name; a number that is not finite is `null`.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// There is none.
    Null,
    /// A boolean.
    Switch(bool),
    /// A whole number, or a time in ns.
    Integer(i64),
    /// A number.
    Number(f64),
    /// A text.
    Text(String),
}

/// By the type of the value. What serde derives makes an error for each variant that does not fit.
impl<'de> Deserialize<'de> for Cell {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(CellVisitor)
    }
}

struct CellVisitor;

impl Visitor<'_> for CellVisitor {
    type Value = Cell;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("null, a boolean, a number or a text")
    }

    fn visit_unit<E: Error>(self) -> Result<Cell, E> {
        Ok(Cell::Null)
    }

    fn visit_bool<E: Error>(self, switch: bool) -> Result<Cell, E> {
        Ok(Cell::Switch(switch))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Cell, E> {
        Ok(Cell::Integer(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Cell, E> {
        let integer = i64::try_from(number).map(Cell::Integer);
        integer.map_err(|_| E::custom(format_args!("{number} is beyond 64 bits with a sign")))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Cell, E> {
        Ok(Cell::Number(number))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Cell, E> {
        Ok(Cell::Text(text.to_owned()))
    }
}

impl Cell {
    /// The type of a column of such values; a missing value fits texts.
    #[must_use]
    pub const fn kind(&self) -> CellKind {
        match self {
            Self::Switch(_) => CellKind::Switch,
            Self::Integer(_) => CellKind::Integer,
            Self::Number(_) => CellKind::Number,
            Self::Null | Self::Text(_) => CellKind::Text,
        }
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => Ok(()),
            Self::Switch(on) => on.fmt(f),
            Self::Integer(number) => number.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

//! Columns, and values as results have them: switches, whole numbers, numbers and texts.

use std::fmt;

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

/// A value of a column.
#[derive(Clone, Debug, PartialEq)]
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

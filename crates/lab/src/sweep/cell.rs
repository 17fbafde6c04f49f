//! Values as results have them: switches, whole numbers, numbers and texts.

use std::fmt;

use crate::knobs::{Value, kind_of, parameter_value};
use crate::scenario::{Scenario, sizes};
use crate::units::{Plain, time};
use stealtime_simulator::config::ParamValue;

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
    const fn kind(&self) -> CellKind {
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

/// The values of a dimension by what its knob takes; texts where they are not all of one type.
pub(super) fn typed(scenario: &Scenario, knob: &str, texts: &[String]) -> (Vec<Cell>, CellKind) {
    let cells: Option<Vec<Cell>> = texts
        .iter()
        .map(|text| cell(scenario, knob, text))
        .collect();
    if let Some(cells) = cells
        && let Some(first) = cells.first().map(Cell::kind)
        && cells.iter().all(|cell| cell.kind() == first)
    {
        return (cells, first);
    }
    let texts = texts.iter().map(|text| Cell::Text(text.clone()));
    (texts.collect(), CellKind::Text)
}

fn cell(scenario: &Scenario, knob: &str, text: &str) -> Option<Cell> {
    let integer = |number: u64| i64::try_from(number).ok().map(Cell::Integer);
    if let Some((_, is_time)) = sizes().find(|(name, _)| *name == knob) {
        return match is_time {
            true => integer(time(text, Plain::Refused).ok()?),
            false => text.parse().ok().map(Cell::Integer),
        };
    }
    if let Some(kind) = kind_of(scenario.template(), knob) {
        return match kind.read(text).ok()? {
            Value::Switch(on) => Some(Cell::Switch(on)),
            Value::Number(number) => Some(Cell::Integer(number)),
            Value::Ns(ns) => integer(ns),
            Value::Cpus(_) | Value::Words(_) => Some(Cell::Text(text.to_owned())),
        };
    }
    match parameter_value(text) {
        ParamValue::Int(number) => Some(Cell::Integer(number)),
        ParamValue::Bool(on) => Some(Cell::Switch(on)),
        ParamValue::Text(text) => Some(Cell::Text(text)),
    }
}

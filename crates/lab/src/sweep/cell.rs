//! The values of a dimension as cells of results.

use crate::knobs::{Value, kind_of, parameter_value};
use crate::scenario::{Scenario, sizes};
use crate::units::{Plain, time};
use stealtime_results::{Cell, CellKind};
use stealtime_simulator::config::ParamValue;

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

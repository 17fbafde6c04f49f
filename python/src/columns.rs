//! The columns that events can have.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use arrow_schema::DataType;
use pyo3::prelude::*;
use stealtime_events::{FieldType, Kind};

/// The name of losses in the column `event`: no tracepoint has it.
pub(crate) const LOST: &str = "lost_events";

/// A column of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Column {
    /// The time, in ns of the recording's clock.
    Time,
    /// The host CPU.
    Cpu,
    /// The current task.
    Tid,
    /// Its name.
    Task,
    /// The tracepoint.
    Event,
    /// How many events were lost; 0: not known.
    Lost,
    /// A field of tracepoints, by its place in [`Fields::columns`].
    Field(usize),
}

/// The columns that every event has.
pub(crate) const COMMON: [(&str, Column); 5] = [
    ("time_ns", Column::Time),
    ("cpu", Column::Cpu),
    ("tid", Column::Tid),
    ("task", Column::Task),
    ("event", Column::Event),
];

/// The fields of all tracepoints as columns. Those with one name share one.
#[derive(Debug, Default)]
pub(crate) struct Fields {
    pub(crate) columns: Vec<(String, FieldType)>,
    /// For each tracepoint, the column of each of its fields.
    pub(crate) of_tracepoint: Vec<Vec<usize>>,
}

impl Fields {
    pub(crate) fn new() -> Self {
        let mut fields = Self::default();
        let mut known = BTreeMap::new();
        for number in 0..Kind::TRACEPOINTS {
            let of_tracepoint = Kind::fields_of(number).iter();
            let places = of_tracepoint.map(|&(field, kind)| {
                let name = column_name(field, kind).to_owned();
                let place = match known.entry(name) {
                    Entry::Occupied(known) => *known.get(),
                    Entry::Vacant(new) => {
                        fields.columns.push((new.key().clone(), kind));
                        *new.insert(fields.columns.len() - 1)
                    }
                };
                // A wide column takes the other integers too.
                let column = &mut fields.columns[place].1;
                if kind == FieldType::Wide && *column == FieldType::Integer {
                    *column = kind;
                }
                let is_fitting = *column == kind || *column == FieldType::Wide;
                debug_assert!(is_fitting, "{field} has two types");
                place
            });
            let places = places.collect();
            fields.of_tracepoint.push(places);
        }
        fields
    }

    /// The column with this name.
    pub(crate) fn column(&self, name: &str) -> Option<Column> {
        let common = COMMON.iter().find(|(known, _)| *known == name);
        if let Some((_, column)) = common {
            return Some(*column);
        }
        if name == "lost" {
            return Some(Column::Lost);
        }
        let place = self.columns.iter().position(|(known, _)| known == name);
        place.map(Column::Field)
    }

    /// The type of its values.
    pub(crate) fn data_type(&self, column: Column) -> DataType {
        match column {
            Column::Time | Column::Cpu | Column::Tid => DataType::Int64,
            Column::Lost => DataType::UInt64,
            Column::Task | Column::Event => text(),
            Column::Field(place) => match self.columns.get(place).map(|column| column.1) {
                Some(FieldType::Integer) => DataType::Int64,
                Some(FieldType::Wide) => DataType::UInt64,
                Some(FieldType::Switch) => DataType::Boolean,
                Some(FieldType::Text) | None => text(),
            },
        }
    }

    /// The names of a tracepoint's columns.
    pub(crate) fn names_of(&self, number: usize) -> impl Iterator<Item = &str> {
        let places = self.of_tracepoint.get(number).into_iter().flatten();
        places.filter_map(|place| Some(self.columns.get(*place)?.0.as_str()))
    }
}

/// Few different texts, many rows.
pub(crate) fn text() -> DataType {
    DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
}

/// The kernel's name of the field, where ours is that of a common column, or of fields of another type.
fn column_name(field: &'static str, kind: FieldType) -> &'static str {
    match (field, kind) {
        ("tid", _) => "pid",
        ("cpu", _) => "dest_cpu",
        ("prev", FieldType::Integer) => "prev_pid",
        ("next", FieldType::Integer) => "next_pid",
        ("parent", _) => "parent_pid",
        ("child", _) => "child_pid",
        ("prev", _) => "previous_tsc_offset",
        ("next", _) => "next_tsc_offset",
        ("function", FieldType::Integer) => "cpuid_function",
        ("reason", FieldType::Integer) => "reason_number",
        ("exception", FieldType::Switch) => "msr_exception",
        (field, _) => field,
    }
}

/// The number of a tracepoint.
pub(crate) fn number_of(name: &str) -> Option<usize> {
    (0..Kind::TRACEPOINTS).find(|number| Kind::name_of(*number) == name)
}

/// Columns of `Recording.events`, with the tracepoints that have a value there; none: every event has one.
#[pyfunction]
pub(crate) fn event_columns() -> Vec<(String, Vec<&'static str>)> {
    let fields = Fields::new();
    let common = COMMON.iter();
    let common = common.map(|(name, _)| ((*name).to_owned(), Vec::new()));
    let mut columns: Vec<_> = common.collect();
    columns.push(("lost".to_owned(), vec![LOST]));
    let first = columns.len();
    columns.extend(
        fields
            .columns
            .iter()
            .map(|(name, _)| (name.clone(), Vec::new())),
    );
    for (number, places) in fields.of_tracepoint.iter().enumerate() {
        for place in places {
            columns[first + place].1.push(Kind::name_of(number));
        }
    }
    columns
}

//! Columns and rows of the results.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use serde::Serialize;
use stealtime_results::{Cell, CellKind, parallel};

use super::SweepError;
use super::journal::Journal;
use super::plan::Plan;
use super::record::{Ended, MetricKind};
use crate::metric::{Subject, Unit};
use crate::run::RunError;

/// Rows that a thread makes at a time.
const PART: usize = 256;

/// A column of the results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Column {
    /// Its name, with the unit at its end.
    pub name: String,
    /// The metric, if it is one.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub metric: Option<MetricKind>,
    /// Its type.
    #[serde(skip)]
    pub kind: CellKind,
}

/// The columns of some runs, and where the values of each list of metrics go.
#[derive(Clone, Debug)]
pub struct Columns {
    /// All columns in their order.
    pub all: Vec<Column>,
    /// By list of the journal, by metric of the list, the column.
    places: BTreeMap<u32, Vec<usize>>,
    /// The metrics of a run that has none: nothing counted is 0, and a time without a measurement is missing.
    unmeasured: Vec<Cell>,
}

/// A metric's column: `vm.web.latency_p99_ns`.
fn name_of(kind: &MetricKind) -> String {
    let subject = match &kind.of {
        Subject::Host => "host".to_owned(),
        Subject::Vm(name) => format!("vm.{name}"),
        Subject::Task(name) => format!("task.{name}"),
    };
    let unit = match kind.unit {
        Unit::Count => "",
        Unit::PerSecond => "_per_s",
        Unit::Ns => "_ns",
        Unit::Percent => "_percent",
    };
    format!("{subject}.{}{unit}", kind.name.replace(' ', "_"))
}

impl Columns {
    /// The grid's columns, how each run ended, and every metric that a run has, in the order of the
    /// runs.
    #[must_use]
    pub fn of(plan: &Plan, journal: &Journal) -> Self {
        let mut columns = Vec::new();
        let mut add = |name: &str, kind| {
            columns.push(Column {
                name: name.to_owned(),
                metric: None,
                kind,
            });
        };
        for dimension in &plan.dimensions {
            match dimension.knob.as_str() {
                time @ ("run.duration" | "run.warmup") => {
                    add(&format!("{time}_ns"), dimension.kind)
                }
                knob => add(knob, dimension.kind),
            }
        }
        add("variant", CellKind::Text);
        add("seed", CellKind::Integer);
        add("status", CellKind::Text);
        add("fault", CellKind::Text);
        add("events", CellKind::Integer);
        let fixed = columns.len();
        let lists = journal.lists();
        let mut kinds: Vec<&MetricKind> = Vec::new();
        for (_, list) in &lists {
            let mut after = 0;
            for kind in &list.0 {
                match kinds.iter().position(|known| *known == kind) {
                    Some(index) => after = index + 1,
                    None => {
                        kinds.insert(after, kind);
                        after += 1;
                    }
                }
            }
        }
        for kind in &kinds {
            let mut name = name_of(kind);
            while columns.iter().any(|column| column.name == name) {
                name.push('_');
            }
            columns.push(Column {
                name,
                metric: Some((*kind).clone()),
                kind: CellKind::Number,
            });
        }
        let place = |kind: &MetricKind| {
            let index = kinds.iter().position(|known| *known == kind);
            fixed + index.unwrap_or(kinds.len())
        };
        let places = lists
            .iter()
            .map(|(number, list)| (*number, list.0.iter().map(place).collect()));
        let places = places.collect();
        let unmeasured = kinds.iter().map(|kind| match kind.unit.is_counted() {
            true => Cell::Number(0.0),
            false => Cell::Null,
        });
        let unmeasured = unmeasured.collect();
        Self {
            all: columns,
            places,
            unmeasured,
        }
    }

    /// The columns of the results' files.
    #[must_use]
    pub(super) fn of_files(&self) -> Vec<stealtime_results::Column> {
        let columns = self.all.iter().map(|column| stealtime_results::Column {
            name: column.name.clone(),
            kind: column.kind,
        });
        columns.collect()
    }

    /// The rows of runs that have ended, made on so many threads.
    ///
    /// # Errors
    ///
    /// The journal can no more be read.
    pub(super) fn rows(
        &self,
        plan: &Plan,
        journal: &Journal,
        runs: &[u64],
        threads: NonZeroUsize,
    ) -> Result<Vec<Vec<Cell>>, SweepError> {
        let parts: Vec<&[u64]> = runs.chunks(PART).collect();
        let of_part = |part: &&[u64]| -> Result<Vec<Vec<Cell>>, SweepError> {
            let rows = part.iter().map(|run| {
                let ended = journal.ended(*run)?;
                Ok(ended.map(|ended| self.row(plan, *run, ended)))
            });
            rows.filter_map(Result::transpose).collect()
        };
        let mut rows = Vec::with_capacity(runs.len());
        for part in parallel::map(&parts, threads, of_part) {
            rows.extend(part?);
        }
        Ok(rows)
    }

    fn row(&self, plan: &Plan, run: u64, ended: Ended) -> Vec<Cell> {
        let place = plan.place(run);
        let mut row = Vec::with_capacity(self.all.len());
        for (dimension, value) in plan.dimensions.iter().zip(&place.values) {
            row.push(dimension.cells.get(*value).cloned().unwrap_or(Cell::Null));
        }
        let variant = plan.variants.get(place.variant);
        row.push(variant.map_or(Cell::Null, |variant| Cell::Text(variant.name.clone())));
        let seed = plan.seeds.get(place.seed).copied();
        let integer = |number: u64| i64::try_from(number).map_or(Cell::Null, Cell::Integer);
        row.push(seed.map_or(Cell::Null, integer));
        match ended {
            Ended::Done {
                list,
                events,
                values,
            } => {
                row.extend([Cell::Text("done".to_owned()), Cell::Null, integer(events)]);
                row.extend_from_slice(&self.unmeasured);
                let places = self.places.get(&list).map_or(&[][..], Vec::as_slice);
                for (index, value) in places.iter().zip(values) {
                    if let Some(cell) = row.get_mut(*index).filter(|_| value.is_finite()) {
                        *cell = Cell::Number(value);
                    }
                }
            }
            Ended::Failed(error) => {
                let status = match error {
                    RunError::Panicked(_) => "panicked",
                    _ => "failed",
                };
                let reason = error.to_string();
                row.extend([
                    Cell::Text(status.to_owned()),
                    Cell::Text(reason),
                    Cell::Null,
                ]);
                row.resize(self.all.len(), Cell::Null);
            }
        }
        row
    }
}

//! Tables of an analysis.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, Int64Array, RecordBatch, RecordBatchIterator, StringArray,
};
use arrow_schema::{DataType, Field, Schema};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use stealtime_analysis::Answers;
use stealtime_report::{Key, rows};
use stealtime_results::{Cell, CellKind, Column};

use crate::{exception, stream, watched};

/// A table in memory, for any consumer of Arrow.
#[pyclass(frozen, module = "stealtime")]
pub(crate) struct Table {
    name: String,
    batch: RecordBatch,
}

#[pymethods]
impl Table {
    /// The table's name, that of `--key`.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        let schema = self.batch.schema();
        let fields = schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    fn __len__(&self) -> usize {
        self.batch.num_rows()
    }

    fn __repr__(&self) -> String {
        let Self { name, batch } = self;
        format!(
            "<stealtime.Table {name}: {} rows, {} columns>",
            batch.num_rows(),
            batch.num_columns()
        )
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A producer may leave what is requested to the consumer, which then converts.
        let _ = requested_schema;
        let batches = std::iter::once(Ok(self.batch.clone()));
        let reader = RecordBatchIterator::new(batches, self.batch.schema());
        stream::capsule(py, Box::new(reader))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        stream::schema_capsule(py, &self.batch.schema())
    }
}

/// Tables, the JSON, and why the recording could not be read to its end.
type Answered = (BTreeMap<String, Table>, Vec<u8>, Option<String>);

/// Analyzes a recording with the options of `analyze`. Returns its tables by name, the JSON, and the message
/// for a recording that could not be read to its end.
#[pyfunction]
#[pyo3(signature = (options, progress=None))]
pub(crate) fn analyze(
    py: Python<'_>,
    options: Vec<OsString>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Answered> {
    let analysis = watched::watch(py, progress, move |call| call.analyze(&options))?;
    let analysis = analysis.map_err(|failure| exception(py, &failure))?;
    let tables = tables(&analysis.answers)?;
    Ok((tables, analysis.document, analysis.cut))
}

fn tables(answers: &Answers) -> PyResult<BTreeMap<String, Table>> {
    let mut tables = BTreeMap::new();
    let mut add = |name: &str, columns: &[Column], rows: &[Vec<Cell>]| -> PyResult<()> {
        let batch = batch(columns, rows)?;
        let name = name.to_owned();
        tables.insert(name.clone(), Table { name, batch });
        Ok(())
    };
    for key in Key::ALL {
        add(key.name(), &rows::columns(key), &rows::cells(answers, key))?;
    }
    add(
        "histograms",
        &rows::histogram_columns(),
        &rows::histogram_cells(answers),
    )?;
    let source = [rows::source_cells(answers)];
    add("source", &rows::source_columns(), &source)?;
    Ok(tables)
}

fn batch(columns: &[Column], rows: &[Vec<Cell>]) -> PyResult<RecordBatch> {
    let fields = columns
        .iter()
        .map(|column| Field::new(&column.name, data_type(column.kind), true));
    let schema = Schema::new(fields.collect::<Vec<_>>());
    let arrays = columns.iter().enumerate().map(|(index, column)| {
        let cells = rows
            .iter()
            .map(move |row| row.get(index).unwrap_or(&Cell::Null));
        array(column.kind, cells)
    });
    let batch = RecordBatch::try_new(Arc::new(schema), arrays.collect());
    batch.map_err(|error| stream::failed(&error))
}

const fn data_type(kind: CellKind) -> DataType {
    match kind {
        CellKind::Switch => DataType::Boolean,
        CellKind::Integer => DataType::Int64,
        CellKind::Number => DataType::Float64,
        CellKind::Text => DataType::Utf8,
    }
}

fn array<'c>(kind: CellKind, cells: impl Iterator<Item = &'c Cell>) -> ArrayRef {
    match kind {
        CellKind::Switch => Arc::new(BooleanArray::from_iter(cells.map(|cell| match cell {
            Cell::Switch(on) => Some(*on),
            _ => None,
        }))),
        CellKind::Integer => Arc::new(Int64Array::from_iter(cells.map(|cell| match cell {
            Cell::Integer(number) => Some(*number),
            _ => None,
        }))),
        CellKind::Number => Arc::new(Float64Array::from_iter(cells.map(|cell| match cell {
            Cell::Number(number) => Some(*number),
            _ => None,
        }))),
        CellKind::Text => Arc::new(StringArray::from_iter(cells.map(|cell| match cell {
            Cell::Text(text) => Some(text.as_str()),
            _ => None,
        }))),
    }
}

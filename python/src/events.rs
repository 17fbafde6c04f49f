//! Events as a stream of Arrow's record batches.

use std::collections::{BTreeMap, HashMap};
use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions, RecordBatchReader};
use arrow_schema::{ArrowError, Field, Schema, SchemaRef};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use stealtime::{Call, Opened};
use stealtime_events::{Event, FieldValue, Kind, NameId, Names as _, Tid};

use crate::columns::{COMMON, Column, Fields, LOST, number_of};
use crate::{exception, stream};

mod builder;
mod condition;

use builder::Builder;
use condition::Condition;
pub(crate) use condition::Value;

/// Events that are read at once.
const BATCH: usize = 1 << 11;

/// Events of a recording: each consumer of Arrow reads them from the beginning.
#[pyclass(frozen, module = "stealtime")]
pub(crate) struct Events {
    options: Vec<OsString>,
    selection: Arc<Selection>,
    is_partial_allowed: bool,
    notes: Arc<Mutex<Vec<String>>>,
}

/// Which events, and what of them.
struct Selection {
    fields: Fields,
    columns: Vec<Column>,
    conditions: Vec<Condition>,
    /// The tracepoints to decode; `None`: all.
    wanted: Option<Vec<&'static str>>,
    schema: SchemaRef,
    rows: usize,
}

#[pymethods]
impl Events {
    #[new]
    #[pyo3(signature = (options, columns, conditions, rows, partial))]
    fn new(
        options: Vec<OsString>,
        columns: Option<Vec<String>>,
        conditions: BTreeMap<String, Vec<Value>>,
        rows: usize,
        partial: bool,
    ) -> PyResult<Self> {
        let selection = Selection::new(columns, conditions, rows, has_window(&options))?;
        Ok(Self {
            options,
            selection: Arc::new(selection),
            is_partial_allowed: partial,
            notes: Arc::default(),
        })
    }

    /// The names of the columns.
    #[getter]
    fn columns(&self) -> Vec<String> {
        let fields = self.selection.schema.fields().iter();
        fields.map(|field| field.name().clone()).collect()
    }

    /// What the last consumer that read to the end has to know of the recording: sentences.
    #[getter]
    fn notes(&self) -> Vec<String> {
        let notes = self.notes.lock();
        notes.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn __repr__(&self) -> String {
        format!("<stealtime.Events: {}>", self.columns().join(", "))
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // A producer may leave what is requested to the consumer, which then converts.
        let _ = requested_schema;
        let wanted = self.selection.wanted.clone();
        let opened = py.detach(|| Call::open(&self.options, wanted));
        let opened = opened.map_err(|failure| exception(py, &failure))?;
        let reader = Reader::new(self, opened);
        stream::capsule(py, Box::new(reader))
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        stream::schema_capsule(py, &self.selection.schema)
    }
}

/// Whether a part of the time is selected: options are words of the form `--from=TIME`.
fn has_window(options: &[OsString]) -> bool {
    let mut words = options.iter().map(|option| option.as_encoded_bytes());
    words.any(|word| word.starts_with(b"--from=") || word.starts_with(b"--until="))
}

impl Selection {
    fn new(
        names: Option<Vec<String>>,
        conditions: BTreeMap<String, Vec<Value>>,
        rows: usize,
        has_window: bool,
    ) -> PyResult<Self> {
        let fields = Fields::new();
        let events = conditions.get("event").into_iter().flatten();
        let events: Vec<&str> = events.filter_map(Value::text).collect();
        let numbers: Option<Vec<usize>> = events.iter().map(|name| number_of(name)).collect();
        let has_events = !events.is_empty();
        let names = names.unwrap_or_else(|| {
            let mut names: Vec<String> =
                COMMON.iter().map(|(name, _)| (*name).to_owned()).collect();
            for name in numbers
                .iter()
                .flatten()
                .flat_map(|number| fields.names_of(*number))
            {
                if !names.iter().any(|known| known == name) {
                    names.push(name.to_owned());
                }
            }
            names
        });
        let unknown = |name: &str| {
            PyValueError::new_err(format!(
                "no column {name:?} of events: stealtime.event_columns() has their names"
            ))
        };
        let column = |name: &String| fields.column(name).ok_or_else(|| unknown(name));
        let columns: Vec<Column> = names.iter().map(column).collect::<PyResult<_>>()?;
        let schema = names.iter().zip(&columns);
        let schema: Vec<Field> = schema
            .map(|(name, column)| Field::new(name, fields.data_type(*column), true))
            .collect();
        let mut parsed = Vec::new();
        for (name, values) in conditions {
            let column = column(&name)?;
            let kind = fields.data_type(column);
            parsed.push(Condition::new(&name, column, &kind, values)?);
        }
        let has_names = columns.contains(&Column::Task)
            || parsed
                .iter()
                .any(|condition| condition.column == Column::Task);
        // Names of tasks come with other events, and times are those after the first one.
        let is_narrow = has_events && !has_names && !has_window;
        let wanted = numbers.filter(|_| is_narrow);
        Ok(Self {
            wanted: wanted.map(|numbers| numbers.into_iter().map(Kind::name_of).collect()),
            columns,
            conditions: parsed,
            schema: Arc::new(Schema::new(schema)),
            fields,
            rows,
        })
    }
}

/// The batches of one consumer.
struct Reader {
    opened: Opened,
    selection: Arc<Selection>,
    is_partial_allowed: bool,
    notes: Arc<Mutex<Vec<String>>>,
    builders: Vec<Builder>,
    tasks: HashMap<Tid, NameId>,
    /// The values of the event at hand, by column of [`Fields`].
    values: Vec<FieldValue>,
    /// Events that are read and not yet rows: those from `next` on.
    events: Vec<Event>,
    next: usize,
    /// The latest time of all events so far, also of those that are not wanted.
    last_ns: Option<u64>,
    is_over: bool,
}

impl Reader {
    fn new(events: &Events, mut opened: Opened) -> Self {
        let selection = Arc::clone(&events.selection);
        let begin = std::mem::take(&mut opened.begin);
        let types = selection.schema.fields().iter();
        Self {
            builders: types.map(|field| Builder::new(field.data_type())).collect(),
            values: vec![FieldValue::Missing; selection.fields.columns.len()],
            tasks: HashMap::new(),
            events: begin,
            next: 0,
            last_ns: None,
            is_over: false,
            is_partial_allowed: events.is_partial_allowed,
            notes: Arc::clone(&events.notes),
            opened,
            selection,
        }
    }

    /// The next batch; `None` at the end.
    fn batch(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut rows = 0;
        while rows < self.selection.rows {
            let Some(event) = self.events.get(self.next).copied() else {
                if self.is_over {
                    break;
                }
                self.read()?;
                continue;
            };
            self.next += 1;
            rows += usize::from(self.row(&event, rows));
        }
        if rows == 0 {
            return Ok(None);
        }
        let arrays: Vec<ArrayRef> = self
            .builders
            .iter_mut()
            .map(|builder| builder.finish(rows))
            .collect::<Result<_, _>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let schema = Arc::clone(&self.selection.schema);
        RecordBatch::try_new_with_options(schema, arrays, &options).map(Some)
    }

    /// Reads on.
    fn read(&mut self) -> Result<(), ArrowError> {
        self.events.clear();
        self.next = 0;
        let read = self.opened.source.next_events(BATCH, &mut self.events);
        let damage = match read {
            Ok(true) => return Ok(()),
            Ok(false) => {
                let mut notes = self.opened.source.info().notes.iter();
                notes
                    .find(|note| note.partial)
                    .map(|note| note.text.clone())
            }
            Err(error) => Some(error.to_string()),
        };
        self.is_over = true;
        if let Some(last_ns) = self.last_ns {
            let checked = self.opened.check_times(last_ns);
            checked.map_err(|failure| ArrowError::ExternalError(failure.into()))?;
        }
        if let Some(damage) = damage {
            if !self.is_partial_allowed {
                let problem = format!("{damage}; partial=True gives what comes before");
                return Err(ArrowError::ExternalError(problem.into()));
            }
            self.note(damage);
        }
        let notes = self.opened.source.info().notes.iter();
        let notes: Vec<String> = notes.map(|note| note.text.clone()).collect();
        for text in notes {
            self.note(text);
        }
        Ok(())
    }

    fn note(&self, text: String) {
        let notes = self.notes.lock();
        let mut notes = notes.unwrap_or_else(PoisonError::into_inner);
        if !notes.contains(&text) {
            notes.push(text);
        }
    }

    /// Adds an event as this row, if it is one of those that are wanted.
    fn row(&mut self, event: &Event, row: usize) -> bool {
        if let Kind::Task { tid, name, .. } = event.kind {
            self.tasks.insert(tid, name);
            return false;
        }
        let is_event = event.kind.is_host_event() || matches!(event.kind, Kind::Lost { .. });
        if !is_event {
            return false;
        }
        self.last_ns = self.last_ns.max(Some(event.time_ns));
        if !self.opened.times.contains(&event.time_ns) {
            return false;
        }
        let selection = Arc::clone(&self.selection);
        let places: &[usize] = event
            .kind
            .number()
            .and_then(|number| selection.fields.of_tracepoint.get(number))
            .map_or(&[], Vec::as_slice);
        let mut columns = places.iter();
        event.kind.fields(|value| {
            if let Some(place) = columns.next() {
                self.values[*place] = value;
            }
        });
        let is_met = self.is_met(event);
        if is_met {
            self.add(event, row);
        }
        for place in places {
            self.values[*place] = FieldValue::Missing;
        }
        is_met
    }

    fn is_met(&self, event: &Event) -> bool {
        let names = self.opened.source.names();
        let mut conditions = self.selection.conditions.iter();
        conditions.all(|condition| match condition.column {
            Column::Time => condition.has_number(i128::from(event.time_ns)),
            Column::Cpu => condition.has_number(i128::from(event.cpu.0)),
            Column::Tid => condition.has_number(i128::from(event.tid.0)),
            Column::Task => condition.has_text(names.name(self.task(event.tid))),
            Column::Event => condition.has_text(match event.kind {
                Kind::Lost { .. } => LOST,
                Kind::Other { name } => names.name(name),
                kind => kind.tracepoint().unwrap_or_default(),
            }),
            Column::Lost => match event.kind {
                Kind::Lost { count } => condition.has_number(i128::from(count)),
                _ => false,
            },
            Column::Field(place) => condition.has(self.values[place], names),
        })
    }

    fn task(&self, tid: Tid) -> NameId {
        self.tasks.get(&tid).copied().unwrap_or_default()
    }

    fn add(&mut self, event: &Event, row: usize) {
        let task = self.task(event.tid);
        let names = self.opened.source.names();
        for (column, builder) in self.selection.columns.iter().zip(&mut self.builders) {
            let value = match column {
                Column::Time => FieldValue::Integer(event.time_ns.try_into().unwrap_or(i64::MAX)),
                Column::Cpu => FieldValue::Integer(event.cpu.0.into()),
                Column::Tid => FieldValue::Integer(event.tid.0.into()),
                Column::Task => FieldValue::Name(task),
                Column::Event => match (event.kind.number(), event.kind) {
                    (Some(number), _) => {
                        builder.tracepoint(row, number);
                        continue;
                    }
                    (None, Kind::Other { name }) => FieldValue::Name(name),
                    (None, _) => {
                        builder.text(row, LOST);
                        continue;
                    }
                },
                Column::Lost => match event.kind {
                    Kind::Lost { count } => FieldValue::Wide(count),
                    _ => continue,
                },
                Column::Field(place) => match self.values[*place] {
                    FieldValue::Missing => continue,
                    value => value,
                },
            };
            builder.add(row, value, names);
        }
    }
}

impl Iterator for Reader {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.batch().transpose()
    }
}

impl RecordBatchReader for Reader {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.selection.schema)
    }
}

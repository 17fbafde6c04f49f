//! Rows as Parquet or CSV. The same rows are the same bytes.

use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::column::writer::{
    ColumnCloseResult, ColumnWriter, get_column_writer, get_typed_column_writer_mut,
};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterPropertiesPtr};
use parquet::file::writer::{SerializedFileWriter, SerializedPageWriter, TrackedWrite};
use parquet::schema::types::{SchemaDescriptor, Type};

use crate::{Cell, CellKind, Column, parallel};

/// Rows of a row group: what is held in memory at a time.
pub const ROW_GROUP: usize = 8_192;

/// Rows of CSV that a thread encodes at a time.
const LINES: usize = 512;

/// How rows are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Apache Parquet, compressed by Snappy.
    Parquet,
    /// Commas, a head line; what is not there is empty.
    Csv,
}

impl Form {
    /// All forms.
    pub const ALL: [Self; 2] = [Self::Parquet, Self::Csv];

    /// The end of the file's name.
    #[must_use]
    pub const fn extension(self) -> &'static str {
        match self {
            Self::Parquet => "parquet",
            Self::Csv => "csv",
        }
    }

    /// A writer of rows with these columns. `name` is that of the schema in Parquet, `notes` are its
    /// metadata; CSV has neither.
    ///
    /// # Errors
    /// Those of the writer, and names of columns that the form refuses.
    pub fn begin<'w>(
        self,
        name: &str,
        columns: &[Column],
        notes: &[Note<'_>],
        writer: &'w mut (dyn Write + Send),
    ) -> io::Result<Box<dyn Rows + 'w>> {
        Ok(match self {
            Self::Parquet => Box::new(ParquetRows::new(name, columns, notes, writer)?),
            Self::Csv => Box::new(CsvRows::new(columns, writer)?),
        })
    }

    /// Encodes rows apart from their file, on so many threads, for [`Rows::append`]. A cell of another type
    /// than its column's is a missing value.
    ///
    /// # Errors
    /// Names of columns that the form refuses.
    pub fn encode(
        self,
        columns: &[Column],
        rows: &[Vec<Cell>],
        threads: NonZeroUsize,
    ) -> io::Result<Encoded> {
        let group = match self {
            Self::Parquet => {
                let schema = SchemaDescriptor::new(schema("rows", columns).map_err(io_error)?);
                let properties = Arc::new(properties().build());
                let group = encode_group(&schema, &properties, columns, rows, threads);
                Group::Parquet(group.map_err(io_error)?)
            }
            Self::Csv => {
                let parts: Vec<&[Vec<Cell>]> = rows.chunks(LINES).collect();
                let parts = parallel::map(&parts, threads, |part| lines(part));
                Group::Csv(parts.into_iter().collect::<io::Result<Vec<_>>>()?.concat())
            }
        };
        Ok(Encoded {
            rows: rows.len(),
            group,
        })
    }
}

/// Rows that are encoded: a row group of Parquet, or lines of CSV.
#[derive(Debug)]
pub struct Encoded {
    rows: usize,
    group: Group,
}

impl Encoded {
    /// How many rows it has.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }
}

#[derive(Debug)]
enum Group {
    Parquet(Vec<EncodedColumn>),
    Csv(Vec<u8>),
}

/// A column of a row group.
#[derive(Debug)]
struct EncodedColumn {
    bytes: Bytes,
    /// What the file's footer has of it.
    closed: ColumnCloseResult,
}

/// An entry of a Parquet file's metadata.
#[derive(Clone, Copy, Debug)]
pub struct Note<'n> {
    /// Its name.
    pub key: &'n str,
    /// Its text.
    pub value: &'n str,
}

/// Takes rows.
pub trait Rows {
    /// Rows that were encoded in this form and with these columns.
    ///
    /// # Errors
    /// Those of the writer.
    fn append(&mut self, rows: Encoded) -> io::Result<()>;

    /// Ends the file.
    ///
    /// # Errors
    /// Those of the writer.
    fn end(self: Box<Self>) -> io::Result<()>;
}

/// The operating system's error, where it is one.
fn io_error(error: ParquetError) -> io::Error {
    match error {
        ParquetError::External(error) => match error.downcast::<io::Error>() {
            Ok(error) => *error,
            Err(error) => io::Error::other(error),
        },
        error => io::Error::other(error),
    }
}

struct ParquetRows<'w> {
    writer: SerializedFileWriter<&'w mut (dyn Write + Send)>,
}

impl<'w> ParquetRows<'w> {
    fn new(
        name: &str,
        columns: &[Column],
        notes: &[Note<'_>],
        sink: &'w mut (dyn Write + Send),
    ) -> io::Result<Self> {
        let schema = schema(name, columns).map_err(io_error)?;
        let notes = notes.iter();
        let notes = notes.map(|note| KeyValue::new(note.key.to_owned(), note.value.to_owned()));
        let properties = properties().set_key_value_metadata(Some(notes.collect()));
        let writer = SerializedFileWriter::new(sink, schema, Arc::new(properties.build()));
        Ok(Self {
            writer: writer.map_err(io_error)?,
        })
    }

    fn add(&mut self, columns: Vec<EncodedColumn>) -> Result<(), ParquetError> {
        if columns.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for column in columns {
            group.append_column(&column.bytes, column.closed)?;
        }
        group.close()?;
        Ok(())
    }
}

fn properties() -> WriterPropertiesBuilder {
    WriterProperties::builder().set_compression(Compression::SNAPPY)
}

fn schema(name: &str, columns: &[Column]) -> Result<Arc<Type>, ParquetError> {
    let fields: Result<Vec<_>, ParquetError> = columns.iter().map(field).collect();
    let schema = Type::group_type_builder(name).with_fields(fields?);
    schema.build().map(Arc::new)
}

/// The columns of a row group, a thread for each; none if there are no rows.
fn encode_group(
    schema: &SchemaDescriptor,
    properties: &WriterPropertiesPtr,
    columns: &[Column],
    rows: &[Vec<Cell>],
    threads: NonZeroUsize,
) -> Result<Vec<EncodedColumn>, ParquetError> {
    if rows.is_empty() {
        return Ok(Vec::new());
    }
    let columns: Vec<(usize, &Column)> = columns.iter().enumerate().collect();
    let encode = |(index, column): &(usize, &Column)| {
        let mut sink = TrackedWrite::new(Vec::new());
        let pages = Box::new(SerializedPageWriter::new(&mut sink));
        let mut writer = get_column_writer(schema.column(*index), properties.clone(), pages);
        let cells = rows
            .iter()
            .map(|row| row.get(*index).unwrap_or(&Cell::Null));
        write_column(&mut writer, column.kind, cells)?;
        let closed = writer.close()?;
        let bytes = Bytes::from(sink.into_inner()?);
        Ok(EncodedColumn { bytes, closed })
    };
    parallel::map(&columns, threads, encode)
        .into_iter()
        .collect()
}

fn field(column: &Column) -> Result<Arc<Type>, ParquetError> {
    let physical = match column.kind {
        CellKind::Switch => Physical::BOOLEAN,
        CellKind::Integer => Physical::INT64,
        CellKind::Number => Physical::DOUBLE,
        CellKind::Text => Physical::BYTE_ARRAY,
    };
    let field = Type::primitive_type_builder(&column.name, physical)
        .with_repetition(Repetition::OPTIONAL)
        .with_logical_type((column.kind == CellKind::Text).then_some(LogicalType::String));
    field.build().map(Arc::new)
}

/// Writes a column's values, and which of them there are.
fn write_column<'c>(
    writer: &mut ColumnWriter<'_>,
    kind: CellKind,
    cells: impl Iterator<Item = &'c Cell>,
) -> Result<usize, ParquetError> {
    match kind {
        CellKind::Switch => write::<BoolType>(writer, cells, |cell| match cell {
            Cell::Switch(on) => Some(*on),
            _ => None,
        }),
        CellKind::Integer => write::<Int64Type>(writer, cells, |cell| match cell {
            Cell::Integer(number) => Some(*number),
            _ => None,
        }),
        CellKind::Number => write::<DoubleType>(writer, cells, |cell| match cell {
            Cell::Number(number) => Some(*number),
            _ => None,
        }),
        CellKind::Text => {
            // Rows next to each other often have the same text: it is copied once.
            let mut last: Option<ByteArray> = None;
            write::<ByteArrayType>(writer, cells, |cell| match cell {
                Cell::Text(text) => {
                    let equal = last.take().filter(|last| last.data() == text.as_bytes());
                    last = Some(equal.unwrap_or_else(|| ByteArray::from(text.as_str())));
                    last.clone()
                }
                _ => None,
            })
        }
    }
}

/// Writes the cells of one type; level 0 marks those without a value.
fn write<'c, T: DataType>(
    writer: &mut ColumnWriter<'_>,
    cells: impl Iterator<Item = &'c Cell>,
    value: impl FnMut(&Cell) -> Option<T::T>,
) -> Result<usize, ParquetError> {
    let cells: Vec<Option<T::T>> = cells.map(value).collect();
    let levels: Vec<i16> = cells.iter().map(|cell| cell.is_some().into()).collect();
    let values: Vec<T::T> = cells.into_iter().flatten().collect();
    get_typed_column_writer_mut::<T>(writer).write_batch(&values, Some(&levels), None)
}

impl Rows for ParquetRows<'_> {
    fn append(&mut self, rows: Encoded) -> io::Result<()> {
        let Group::Parquet(columns) = rows.group else {
            return Err(io::Error::other("rows of another form"));
        };
        self.add(columns).map_err(io_error)
    }

    fn end(mut self: Box<Self>) -> io::Result<()> {
        self.writer.finish().map_err(io_error)?;
        self.writer.inner_mut().flush()
    }
}

struct CsvRows<'w>(&'w mut (dyn Write + Send));

impl<'w> CsvRows<'w> {
    fn new(columns: &[Column], sink: &'w mut (dyn Write + Send)) -> io::Result<Self> {
        let names = columns.iter().map(|column| Cell::Text(column.name.clone()));
        sink.write_all(&lines(&[names.collect()])?)?;
        Ok(Self(sink))
    }
}

/// Rows as CSV.
fn lines(rows: &[Vec<Cell>]) -> io::Result<Vec<u8>> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in rows {
        writer.write_record(row.iter().map(Cell::to_string))?;
    }
    writer.into_inner().map_err(|error| error.into_error())
}

impl Rows for CsvRows<'_> {
    fn append(&mut self, rows: Encoded) -> io::Result<()> {
        match rows.group {
            Group::Csv(lines) => self.0.write_all(&lines),
            Group::Parquet(_) => Err(io::Error::other("rows of another form")),
        }
    }

    fn end(self: Box<Self>) -> io::Result<()> {
        self.0.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_threads_does_not_change_a_byte() {
        let column = |name: &str, kind| Column {
            name: name.to_owned(),
            kind,
        };
        let columns = [
            column("text", CellKind::Text),
            column("integer", CellKind::Integer),
            column("number", CellKind::Number),
        ];
        let row = |number: i64| {
            let text = Cell::Text(format!("a, \"{number}\"\n"));
            match number % 3 {
                0 => vec![text, Cell::Null, Cell::Number(number as f64 / 2.0)],
                _ => vec![Cell::Null, Cell::Integer(number), Cell::Null],
            }
        };
        let rows: Vec<Vec<Cell>> = (0..3 * LINES as i64 + 1).map(row).collect();
        let written = |form: Form, threads: usize| {
            let threads = NonZeroUsize::new(threads).expect("not 0");
            let mut bytes = Vec::new();
            let mut writer = form.begin("t", &columns, &[], &mut bytes).expect("columns");
            for rows in [&rows[..], &[]] {
                let encoded = form.encode(&columns, rows, threads).expect("rows");
                assert_eq!(encoded.rows(), rows.len());
                writer.append(encoded).expect("rows");
            }
            writer.end().expect("memory");
            bytes
        };
        for form in Form::ALL {
            let single = written(form, 1);
            for threads in [2, 3, 8] {
                assert!(single == written(form, threads), "{form:?}, {threads}");
            }
        }
        let csv = String::from_utf8(written(Form::Csv, 2)).expect("text");
        assert!(
            csv.starts_with("text,integer,number\n\"a, \"\"0\"\"\n\",,0\n,1,\n"),
            "{csv}"
        );
        let other = form_error(&columns, &rows);
        assert!(other.contains("another form"), "{other}");
    }

    /// What happens to lines of CSV in a Parquet file.
    fn form_error(columns: &[Column], rows: &[Vec<Cell>]) -> String {
        let mut bytes = Vec::new();
        let writer = Form::Parquet.begin("t", columns, &[], &mut bytes);
        let encoded = Form::Csv
            .encode(columns, rows, NonZeroUsize::MIN)
            .expect("rows");
        let appended = writer.expect("columns").append(encoded);
        appended.expect_err("CSV").to_string()
    }
}

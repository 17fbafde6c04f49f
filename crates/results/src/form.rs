//! Rows as Parquet or CSV. The same rows are the same bytes.

use std::io::{self, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedColumnWriter, SerializedFileWriter};
use parquet::schema::types::Type;

use crate::{Cell, CellKind, Column};

/// Rows of a row group: what is held in memory at a time.
const GROUP: usize = 8_192;

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
    /// The next row: a cell for each column. Cells of another type than the column's are missing values.
    ///
    /// # Errors
    /// Those of the writer.
    fn row(&mut self, row: Vec<Cell>) -> io::Result<()>;

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
    kinds: Vec<CellKind>,
    rows: Vec<Vec<Cell>>,
}

impl<'w> ParquetRows<'w> {
    fn new(
        name: &str,
        columns: &[Column],
        notes: &[Note<'_>],
        sink: &'w mut (dyn Write + Send),
    ) -> io::Result<Self> {
        let fields: Result<Vec<_>, ParquetError> = columns.iter().map(field).collect();
        let fields = fields.map_err(io_error)?;
        let schema = Type::group_type_builder(name)
            .with_fields(fields)
            .build()
            .map_err(io_error)?;
        let notes = notes.iter();
        let notes = notes.map(|note| KeyValue::new(note.key.to_owned(), note.value.to_owned()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::SNAPPY)
            .set_key_value_metadata(Some(notes.collect()))
            .build();
        let writer = SerializedFileWriter::new(sink, Arc::new(schema), Arc::new(properties));
        Ok(Self {
            writer: writer.map_err(io_error)?,
            kinds: columns.iter().map(|column| column.kind).collect(),
            rows: Vec::new(),
        })
    }

    fn flush(&mut self) -> Result<(), ParquetError> {
        if self.rows.is_empty() {
            return Ok(());
        }
        let mut group = self.writer.next_row_group()?;
        for (index, kind) in self.kinds.iter().enumerate() {
            let Some(mut writer) = group.next_column()? else {
                break;
            };
            let cells = self
                .rows
                .iter()
                .map(|row| row.get(index).unwrap_or(&Cell::Null));
            write_column(&mut writer, *kind, cells)?;
            writer.close()?;
        }
        group.close()?;
        self.rows.clear();
        Ok(())
    }
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
    writer: &mut SerializedColumnWriter<'_>,
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
        CellKind::Text => write::<ByteArrayType>(writer, cells, |cell| match cell {
            Cell::Text(text) => Some(ByteArray::from(text.as_str())),
            _ => None,
        }),
    }
}

/// Writes the cells of one type; level 0 marks those without a value.
fn write<'c, T: DataType>(
    writer: &mut SerializedColumnWriter<'_>,
    cells: impl Iterator<Item = &'c Cell>,
    value: fn(&Cell) -> Option<T::T>,
) -> Result<usize, ParquetError> {
    let cells: Vec<Option<T::T>> = cells.map(value).collect();
    let levels: Vec<i16> = cells.iter().map(|cell| cell.is_some().into()).collect();
    let values: Vec<T::T> = cells.into_iter().flatten().collect();
    writer
        .typed::<T>()
        .write_batch(&values, Some(&levels), None)
}

impl Rows for ParquetRows<'_> {
    fn row(&mut self, row: Vec<Cell>) -> io::Result<()> {
        self.rows.push(row);
        match self.rows.len() {
            GROUP => self.flush().map_err(io_error),
            _ => Ok(()),
        }
    }

    fn end(mut self: Box<Self>) -> io::Result<()> {
        self.flush().map_err(io_error)?;
        self.writer.finish().map_err(io_error)?;
        self.writer.inner_mut().flush()
    }
}

struct CsvRows<'w>(csv::Writer<&'w mut (dyn Write + Send)>);

impl<'w> CsvRows<'w> {
    fn new(columns: &[Column], sink: &'w mut (dyn Write + Send)) -> io::Result<Self> {
        let mut writer = csv::Writer::from_writer(sink);
        writer.write_record(columns.iter().map(|column| &column.name))?;
        Ok(Self(writer))
    }
}

impl Rows for CsvRows<'_> {
    fn row(&mut self, row: Vec<Cell>) -> io::Result<()> {
        Ok(self.0.write_record(row.iter().map(Cell::to_string))?)
    }

    fn end(mut self: Box<Self>) -> io::Result<()> {
        self.0.flush()
    }
}

//! Arrow's C interface in Python's capsules.

use arrow_array::RecordBatchReader;
use arrow_array::ffi::FFI_ArrowSchema;
use arrow_array::ffi_stream::FFI_ArrowArrayStream;
use arrow_schema::{ArrowError, Schema};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

/// An error of Arrow as an exception.
pub(crate) fn failed(error: &ArrowError) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// A stream, as `__arrow_c_stream__` returns it. A consumer that takes it leaves a released one.
pub(crate) fn capsule<'py>(
    py: Python<'py>,
    reader: Box<dyn RecordBatchReader + Send>,
) -> PyResult<Bound<'py, PyCapsule>> {
    PyCapsule::new_with_value(py, FFI_ArrowArrayStream::new(reader), c"arrow_array_stream")
}

/// A schema, as `__arrow_c_schema__` returns it.
pub(crate) fn schema_capsule<'py>(
    py: Python<'py>,
    schema: &Schema,
) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema).map_err(|error| failed(&error))?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

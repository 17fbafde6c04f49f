//! The native half of the Python package `stealtime`: `python/stealtime` is the other one.

mod columns;
mod events;
mod stream;
mod tables;
mod watched;

use std::ffi::OsString;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use stealtime::Failure;

create_exception!(
    stealtime,
    Error,
    PyException,
    "What the command refuses, with its words. `status` is the command's exit status."
);

/// The exception of a failure.
fn exception(py: Python<'_>, failure: &Failure) -> PyErr {
    let error = Error::new_err(failure.message.clone());
    // An attribute of an exception of this module: setting it does not fail.
    let _ = error.value(py).setattr("status", failure.status);
    error
}

/// Runs a verb with its options. Returns the exit status and what it prints.
#[pyfunction]
#[pyo3(signature = (arguments, progress=None))]
fn run(py: Python<'_>, arguments: Vec<OsString>, progress: Option<Py<PyAny>>) -> PyResult<Vec<u8>> {
    let printed = watched::watch(py, progress, move |call| {
        let result = call.run(&arguments);
        (result, call.printed())
    })?;
    match printed {
        (Ok(()), printed) => Ok(printed),
        (Err(failure), printed) => {
            let error = exception(py, &failure);
            error.value(py).setattr("output", printed)?;
            Err(error)
        }
    }
}

/// Runs the command itself, which these words start without arguments. Returns its exit status.
#[pyfunction]
fn main(py: Python<'_>, started_by: Vec<OsString>, arguments: Vec<OsString>) -> u8 {
    stealtime::set_started_by(started_by);
    py.detach(|| stealtime::main(arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<events::Events>()?;
    module.add_class::<tables::Table>()?;
    module.add_function(wrap_pyfunction!(columns::event_columns, module)?)?;
    module.add_function(wrap_pyfunction!(tables::analyze, module)?)?;
    module.add_function(wrap_pyfunction!(run, module)?)?;
    module.add_function(wrap_pyfunction!(main, module)?)
}

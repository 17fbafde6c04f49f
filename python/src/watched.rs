//! Work on a thread of its own, while Python's threads run: signals and progress are looked at meanwhile.

use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use stealtime::{Call, Step};

/// Between looks at signals: a press of Ctrl-C seems to act at once.
const LOOK: Duration = Duration::from_millis(50);

/// Gives a call to `work`, and waits for what comes of it.
///
/// # Errors
/// An exception of a signal's handler or of `progress`, after the work has stopped; a panic.
pub(crate) fn watch<T: Send + 'static>(
    py: Python<'_>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Arc<Call>) -> T + Send + 'static,
) -> PyResult<T> {
    let call = Arc::new(Call::default());
    let (sender, mut receiver) = mpsc::channel();
    let theirs = Arc::clone(&call);
    std::thread::Builder::new()
        .name("stealtime".to_owned())
        .spawn(move || {
            // The receiver waits until this thread ends.
            let _ = sender.send(work(&theirs));
        })?;
    let mut raised = None;
    let mut shown = None;
    loop {
        let waited;
        (receiver, waited) = py.detach(move || {
            let waited = receiver.recv_timeout(LOOK);
            (receiver, waited)
        });
        if raised.is_none() {
            let looked = look(py, &call, progress.as_ref(), &mut shown);
            raised = looked.err().inspect(|_| call.stop());
        }
        match (waited, raised.take()) {
            (Err(RecvTimeoutError::Timeout), still) => raised = still,
            (_, Some(error)) => return Err(error),
            (Ok(result), None) => return Ok(result),
            (Err(RecvTimeoutError::Disconnected), None) => {
                let problem = "the work ended by a defect of this version";
                return Err(PyRuntimeError::new_err(problem));
            }
        }
    }
}

/// Runs the handlers of signals, logs notes, and reports a step that is new.
fn look(
    py: Python<'_>,
    call: &Call,
    progress: Option<&Py<PyAny>>,
    shown: &mut Option<Step>,
) -> PyResult<()> {
    py.check_signals()?;
    let notes = call.notes();
    if !notes.is_empty() {
        let logger = py
            .import("logging")?
            .call_method1("getLogger", ("stealtime",))?;
        for note in notes {
            logger.call_method1("warning", ("%s", note))?;
        }
    }
    let step = call.progress();
    if let (Some(progress), Some(current)) = (progress, step)
        && *shown != step
    {
        let Step { doing, total, .. } = current;
        progress.call1(py, (doing, current.done, total))?;
        *shown = step;
    }
    Ok(())
}

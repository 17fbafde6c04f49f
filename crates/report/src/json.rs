//! Answers as JSON: always the same bytes for the same answers.

use std::io::{self, Write};

use serde_json::Value;
use stealtime_analysis::Answers;

use crate::Key;

/// Writes the answers as one JSON object, indented by two spaces, with a newline at the end. The
/// keys and their meaning: `docs/json.md`.
///
/// With `keys`, only `source` and the objects that hold these; without, everything.
///
/// # Errors
/// Those of the writer.
pub fn write(answers: &Answers, keys: &[Key], mut out: impl Write) -> io::Result<()> {
    let mut value = serde_json::to_value(answers)?;
    if let (Value::Object(object), false) = (&mut value, keys.is_empty()) {
        object.retain(|name, _| name == "source" || keys.iter().any(|key| key.json() == name));
    }
    serde_json::to_writer_pretty(&mut out, &value)?;
    out.write_all(b"\n")
}

/// Writes results of any other kind in the same form.
///
/// # Errors
/// Those of the writer.
pub fn write_any(results: &impl serde::Serialize, mut out: impl Write) -> io::Result<()> {
    // By way of a value: its numbers and keys are written alike everywhere.
    let value = serde_json::to_value(results)?;
    serde_json::to_writer_pretty(&mut out, &value)?;
    out.write_all(b"\n")
}

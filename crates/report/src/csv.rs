//! One table of an answer as CSV, with the keys of the JSON as header.
//!
//! A number that the recording cannot tell is an empty cell. Text that a spreadsheet would take for
//! a formula is defused ([`crate::escape::csv_text`]).

use std::io::{self, Write};

use serde_json::Value;
use stealtime_analysis::Answers;

use crate::{Key, escape, rows};

/// Writes the table of `key`, a header line first, also where it has no rows.
///
/// # Errors
/// Those of the writer.
pub fn write(answers: &Answers, key: Key, writer: impl Write) -> io::Result<()> {
    let mut writer = csv::Writer::from_writer(writer);
    let table = rows::of_key(answers, key);
    writer.write_record(table.names())?;
    for row in table.values() {
        for value in row {
            writer.write_field(cell(value))?;
        }
        writer.write_record(None::<&[u8]>)?;
    }
    writer.flush()
}

fn cell(value: Option<&Value>) -> String {
    match value {
        None | Some(Value::Null) => String::new(),
        Some(Value::String(text)) => escape::csv_text(text).into_owned(),
        Some(other) => other.to_string(),
    }
}

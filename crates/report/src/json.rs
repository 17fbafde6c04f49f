//! Answers as JSON: always the same bytes for the same answers.

use std::io::{self, Write};

use serde::Serialize as _;
use serde_json::Value;
use serde_json::ser::{Formatter, PrettyFormatter, Serializer};
use stealtime_analysis::Answers;
use stealtime_doctor::Decision;
use stealtime_whatif::Remedy;

use crate::Key;
use crate::escape::is_unsafe;

/// Writes the answers as one JSON object, indented by two spaces, with a newline at the end. The
/// keys and their meaning: `docs/json.md`.
///
/// With `keys`, only `source` and the objects that hold these; without, everything. The decision is a
/// key of its own. A finding that a setting remedies has `remedy`.
///
/// # Errors
/// Those of the writer.
pub fn write(
    answers: &Answers,
    keys: &[Key],
    decision: Option<&Decision>,
    remedies: &[Remedy],
    mut writer: impl Write,
) -> io::Result<()> {
    let mut value = serde_json::to_value(answers)?;
    for remedy in remedies {
        let finding = value
            .get_mut("findings")
            .and_then(|findings| findings.get_mut(remedy.finding));
        if let Some(Value::Object(finding)) = finding {
            finding.insert("remedy".to_owned(), serde_json::to_value(remedy)?);
        }
    }
    if let (Value::Object(object), false) = (&mut value, keys.is_empty()) {
        object.retain(|name, _| name == "source" || keys.iter().any(|key| key.json() == name));
    }
    if let (Value::Object(object), Some(decision)) = (&mut value, decision) {
        object.insert("decision".to_owned(), serde_json::to_value(decision)?);
    }
    print(&value, &mut writer)
}

/// Writes results of any other kind in the same form.
///
/// # Errors
/// Those of the writer.
pub fn write_any(results: &impl serde::Serialize, mut writer: impl Write) -> io::Result<()> {
    // By way of a value: its numbers and keys are written alike everywhere.
    let value = serde_json::to_value(results)?;
    print(&value, &mut writer)
}

fn print(value: &Value, mut writer: impl Write) -> io::Result<()> {
    let form = Safe(PrettyFormatter::new());
    value.serialize(&mut Serializer::with_formatter(&mut writer, form))?;
    writer.write_all(b"\n")
}

/// Indented by two spaces. JSON may hold names with characters that do something to a terminal: they
/// are written as escapes, which mean the same.
struct Safe(PrettyFormatter<'static>);

/// What is as in the other form.
macro_rules! same {
    ($($name:ident($($argument:ident: $kind:ty)?);)*) => {
        $(fn $name<W: ?Sized + Write>(&mut self, writer: &mut W $(, $argument: $kind)?) -> io::Result<()> {
            self.0.$name(writer $(, $argument)?)
        })*
    };
}

impl Formatter for Safe {
    same! {
        begin_array();
        end_array();
        begin_array_value(is_first: bool);
        end_array_value();
        begin_object();
        end_object();
        begin_object_key(is_first: bool);
        begin_object_value();
        end_object_value();
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        text: &str,
    ) -> io::Result<()> {
        // Most names and numbers are plain, and bytes are looked at faster than characters.
        if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
            return writer.write_all(text.as_bytes());
        }
        let mut rest = text;
        while let Some((plain, found)) = rest.find(is_unsafe).map(|index| rest.split_at(index)) {
            writer.write_all(plain.as_bytes())?;
            let mut after = found.chars();
            for unit in after.next().into_iter().collect::<String>().encode_utf16() {
                write!(writer, "\\u{unit:04x}")?;
            }
            rest = after.as_str();
        }
        writer.write_all(rest.as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_would_move_a_cursor_is_escaped_and_means_the_same() {
        let text = "a\u{1b}[2J\u{9b}2J\u{202e}b\u{e0041}\u{7f}é\n\"";
        let mut writer = Vec::new();
        write_any(&serde_json::json!({ text: [text, 1] }), &mut writer).expect("a Vec takes all");
        let shown = String::from_utf8(writer.clone()).expect("JSON is UTF-8");
        let is_plain = |c: char| c == '\n' || !is_unsafe(c);
        assert!(
            shown.chars().all(is_plain) && shown.contains('é'),
            "{shown:?}"
        );
        let read: Value = serde_json::from_slice(&writer).expect("JSON");
        assert_eq!(read[text][0], text);
    }
}

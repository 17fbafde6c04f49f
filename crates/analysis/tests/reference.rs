//! The pages that are written from this crate: the tables of docs/json.md, from the comments of
//! `answers.rs` and the files below it, and docs/analyze-findings.md. `STEALTIME_BLESS=1 cargo test -p
//! stealtime-analysis reference::` writes them anew.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use stealtime_analysis::reference;

const ANSWERS: &str = concat!(
    include_str!("../src/answers.rs"),
    include_str!("../src/answers/overview.rs")
);
/// The first heading of docs/json.md that is written from the comments.
const FIRST: &str = "## `(root)`";
/// The first heading after those: what the command adds to the answers.
const LAST: &str = "## `findings[].remedy`";
/// The row of `decision` in the table of the root.
const DECISION: &str =
    "| `decision` | object | | The one thing to do; with `--key findings` and without `--key` |";
/// That of a finding.
const REMEDY: &str =
    "| `remedy` | optional object | | The setting to change, where one remedies the finding |";
/// Arrays with rows of one type that are documented with another array of it.
const SAME_ROWS: [&str; 4] = ["exit_totals", "msr", "ioport", "mmio"];

const INTRODUCTION: &str = "\
# Findings of analyze

This page lists what `analyze` reports below \"What to look at\", by the id in square brackets.
`STEALTIME_BLESS=1 cargo test -p stealtime-analysis reference::` writes it.

Each finding is printed with its evidence and the next step. Findings about the recording come first,
because they put other answers in doubt. The others follow by the time that they cost.

| finding | about | is found when |
|---|---|---|
";

/// A struct of `answers.rs`.
struct Record {
    name: &'static str,
    /// The paragraphs of its comment after the first one.
    notes: String,
    fields: Vec<Field>,
}

struct Field {
    name: &'static str,
    kind: &'static str,
    doc: String,
}

/// The structs of `answers.rs`, in order.
fn records() -> Vec<Record> {
    let (mut records, mut comment) = (Vec::<Record>::new(), Vec::new());
    let mut is_skipped = false;
    for line in ANSWERS.lines().map(str::trim) {
        if let Some(text) = line.strip_prefix("///") {
            comment.push(text.trim());
        } else if let Some(rest) = line.strip_prefix("pub struct ") {
            let notes = comment.iter().skip_while(|line| !line.is_empty());
            let notes = notes.copied().collect::<Vec<_>>().join("\n");
            records.push(Record {
                name: rest.trim_end_matches(" {"),
                notes: notes.trim().to_owned(),
                fields: Vec::new(),
            });
            comment.clear();
        } else if let (Some(rest), Some(record)) = (line.strip_prefix("pub "), records.last_mut()) {
            let is_field = line.ends_with(',') && !std::mem::take(&mut is_skipped);
            if let (true, Some((name, kind))) =
                (is_field, rest.trim_end_matches(',').split_once(": "))
            {
                let doc = comment.join(" ");
                record.fields.push(Field { name, kind, doc });
            }
            comment.clear();
        } else if line == "#[serde(skip)]" {
            is_skipped = true;
        } else if !line.starts_with("#[") {
            comment.clear();
        }
    }
    records
}

/// The type within `Vec<…>`.
fn row(kind: &str) -> Option<&str> {
    kind.strip_prefix("Vec<")?.strip_suffix('>')
}

/// The type of a field in JSON.
fn json_type(kind: &str) -> String {
    let option = kind.strip_prefix("Option<");
    if let Some(kind) = option.and_then(|rest| rest.strip_suffix('>')) {
        return format!("{} or null", json_type(kind));
    }
    if let Some(kind) = row(kind) {
        return format!("array of {}s", json_type(kind));
    }
    let name = match kind {
        "String" => "text",
        "bool" => "boolean",
        "f64" => "number",
        "u64" | "u32" | "u16" | "u8" | "i32" => "integer",
        _ => "object",
    };
    name.to_owned()
}

/// The unit that a key's name ends with, as the text of a cell.
fn unit(key: &str) -> &'static str {
    match key.rsplit('_').next() {
        Some("ns") => " ns ",
        Some("percent") => " % ",
        _ => " ",
    }
}

/// Adds the section of a record and those of the records in its fields.
fn section(records: &[Record], name: &str, path: &str, page: &mut String) {
    let Some(record) = records.iter().find(|record| record.name == name) else {
        return;
    };
    let heading = if path.is_empty() { "(root)" } else { path };
    let _ = writeln!(page, "\n## `{heading}`\n");
    if !record.notes.is_empty() {
        let _ = writeln!(page, "{}\n", record.notes);
    }
    page.push_str("| key | type | unit | is |\n|---|---|---|---|\n");
    for Field { name, kind, doc } in &record.fields {
        let (kind, unit) = (json_type(kind), unit(name));
        let doc = doc.trim_end_matches('.');
        let _ = writeln!(page, "| `{name}` | {kind} |{unit}| {doc} |");
    }
    let _ = match path {
        "" => writeln!(page, "{DECISION}"),
        "findings[]" => writeln!(page, "{REMEDY}"),
        _ => Ok(()),
    };
    for field in &record.fields {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{}", field.name);
        match row(field.kind) {
            Some(kind) if !SAME_ROWS.contains(&field.name) => {
                section(records, kind, &format!("{path}[]"), page);
            }
            Some(_) => {}
            None => section(records, field.kind, &path, page),
        }
    }
}

/// Compares a page with its text, or writes it.
fn hold(page: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    if std::env::var_os("STEALTIME_BLESS").is_some() {
        fs::write(path, text).expect("a tree that can be written");
        return;
    }
    let written = fs::read_to_string(path).expect("a page");
    let command = "STEALTIME_BLESS=1 cargo test -p stealtime-analysis reference::";
    assert!(written == text, "docs/{page} is old: {command}");
}

#[test]
fn the_json_page_is_what_the_comments_say() {
    let page = include_str!("../../../docs/json.md");
    let introduction = page.split(FIRST).next().expect("an introduction");
    let mut tables = String::new();
    section(&records(), "Answers", "", &mut tables);
    let (_, decision) = page.split_once(LAST).expect("what the command adds");
    let introduction = introduction.trim_end();
    hold(
        "json.md",
        &format!("{introduction}\n{tables}\n{LAST}{decision}"),
    );
}

#[test]
fn the_page_of_findings_is_what_the_code_says() {
    let mut page = INTRODUCTION.to_owned();
    for entry in reference() {
        let condition = entry.condition.trim_end_matches('.');
        let _ = writeln!(page, "| `{}` | {} | {condition} |", entry.id, entry.about);
    }
    hold("analyze-findings.md", &page);
}

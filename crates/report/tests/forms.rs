//! Answers in each form.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use stealtime_analysis::Answers;
use stealtime_doctor::Decision;
use stealtime_report::terminal::{Style, TOP, render};
use stealtime_report::{Key, csv, json};
use stealtime_whatif::Remedy;

use crate::answers::{HOSTILE, answers};

fn as_json(answers: &Answers, keys: &[Key]) -> String {
    let mut out = Vec::new();
    json::write(answers, keys, None, &[], &mut out).expect("a vector takes all");
    String::from_utf8(out).expect("JSON is UTF-8")
}

fn as_csv(answers: &Answers, key: Key) -> String {
    let mut out = Vec::new();
    csv::write(answers, key, &mut out).expect("a vector takes all");
    String::from_utf8(out).expect("CSV is UTF-8")
}

#[test]
fn every_table() {
    insta::assert_snapshot!(render(&answers(), &[], &Key::ALL, Style::new(false), TOP));
}

#[test]
fn tables_of_nothing_say_why() {
    insta::assert_snapshot!(render(
        &Answers::default(),
        &[],
        &Key::ALL,
        Style::new(false),
        TOP
    ));
}

#[test]
fn every_table_as_csv() {
    let tables = Key::ALL.map(|key| format!("# {}\n{}", key.name(), as_csv(&answers(), key)));
    insta::assert_snapshot!(tables.concat());
}

#[test]
fn a_csv_table_without_rows_has_its_header() {
    for key in Key::ALL {
        let (full, empty) = (as_csv(&answers(), key), as_csv(&Answers::default(), key));
        assert_eq!(empty.lines().count(), 1, "{}", key.name());
        assert_eq!(full.lines().next(), empty.lines().next());
    }
}

#[test]
fn tables_fit_and_hold_no_control_characters() {
    let mut wide = answers();
    for vm in wide.vms.iter_mut().map(|vm| &mut vm.vm) {
        *vm = vm.repeat(40);
    }
    for row in &mut wide.exits {
        row.vm = row.vm.repeat(40);
        row.reason = row.reason.repeat(40);
    }
    for answers in [answers(), wide] {
        let text = render(&answers, &[], &Key::ALL, Style::new(false), TOP);
        assert!(!text.contains(['\u{1b}', '\u{202e}']));
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}

#[test]
fn colours_change_nothing_but_colours() {
    let plain = render(&answers(), &[], &Key::ALL, Style::new(false), TOP);
    let mut colored = render(&answers(), &[], &Key::ALL, Style::new(true), TOP);
    assert!(colored.contains("\u{1b}[1m"));
    for code in ["\u{1b}[0m", "\u{1b}[1m", "\u{1b}[2m", "\u{1b}[33m"] {
        colored = colored.replace(code, "");
    }
    assert_eq!(colored, plain);
}

#[test]
fn json_is_the_answers() {
    let answers = answers();
    let text = as_json(&answers, &[]);
    assert!(text.ends_with("}\n"));
    let value: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(value, serde_json::to_value(&answers).expect("JSON"));
    assert_eq!(value["vms"][1]["vm"], HOSTILE);
    assert!(value["vcpus"][1]["guest_ns"].is_null());
    assert_eq!(text, as_json(&answers, &[]));
}

#[test]
fn keys_pick_parts_of_the_json() {
    let value: Value = serde_json::from_str(&as_json(&answers(), &[Key::Ready])).expect("JSON");
    let keys: Vec<_> = value.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["source", "ready"]);
}

/// Keys of every object, by where it is: `vcpus[]`, `vcpus[].exit_ns_by_reason[]`.
fn printed(path: &str, value: &Value, keys: &mut BTreeMap<String, BTreeSet<String>>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                keys.entry(path.to_owned()).or_default().insert(key.clone());
                let dot = if path.is_empty() { "" } else { "." };
                printed(&format!("{path}{dot}{key}"), value, keys);
            }
        }
        Value::Array(items) => {
            for item in items {
                printed(&format!("{path}[]"), item, keys);
            }
        }
        _ => {}
    }
}

/// The same, as docs/json.md has it: a heading of the path, a table of keys.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let text = include_str!("../../../docs/json.md");
    let mut keys: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut path = String::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## `") {
            path = heading
                .trim_end_matches('`')
                .trim_start_matches("(root)")
                .to_owned();
        }
        let key = line
            .strip_prefix("| `")
            .and_then(|rest| rest.split_once('`'));
        if let Some((key, _)) = key {
            let is_new = keys.entry(path.clone()).or_default().insert(key.to_owned());
            assert!(is_new, "{path}.{key} is documented twice");
        }
    }
    keys
}

#[test]
fn the_documentation_names_every_key_and_no_other() {
    let mut answers = answers();
    answers.ioport.clone_from(&answers.msr);
    let decision = Decision::nothing("no VM is recorded");
    let remedy = Remedy {
        finding: 0,
        knob: None,
        changes: Vec::new(),
    };
    let mut out = Vec::new();
    json::write(&answers, &[], Some(&decision), &[remedy], &mut out).expect("a vector takes all");
    let mut keys = BTreeMap::new();
    let value = serde_json::from_slice(&out).expect("JSON");
    printed("", &value, &mut keys);
    // Tables of one kind are documented together.
    let rows = keys.remove("exits[]").expect("exits");
    for table in ["exit_totals[]", "msr[]", "ioport[]", "mmio[]"] {
        assert_eq!(keys.remove(table).as_ref(), Some(&rows));
    }
    keys.insert("exits[]".into(), rows);
    assert_eq!(documented(), keys);
}

/// The documentation's values of `cause`, `kind` and `grouped_by` are those that tables have words
/// for: a row with one of them never shows the bare value.
#[test]
fn tables_have_words_for_every_documented_value() {
    let text = include_str!("../../../docs/json.md");
    for (heading, key) in [("## `ready[]`", "cause"), ("## `latencies[]`", "kind")] {
        let section = text.split(heading).nth(1).expect(heading);
        let row = section
            .lines()
            .find(|line| line.starts_with(&format!("| `{key}`")));
        let values = row.expect(key).split('`').skip(3).step_by(2);
        for value in values {
            let mut answers = answers();
            answers.ready[0].cause = value.to_owned();
            answers.latencies[0].kind = value.to_owned();
            let shown = if key == "cause" {
                Key::Ready
            } else {
                Key::Latency
            };
            let table = render(&answers, &[], &[shown], Style::new(false), TOP);
            assert!(!table.contains(&format!("  {value}  ")), "{value}: {table}");
        }
    }
}

//! Changes of a tree of values.

use serde_json::{Map, Number, Value};
use stealtime_fuzz::choices::Choices;

/// Texts at the edges of what a key or a value may be.
const TEXTS: [&str; 12] = [
    "",
    "0",
    "-1",
    "max",
    "0-3",
    "0-4095",
    "1,0",
    "..",
    "/",
    "\u{1b}[31m",
    "\u{e000}\n",
    "18446744073709551616",
];

/// Leaves so many elements of each list.
pub fn shorten(value: &mut Value, len: usize) {
    match value {
        Value::Array(list) => {
            list.truncate(len);
            list.iter_mut().for_each(|value| shorten(value, len));
        }
        Value::Object(map) => map.values_mut().for_each(|value| shorten(value, len)),
        _ => {}
    }
}

/// Changes one value, or what a list or a map has.
pub fn change(choices: &mut Choices<'_>, document: &mut Value) {
    let node = choices.number() as usize % count(document);
    let other = choices.number() as usize % count(document);
    let copy = find(document, &mut { other }).map(|value| value.clone());
    let how = choices.byte();
    let Some(value) = find(document, &mut { node }) else {
        return;
    };
    match (how % 8, value) {
        (0, value) => *value = scalar(choices),
        (1, value) => *value = copy.unwrap_or(Value::Null),
        (2, Value::Array(list)) => list.extend(copy),
        (3, Value::Array(list)) => drop(list.pop()),
        (2, Value::Object(map)) => {
            let key = text(choices);
            map.insert(key, copy.unwrap_or(Value::Null));
        }
        (3, Value::Object(map)) => remove(map, usize::from(how) / 8),
        (4, Value::Number(number)) => *number = near(number, choices),
        (5, Value::Array(list)) => {
            let again = list.first().cloned();
            list.extend(again.into_iter().cycle().take(usize::from(how)));
        }
        (_, value) => *value = scalar(choices),
    }
}

fn scalar(choices: &mut Choices<'_>) -> Value {
    match choices.byte() % 8 {
        0 => Value::Null,
        1 => Value::Bool(true),
        2 => Value::Array(Vec::new()),
        3 => Value::Object(Map::new()),
        4 => Value::String(text(choices)),
        5 => (choices.number() as i64).into(),
        6 => Number::from_f64(f64::from_bits(choices.number() << 32)).into(),
        _ => choices.number().into(),
    }
}

fn text(choices: &mut Choices<'_>) -> String {
    match choices.byte() {
        known @ ..128 => choices_text(known).to_owned(),
        len => String::from_utf8_lossy(choices.bytes(usize::from(len) - 128)).into_owned(),
    }
}

fn choices_text(byte: u8) -> &'static str {
    TEXTS[usize::from(byte) % TEXTS.len()]
}

/// A number one off, or another power of two.
fn near(number: &Number, choices: &mut Choices<'_>) -> Number {
    let value = number.as_i64().unwrap_or(0);
    match choices.byte() {
        0 => value.wrapping_add(1).into(),
        1 => value.wrapping_sub(1).into(),
        2 => value.wrapping_neg().into(),
        shift => value.wrapping_shl(shift.into()).into(),
    }
}

fn remove(map: &mut Map<String, Value>, place: usize) {
    let key = map.keys().nth(place % map.len().max(1)).cloned();
    if let Some(key) = key {
        map.remove(&key);
    }
}

fn count(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(count).sum(),
        Value::Object(map) => map.values().map(count).sum(),
        _ => 0,
    }
}

/// The value with this number, the root's being 0.
fn find<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| find(value, number)),
        Value::Object(map) => map.values_mut().find_map(|value| find(value, number)),
        _ => None,
    }
}

/// The document in TOML: a key on each line, with tables in braces.
pub fn toml(document: &Value) -> String {
    let Value::Object(map) = document else {
        return document.to_string();
    };
    let line = |(key, value)| format!("{} = {}\n", Value::from(String::clone(key)), inline(value));
    map.iter().map(line).collect()
}

fn inline(value: &Value) -> String {
    match value {
        Value::Array(list) => format!(
            "[{}]",
            list.iter().map(inline).collect::<Vec<_>>().join(", ")
        ),
        Value::Object(map) => {
            let entry =
                |(key, value)| format!("{} = {}", Value::from(String::clone(key)), inline(value));
            format!(
                "{{{}}}",
                map.iter().map(entry).collect::<Vec<_>>().join(", ")
            )
        }
        // TOML has no null.
        Value::Null => "\"null\"".to_owned(),
        other => other.to_string(),
    }
}

//! A scenario's text with a value changed, and everything else as it was.

use toml_edit::{DocumentMut, InlineTable, Item, Table, TableLike, Value};

use super::{FitRecord, ReproduceError, ValueKind};

/// The text with the value at `path` changed; comments and spaces around it stay.
pub(super) fn value(
    text: &str,
    path: &str,
    kind: ValueKind,
    value: u64,
    shown: &str,
) -> Result<String, ReproduceError> {
    let mut document = parse(text)?;
    let new = match kind {
        ValueKind::Time => Value::from(shown),
        ValueKind::Number => {
            let number = i64::try_from(value);
            Value::from(number.map_err(|_| nowhere(path))?)
        }
    };
    let keys: Vec<&str> = path.split('.').collect();
    let current = find(document.as_item_mut(), &keys, "").ok_or_else(|| nowhere(path))?;
    put(current, new);
    Ok(document.to_string())
}

/// The text with what is known of the value at `path`.
pub(super) fn record(text: &str, path: &str, record: &FitRecord) -> Result<String, ReproduceError> {
    let mut document = parse(text)?;
    let table = calibration(&mut document, path).ok_or_else(|| nowhere(path))?;
    let date: toml_edit::Datetime = record.date.parse().map_err(|_| nowhere(path))?;
    let mut fitted = InlineTable::new();
    fitted.insert("date", date.into());
    fitted.insert("version", record.version.as_str().into());
    fitted.insert("residual_percent", record.residual_percent.into());
    fitted.insert("slope", record.slope.into());
    match table.get_mut("fitted").and_then(Item::as_value_mut) {
        Some(current) => put(current, fitted.into()),
        None => {
            table.insert("fitted", Item::Value(fitted.into()));
        }
    }
    Ok(document.to_string())
}

/// The `[[calibrate]]` of a parameter.
fn calibration<'d>(document: &'d mut DocumentMut, path: &str) -> Option<&'d mut Table> {
    let tables = document.get_mut("calibrate")?.as_array_of_tables_mut()?;
    let is_it = |table: &&mut Table| table.get("parameter").and_then(Item::as_str) == Some(path);
    tables.iter_mut().find(is_it)
}

fn parse(text: &str) -> Result<DocumentMut, ReproduceError> {
    let parsed = text.parse::<DocumentMut>();
    parsed
        .map_err(|error| ReproduceError::Data(format!("a scenario that was read before: {error}")))
}

/// Reading the scenario has found the parameter already.
fn nowhere(path: &str) -> ReproduceError {
    ReproduceError::Data(format!("{path} cannot be written in the scenario's text"))
}

fn put(current: &mut Value, mut new: Value) {
    *new.decor_mut() = current.decor().clone();
    *current = new;
}

/// As reading finds it: tables by key, elements of lists by name; `list` is the key that led here.
fn find<'d>(item: &'d mut Item, keys: &[&str], list: &str) -> Option<&'d mut Value> {
    let Some((key, rest)) = keys.split_first() else {
        return item.as_value_mut();
    };
    match item {
        Item::Table(table) => find(table.get_mut(key)?, rest, key),
        Item::ArrayOfTables(tables) => {
            let table = tables.iter_mut().find(|table| named(*table, list, key))?;
            let (inner, rest) = rest.split_first()?;
            find(table.get_mut(inner)?, rest, inner)
        }
        Item::Value(value) => within(value, keys, list),
        Item::None => None,
    }
}

fn within<'d>(value: &'d mut Value, keys: &[&str], list: &str) -> Option<&'d mut Value> {
    let Some((key, rest)) = keys.split_first() else {
        return Some(value);
    };
    match value {
        Value::InlineTable(table) => within(table.get_mut(key)?, rest, key),
        Value::Array(array) => {
            let is_it = |value: &&mut Value| {
                let table = value.as_inline_table();
                table.is_some_and(|table| named(table, list, key))
            };
            within(array.iter_mut().find(is_it)?, rest, list)
        }
        _ => None,
    }
}

/// Whether an element has this name; what has none is called like its list.
fn named(table: &dyn TableLike, list: &str, name: &str) -> bool {
    match table.get("name") {
        Some(item) => item.as_str() == Some(name),
        None => list == name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Top.\n[[vm]]\nname = \"a\" # first\nworkload = { name = \"x\", \
        copy_ns =  \"985ns\" } # cost\n\n[[task]]\nworkload.count = 3 # tasks\n\n[[calibrate]]\n\
        parameter = \"vm.a.workload.copy_ns\" # which\n";

    fn at(path: &str, kind: ValueKind, to: u64) -> Result<String, String> {
        let shown = kind.show(to);
        value(TEXT, path, kind, to, &shown).map_err(|error| error.to_string())
    }

    #[test]
    fn only_the_value_changes() {
        let new = at("vm.a.workload.copy_ns", ValueKind::Time, 2_000).expect("it is there");
        assert_eq!(new, TEXT.replace("\"985ns\"", "\"2us\""));
        let new = at("task.task.workload.count", ValueKind::Number, 4).expect("it is there");
        assert_eq!(new, TEXT.replace("count = 3", "count = 4"));
        let same = at("vm.a.workload.copy_ns", ValueKind::Time, 985).expect("it is there");
        assert_eq!(same, TEXT);
        for path in [
            "vm.b.workload.copy_ns",
            "vm.a.none",
            "vm",
            "task.task.workload.count.x",
        ] {
            let error = at(path, ValueKind::Number, 1).expect_err("it is not there");
            assert!(error.contains(path), "{error}");
        }
    }

    #[test]
    fn a_record_is_added_and_renewed() {
        let of = |date: &str, residual_percent| FitRecord {
            date: date.to_owned(),
            version: "0.1.0".to_owned(),
            residual_percent,
            slope: -4.25,
        };
        let path = "vm.a.workload.copy_ns";
        let added = record(TEXT, path, &of("2026-11-20", 0.5)).expect("it is there");
        let line = "fitted = { date = 2026-11-20, version = \"0.1.0\", residual_percent = 0.5, \
            slope = -4.25 }\n";
        assert_eq!(added, format!("{TEXT}{line}"));
        let renewed = record(&added, path, &of("2026-11-21", 0.0)).expect("it is there");
        let line = line.replace("-20", "-21").replace("0.5", "0.0");
        assert_eq!(renewed, format!("{TEXT}{line}"));
        assert!(record(TEXT, "vm.b", &of("2026-11-20", 0.5)).is_err());
    }
}

//! `[[vm]]` and `[[task]]`.

use stealtime_simulator::config::{ParamValue, TaskConfig, VmConfig, WorkloadConfig};
use stealtime_simulator::workload::LIBRARY;
use toml::de::DeValue;

use super::settings::MOST_OF_A_GROUP;
use crate::document::{Item, Notes, Table};
use crate::knobs::{check_parameter, names_of_vm, parameter_value};
use crate::spelling::suggestion;
use crate::units::cpus;

/// The workloads of guests, by name.
#[must_use]
pub fn workloads() -> Vec<&'static str> {
    LIBRARY.iter().map(|workload| workload.name).collect()
}

/// The longest name of a VM or a task.
const LONGEST: usize = 64;

/// A group of equal VMs.
pub(super) struct Group<'t, 'a> {
    pub(super) vm: VmConfig,
    pub(super) count: u32,
    /// Its knobs, without `vm.NAME.`.
    pub(super) knobs: Vec<(&'static str, Item<'t, 'a>)>,
}

/// Reads a `[[vm]]`; `names` are those of the groups before it, `khz` is the host's TSC.
pub(super) fn vm<'t, 'a>(
    mut table: Table<'t, 'a>,
    names: &[String],
    khz: u32,
    notes: &mut Notes,
) -> Group<'t, 'a> {
    let name = name(&mut table, "vm", names, notes);
    let count = table
        .number("count", 1..u64::from(MOST_OF_A_GROUP) + 1, notes)
        .unwrap_or(1);
    let workload = workload(&mut table, notes);
    let moved = table.table("migration", notes);
    let migration = moved.and_then(|table| super::migration::read(table, khz, notes));
    let knobs: Vec<_> = names_of_vm()
        .filter_map(|name| Some((name, table.take(name)?)))
        .collect();
    table.finish(&[], notes);
    Group {
        vm: VmConfig {
            name,
            workload,
            migration,
            ..VmConfig::default()
        },
        count: u32::try_from(count).unwrap_or(1),
        knobs,
    }
}

/// Reads a `[[task]]`; `names` are those of the tasks before it.
pub(super) fn task(mut table: Table<'_, '_>, names: &[String], notes: &mut Notes) -> TaskConfig {
    let name = name(&mut table, "task", names, notes);
    let workload = workload(&mut table, notes);
    let count = table
        .number("count", 1..u64::from(MOST_OF_A_GROUP) + 1, notes)
        .unwrap_or(1);
    let mut nice = 0;
    if let Some(item) = table.take("nice") {
        let number = item.words(notes).map(|text| text.parse::<i8>());
        match number {
            Some(Ok(number)) if (-20..=19).contains(&number) => nice = number,
            Some(_) => item.wrong("a nice value is within -20 to 19".into(), notes),
            None => {}
        }
    }
    let mut cpu_list = Vec::new();
    if let Some(item) = table.take("cpus")
        && let Some(text) = item.words(notes)
    {
        match cpus(&text) {
            Ok(cpus) => cpu_list = cpus,
            Err(error) => item.wrong(error.to_string(), notes),
        }
    }
    table.finish(&[], notes);
    TaskConfig {
        name,
        workload,
        count: u32::try_from(count).unwrap_or(1),
        nice,
        cpus: cpu_list,
    }
}

fn name(table: &mut Table<'_, '_>, default: &str, names: &[String], notes: &mut Notes) -> String {
    let item = table.take("name");
    let text = item.as_ref().and_then(|item| item.text(notes));
    let name = text.unwrap_or(default);
    let place = item
        .as_ref()
        .map_or_else(|| notes.place(&table.key), |item| item.span.clone());
    let key = format!("{}.name", table.key);
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > LONGEST || !name.chars().all(fits) {
        let problem = format!("names have 1 to {LONGEST} letters, digits, - and _");
        notes.problem(&key, place, problem);
    } else if names.iter().any(|known| known == name) {
        let problem = format!("there is a {name} already: give each [[{default}]] its own name");
        notes.problem(&key, place, problem);
    } else if let Some(known) = names
        .iter()
        .find(|known| overlap(known, name) || overlap(name, known))
    {
        let problem = format!("{known} and {name} would be one group: VMs of a group are numbered");
        notes.problem(&key, place, problem);
    }
    name.to_owned()
}

/// Whether `name` is how a VM of the group `group` is called.
fn overlap(group: &str, name: &str) -> bool {
    let number = name
        .strip_prefix(group)
        .and_then(|rest| rest.strip_prefix('-'));
    number.is_some_and(|n| !n.is_empty() && n.bytes().all(|digit| digit.is_ascii_digit()))
}

/// `workload = "hackbench"`, or a table with `name` and parameters.
fn workload(table: &mut Table<'_, '_>, notes: &mut Notes) -> WorkloadConfig {
    let idle = WorkloadConfig::named("idle");
    let Some(item) = table.take("workload") else {
        let help = format!("known are {}", workloads().join(", "));
        let place = notes.place(&table.key);
        let key = format!("{}.workload", table.key);
        notes.push(&key, place, "what does it run?".into(), Some(help));
        return idle;
    };
    if !item.value.is_table() {
        let name = item.text(notes).and_then(|name| known(name, &item, notes));
        return name.map_or(idle, WorkloadConfig::named);
    }
    let Some(mut inner) = item.table(notes) else {
        return idle;
    };
    let Some(name_item) = inner.take("name") else {
        let help = format!("name = one of {}", workloads().join(", "));
        notes.push(
            &item.key,
            item.key_span,
            "which workload is it?".into(),
            Some(help),
        );
        return idle;
    };
    let name = name_item
        .text(notes)
        .and_then(|name| known(name, &name_item, notes));
    let Some(name) = name else {
        return idle;
    };
    let mut workload = WorkloadConfig::named(name);
    for (name, item) in inner.rest() {
        let Some(value) = parameter(&item, notes) else {
            continue;
        };
        if let Err((problem, help)) = check_parameter(&workload.name, &name, &value) {
            notes.push(&item.key, item.span, problem, help);
            continue;
        }
        workload.params.insert(name, value);
    }
    workload
}

fn known<'n>(name: &'n str, item: &Item<'_, '_>, notes: &mut Notes) -> Option<&'n str> {
    if workloads().contains(&name) {
        return Some(name);
    }
    let help = suggestion(name, &workloads());
    notes.push(
        &item.key,
        item.span.clone(),
        format!("no workload {name:?}"),
        Some(help),
    );
    None
}

fn parameter(item: &Item<'_, '_>, notes: &mut Notes) -> Option<ParamValue> {
    let text = item.words(notes)?;
    Some(match item.value {
        // A text is a time or a word, whatever else it looks like.
        DeValue::String(_) => match parameter_value(&text) {
            ParamValue::Int(ns) if !text.bytes().all(|c| c.is_ascii_digit()) => ParamValue::Int(ns),
            _ => ParamValue::Text(text),
        },
        _ => parameter_value(&text),
    })
}

//! `[knobs]` and `[variants.NAME]`: names and values, set in an order that suits them.

use serde::Serialize;
use stealtime_simulator::config::Config;

use crate::document::{Item, Notes, Table};
use crate::knobs::{self, KnobError, order};

/// The most VMs of a group.
pub(super) const MOST_OF_A_GROUP: u32 = 65_536;
/// The most parts of a knob's name.
const DEEPEST: usize = 8;

/// A knob and its value, as they are written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// The knob.
    pub knob: String,
    /// The value.
    pub value: String,
}

/// Sets a knob, or how many VMs a group has (`vm.NAME.count`).
pub(super) fn apply(
    config: &mut Config,
    counts: &mut [u32],
    name: &str,
    value: &str,
) -> Result<(), KnobError> {
    let group = name
        .strip_prefix("vm.")
        .and_then(|rest| rest.strip_suffix(".count"));
    let index = group.and_then(|group| config.vms.iter().position(|vm| vm.name == group));
    let Some(count) = index.and_then(|index| counts.get_mut(index)) else {
        return knobs::set(config, name, value);
    };
    match value.trim().parse::<u32>() {
        Ok(number) if (1..=MOST_OF_A_GROUP).contains(&number) => *count = number,
        _ => {
            return Err(KnobError::Value {
                name: name.to_owned(),
                problem: format!("{value:?} is not within 1 to {MOST_OF_A_GROUP}"),
            });
        }
    }
    Ok(())
}

/// All settings of a table: `kvm.halt_poll_ns = 0`, with or without quotes around the name.
pub(super) fn read<'t, 'a>(
    table: Table<'t, 'a>,
    notes: &mut Notes,
) -> Vec<(Setting, Item<'t, 'a>)> {
    let outer = table.key.len() + 1;
    let mut found = Vec::new();
    flatten(table, 0, &mut found, notes);
    let mut settings: Vec<(Setting, Item<'t, 'a>)> = Vec::new();
    for item in found {
        let knob = item.key.get(outer..).unwrap_or_default().to_owned();
        if settings.iter().any(|(known, _)| known.knob == knob) {
            let problem = "this knob is set twice".to_owned();
            notes.problem(&item.key, item.key_span.clone(), problem);
            continue;
        }
        if let Some(value) = item.words(notes) {
            settings.push((Setting { knob, value }, item));
        }
    }
    settings.sort_by_key(|(setting, _)| order(&setting.knob));
    settings
}

fn flatten<'t, 'a>(
    mut table: Table<'t, 'a>,
    depth: usize,
    found: &mut Vec<Item<'t, 'a>>,
    notes: &mut Notes,
) {
    for (_, item) in table.rest() {
        if !item.value.is_table() {
            found.push(item);
        } else if depth >= DEEPEST {
            let problem = format!("no knob's name has more than {DEEPEST} parts");
            notes.problem(&item.key, item.key_span, problem);
        } else if let Some(inner) = item.table(notes) {
            flatten(inner, depth + 1, found, notes);
        }
    }
}

/// Notes what is wrong with a setting.
pub(super) fn refused(error: KnobError, item: &Item<'_, '_>, notes: &mut Notes) {
    match error {
        KnobError::Unknown { help, .. } => {
            let problem = "there is no such knob".to_owned();
            notes.push(&item.key, item.key_span.clone(), problem, Some(help));
        }
        KnobError::NoTask { help, .. } => {
            let problem = "there is no such task".to_owned();
            notes.push(&item.key, item.key_span.clone(), problem, Some(help));
        }
        KnobError::NoVm { help, .. } => {
            let problem = "there is no such VM".to_owned();
            notes.push(&item.key, item.key_span.clone(), problem, Some(help));
        }
        KnobError::Value { problem, .. } => item.wrong(problem, notes),
    }
}

//! `[vm.migration]`: a guest that is moved to another host.

use stealtime_simulator::config::{ClockMethod, HostClock, MigrationConfig};

use crate::document::{Notes, Table};
use crate::knobs::CLOCKS;
use crate::spelling::suggestion;
use crate::units::cpus;

/// The longest time of a migration, in ns.
const LONGEST_NS: u64 = 1_000_000_000_000_000;
/// The largest drift, in parts per billion: a tenth of a percent.
const MOST_DRIFT: i64 = 1_000_000;

/// Reads a migration; `khz` is the TSC of a host that says nothing of its own.
pub(super) fn read(
    mut table: Table<'_, '_>,
    khz: u32,
    notes: &mut Notes,
) -> Option<MigrationConfig> {
    let place = notes.place(&table.key);
    let at_ns = time(&mut table, "at", notes);
    if at_ns.is_none() {
        let key = format!("{}.at", table.key);
        notes.problem(
            &key,
            place.clone(),
            "when is it moved? Give at = \"500ms\"".into(),
        );
    }
    let mut to_cpus = None;
    match table.take("to_cpus") {
        Some(item) => match item.words(notes).map(|text| cpus(&text)) {
            Some(Ok(cpus)) => to_cpus = Some(cpus),
            Some(Err(error)) => item.wrong(error.to_string(), notes),
            None => {}
        },
        None => {
            let key = format!("{}.to_cpus", table.key);
            notes.problem(&key, place, "where to? Give to_cpus = \"4-7\"".into());
        }
    }
    let method = method(&mut table, notes);
    let transfer_ns = time(&mut table, "transfer", notes).unwrap_or(50_000_000);
    let load_ns = time(&mut table, "load", notes).unwrap_or(0);
    let step_ns = time(&mut table, "step", notes).unwrap_or(2_000);
    let source = clock(&mut table, "source", khz, notes);
    let destination = clock(&mut table, "destination", khz, notes);
    table.finish(&[], notes);
    Some(MigrationConfig {
        at_ns: at_ns?,
        to_cpus: to_cpus?,
        method,
        transfer_ns,
        load_ns,
        step_ns,
        source,
        destination,
    })
}

fn time(table: &mut Table<'_, '_>, name: &str, notes: &mut Notes) -> Option<u64> {
    table.take(name)?.time(0..LONGEST_NS + 1, notes)
}

fn method(table: &mut Table<'_, '_>, notes: &mut Notes) -> ClockMethod {
    let Some(item) = table.take("method") else {
        return ClockMethod::default();
    };
    let name = item.text(notes).unwrap_or_default();
    CLOCKS.find(name).unwrap_or_else(|| {
        let help = suggestion(name, &CLOCKS.all());
        let problem = format!("no method {name:?}");
        notes.push(&item.key, item.span, problem, Some(help));
        ClockMethod::default()
    })
}

/// A host's clocks: exact ones, unless the table says otherwise.
fn clock(table: &mut Table<'_, '_>, name: &str, khz: u32, notes: &mut Notes) -> HostClock {
    let mut clock = HostClock::exact(khz);
    let Some(mut table) = table.table(name, notes) else {
        return clock;
    };
    if let Some(khz) = table.number("tsc_khz", 1..10_000_001, notes) {
        clock.tsc_khz = u32::try_from(khz).unwrap_or(clock.tsc_khz);
    }
    if let Some(tsc) = table.number("tsc_at_start", 0..u64::MAX, notes) {
        clock.tsc_at_start = tsc;
    }
    if let Some(ppb) = signed(&mut table, "drift_ppb", MOST_DRIFT, notes) {
        clock.drift_ppb = i32::try_from(ppb).unwrap_or(0);
    }
    if let Some(ns) = signed(&mut table, "realtime_skew_ns", 1_000_000_000_000, notes) {
        clock.realtime_skew_ns = ns;
    }
    table.finish(&[], notes);
    clock
}

/// A number between `-most` and `most`.
fn signed(table: &mut Table<'_, '_>, name: &str, limit: i64, notes: &mut Notes) -> Option<i64> {
    let item = table.take(name)?;
    match item.words(notes)?.parse::<i64>() {
        Ok(number) if (-limit..=limit).contains(&number) => Some(number),
        _ => {
            item.wrong(
                format!("must be a whole number within -{limit} to {limit}"),
                notes,
            );
            None
        }
    }
}

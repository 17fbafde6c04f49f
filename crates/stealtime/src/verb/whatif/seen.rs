//! What came of a change that was really made, beside what was predicted of it.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stealtime_lab::stats::Estimate;

use super::result::{Measured, Variant};
use super::{Base, Read, WhatIf};
use crate::error::CliError;
use crate::input::Twice;

/// A prediction is right within so much of what was seen.
const NEAR: f64 = 0.3;

/// A quantity of a VM, in ms per second of all its vCPUs.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) vm: String,
    pub(super) vm_guessed: bool,
    pub(super) quantity: &'static str,
    pub(super) predicted: Estimate,
    /// In the recording with the change less in the one without.
    pub(super) seen: f64,
    /// How far recordings that should be alike are from each other; `None` if there is one of each.
    pub(super) spread: Option<f64>,
    /// Within 30 % of what was seen, or within the spread of it.
    pub(super) is_right: bool,
}

impl Row {
    /// Whether the change is more than what recordings differ by anyway.
    fn stands_out(&self) -> bool {
        self.seen.abs() > self.spread.unwrap_or(0.0)
    }

    fn has_sign(&self) -> bool {
        self.predicted.mean * self.seen > 0.0
    }
}

/// A prediction beside recordings.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Seen {
    pub(super) variant: String,
    /// Recordings with the change, and more without it.
    pub(super) with: Vec<String>,
    pub(super) again: Vec<String>,
    pub(super) rows: Vec<Row>,
    pub(super) right: usize,
    /// Changes beyond the spread, and those of them that were predicted with the right sign.
    pub(super) beyond_spread: usize,
    pub(super) right_signs: usize,
}

/// Without a change there is nothing that could have come of it.
pub(super) fn check(verb: &WhatIf) -> Result<(), CliError> {
    if !verb.seen.is_empty() && verb.set.is_empty() && verb.pin.is_empty() {
        return Err(CliError::WhatIf(
            "--seen needs the change that was made: --set KNOB=VALUE or --pin VM=CPUS".to_owned(),
        ));
    }
    Ok(())
}

/// What was measured, of the VMs of the replayed recording in their order: with the change, and
/// without it.
#[derive(Debug)]
pub(super) struct Recordings {
    with: Vec<Measured>,
    without: Vec<Measured>,
}

impl Recordings {
    /// Reads what `--seen` and `--again` name.
    pub(super) fn read(verb: &WhatIf, base: &Base) -> Result<Option<Self>, CliError> {
        if verb.seen.is_empty() {
            return Ok(None);
        }
        let all = |paths: &[PathBuf]| -> Result<Vec<Measured>, CliError> {
            let paths = paths.iter();
            paths.map(|path| measured(verb, base, path)).collect()
        };
        let with = all(&verb.seen)?;
        let mut without = all(&verb.again)?;
        without.insert(0, base.measured());
        Ok(Some(Self { with, without }))
    }

    /// Beside what a variant was predicted to do; `None` for a variant without replays.
    pub(super) fn beside(&self, verb: &WhatIf, variant: &Variant) -> Option<Seen> {
        let (with, without) = (self.with.first()?, self.without.first()?);
        let mut rows = Vec::new();
        for change in &variant.changes {
            let Some((vm, quantity)) = change.time() else {
                continue;
            };
            let value = |measured: &Measured| measured.value(vm, quantity);
            let seen = value(with) - value(without);
            let spread = spread(&self.with, value).max(spread(&self.without, value));
            let several = self.with.len() + self.without.len() > 2;
            let predicted = change.difference.estimate;
            let off = (predicted.mean - seen).abs();
            rows.push(Row {
                vm: change.vm.clone(),
                vm_guessed: change.vm_guessed,
                quantity: change.quantity,
                predicted,
                seen,
                spread: several.then_some(spread),
                is_right: off <= NEAR * seen.abs() || (several && off <= spread),
            });
        }
        let beyond = || rows.iter().filter(|row| row.stands_out());
        let shown = |paths: &[PathBuf]| {
            let paths = paths.iter();
            paths.map(|path| path.display().to_string()).collect()
        };
        Some(Seen {
            variant: variant.name.clone(),
            with: shown(&verb.seen),
            again: shown(&verb.again),
            right: rows.iter().filter(|row| row.is_right).count(),
            beyond_spread: beyond().count(),
            right_signs: beyond().filter(|row| row.has_sign()).count(),
            rows,
        })
    }
}

fn spread(all: &[Measured], value: impl Fn(&Measured) -> f64) -> f64 {
    let values = all.iter().map(value);
    let (least, most) = values.fold((f64::MAX, f64::MIN), |(least, most), value| {
        (least.min(value), most.max(value))
    });
    most - least
}

fn measured(verb: &WhatIf, base: &Base, path: &Path) -> Result<Measured, CliError> {
    let twice = Twice::new(path)?;
    let other = verb.read(twice.path())?;
    let mut places = Vec::new();
    for (vm, name) in base.vms.iter().enumerate() {
        let place = place(base, vm, &other, &places).ok_or_else(|| {
            CliError::WhatIf(format!(
                "{}: has no VM {name}, neither by its vCPUs' threads nor by name: --seen and --again \
                 are for recordings of the same guests (name their threads by --vm-of)",
                path.display()
            ))
        })?;
        places.push(place);
    }
    let measured = Measured::of(&other.recorded, other.vms().len(), other.recording.span_ns);
    Ok(measured.of_vms(&places))
}

/// Which VM of another recording is this one: the one with its threads, else the one of its name; none that
/// is another one already.
fn place(base: &Base, vm: usize, other: &Read, taken: &[usize]) -> Option<usize> {
    let own = |at: &Option<(usize, u32)>| at.is_some_and(|(of, _)| of == vm);
    let tasks = base.recording.tasks.iter();
    let mut threads = tasks.filter(|task| own(&task.vcpu));
    let others = &other.recording.tasks;
    // After another boot an id may be any thread's.
    let by_thread = threads.find_map(|own| {
        let task = others.iter().find(|task| task.tid == own.tid)?;
        let (vm, number) = task.vcpu?;
        own.vcpu.is_some_and(|own| own.1 == number).then_some(vm)
    });
    let name = base.vms.get(vm)?;
    let place = by_thread.or_else(|| other.vms().iter().position(|other| other == name));
    place.filter(|place| !taken.contains(place))
}

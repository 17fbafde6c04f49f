//! Recordings made with the change, next to what was predicted of it.

use serde::Serialize;
use stealtime_lab::stats::Estimate;

use crate::baseline::Baseline;
use crate::error::Error;
use crate::figure::{self, Figure};
use crate::gain::Word;
use crate::recorded::Recorded;
use crate::result::{Measured, Variant};

/// A prediction is right within this share of the observed change.
const NEAR: f64 = 0.3;

/// A quantity of a VM, in ms per second of all its vCPUs.
#[derive(Debug, Clone, Serialize)]
pub struct ObservedRow {
    /// The VM.
    pub vm: String,
    /// Whether its threads are a guess.
    pub vm_guessed: bool,
    /// `running`, `ready` or `halted`.
    pub quantity: &'static str,
    /// The predicted change.
    pub predicted: Estimate,
    /// Recorded with the change, less recorded without it.
    pub seen: f64,
    /// How far recordings that should be alike differ; `None` if there is one of each.
    pub spread: Option<f64>,
    /// Within 30 % of the observed change, or within the spread.
    pub is_right: bool,
}

impl ObservedRow {
    /// Whether the change is larger than the spread.
    fn stands_out(&self) -> bool {
        self.seen.abs() > self.spread.unwrap_or(0.0)
    }

    fn has_sign(&self) -> bool {
        self.predicted.mean * self.seen > 0.0
    }
}

/// A figure of a variant. Of waiting and CPU time more is better: it is what is given back.
#[derive(Debug, Clone, Serialize)]
pub struct ObservedFigure {
    /// The VM; `host tasks`, `all VMs`, `host`, `all`.
    pub who: String,
    /// Whether its threads are a guess.
    pub vm_guessed: bool,
    /// Its name.
    pub quantity: &'static str,
    /// `ms/s`, `us` or `1/s`.
    pub unit: &'static str,
    /// The predicted change.
    pub predicted: Estimate,
    /// What the prediction means.
    pub word: Word,
    /// Whether the verdict or the ranking rests on this word.
    pub decides: bool,
    /// Recorded with the change, less recorded without it.
    pub seen: f64,
    /// How far recordings that should be alike differ; `None` if there is one of each.
    pub spread: Option<f64>,
    /// Whether the recordings contradict `better` or `worse`; `None` without a spread, or with another word.
    pub is_refuted: Option<bool>,
}

impl ObservedFigure {
    fn new(figure: &Figure<'_>, observed: Shown) -> Self {
        let predicted = figure.predicted;
        Self {
            who: figure.subject.to_owned(),
            vm_guessed: figure.vm_guessed,
            quantity: figure.quantity,
            unit: figure.unit,
            predicted,
            word: figure.word,
            decides: figure.decides(),
            seen: observed.change,
            spread: observed.spread,
            is_refuted: observed
                .spread
                .filter(|_| figure.word.is_change())
                .map(|spread| refutes(predicted, observed.change, spread)),
        }
    }
}

/// Whether a seen change contradicts the direction of the predicted one. The two exclude each other, and the
/// seen one does not go that way beyond the spread. Another size alone contradicts nothing.
pub(crate) fn refutes(predicted: Estimate, change: f64, spread: f64) -> bool {
    let is_beyond = (predicted.mean - change).abs() > predicted.half_width.unwrap_or(0.0) + spread;
    let goes_that_way = predicted.mean * change > 0.0 && change.abs() > spread;
    is_beyond && !goes_that_way
}

/// A prediction next to recordings.
#[derive(Debug, Clone, Serialize)]
pub struct Observed {
    /// The variant's name.
    pub variant: String,
    /// Recordings with the change.
    pub with: Vec<String>,
    /// More recordings without it.
    pub again: Vec<String>,
    /// Of all these, the ones of which less was read than was recorded.
    pub partial: Vec<String>,
    /// A row for each quantity of each VM.
    pub rows: Vec<ObservedRow>,
    /// Rows that are right.
    pub right: usize,
    /// Changes beyond the spread.
    pub beyond_spread: usize,
    /// Of those the ones with the right sign.
    pub right_signs: usize,
    /// All figures of the verdict and the ranking.
    pub figures: Vec<ObservedFigure>,
    /// Of those that decide, the ones that are refuted.
    pub refuted: usize,
}

/// What recordings show of a value.
#[derive(Clone, Copy)]
struct Shown {
    change: f64,
    spread: Option<f64>,
}

/// Recordings with the change and without it, measured by the VMs of the replayed one.
#[derive(Debug)]
pub struct Observation {
    with: Vec<Measured>,
    without: Vec<Measured>,
    /// Names of the recordings with the change.
    changed: Vec<String>,
    /// Names of those without it, but for the replayed one.
    unchanged: Vec<String>,
    partial: Vec<String>,
}

impl Observation {
    /// The replayed recording, with nothing to compare it with yet.
    #[must_use]
    pub fn new(base: &Baseline) -> Self {
        Self {
            with: Vec::new(),
            without: vec![base.recorded.measured_with_halts()],
            changed: Vec::new(),
            unchanged: Vec::new(),
            partial: Vec::new(),
        }
    }

    /// Adds a recording made with the change, by its name.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchVm`]
    pub fn add_changed(
        &mut self,
        base: &Baseline,
        name: String,
        recorded: &Recorded,
    ) -> Result<(), Error> {
        self.with.push(measured(&base.recorded, recorded)?);
        self.look_whether_whole(&name, recorded);
        self.changed.push(name);
        Ok(())
    }

    /// Adds one more recording made without the change, by its name.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchVm`]
    pub fn add_unchanged(
        &mut self,
        base: &Baseline,
        name: String,
        recorded: &Recorded,
    ) -> Result<(), Error> {
        self.without.push(measured(&base.recorded, recorded)?);
        self.look_whether_whole(&name, recorded);
        self.unchanged.push(name);
        Ok(())
    }

    fn look_whether_whole(&mut self, name: &str, recorded: &Recorded) {
        if recorded.answers.source.partial {
            self.partial.push(name.to_owned());
        }
    }

    /// Compares with the prediction of a variant.
    #[must_use]
    pub fn compare(&self, variant: &Variant) -> Option<Observed> {
        let mut rows = Vec::new();
        for delta in &variant.changes {
            let Some((vm, quantity)) = delta.time() else {
                continue;
            };
            let observed = self.change(|measured| measured.value(vm, quantity))?;
            let predicted = delta.difference.estimate;
            let distance = (predicted.mean - observed.change).abs();
            let is_within = observed.spread.is_some_and(|spread| distance <= spread);
            rows.push(ObservedRow {
                vm: delta.vm.clone(),
                vm_guessed: delta.vm_guessed,
                quantity: delta.quantity,
                predicted,
                seen: observed.change,
                spread: observed.spread,
                is_right: distance <= NEAR * observed.change.abs() || is_within,
            });
        }
        let figures: Option<Vec<_>> = figure::all(variant)
            .iter()
            .map(|figure| {
                let observed = self.change(|measured| figure.measure(measured))?;
                Some(ObservedFigure::new(figure, observed))
            })
            .collect();
        let figures = figures?;
        let refuted = |figure: &&ObservedFigure| figure.decides && figure.is_refuted == Some(true);
        let beyond = || rows.iter().filter(|row| row.stands_out());
        Some(Observed {
            variant: variant.name.clone(),
            with: self.changed.clone(),
            again: self.unchanged.clone(),
            partial: self.partial.clone(),
            right: rows.iter().filter(|row| row.is_right).count(),
            beyond_spread: beyond().count(),
            right_signs: beyond().filter(|row| row.has_sign()).count(),
            rows,
            refuted: figures.iter().filter(refuted).count(),
            figures,
        })
    }

    /// What the recordings show of a value; `None` without a recording of each.
    fn change(&self, value: impl Fn(&Measured) -> f64) -> Option<Shown> {
        let change = value(self.with.first()?) - value(self.without.first()?);
        let has_spread = self.with.len() + self.without.len() > 2;
        let spread = || spread(&self.with, &value).max(spread(&self.without, &value));
        Some(Shown {
            change,
            spread: has_spread.then(spread),
        })
    }
}

/// The largest difference between measurements of a value.
fn spread(recordings: &[Measured], value: impl Fn(&Measured) -> f64) -> f64 {
    let values = recordings.iter().map(value);
    let (least, greatest) = values.fold((f64::MAX, f64::MIN), |(least, greatest), value| {
        (least.min(value), greatest.max(value))
    });
    greatest - least
}

/// Another recording by the VMs of this one.
fn measured(recorded: &Recorded, counterpart: &Recorded) -> Result<Measured, Error> {
    let mut places = Vec::new();
    for (vm, name) in recorded.vms.iter().enumerate() {
        let place = place(recorded, vm, counterpart, &places)
            .ok_or_else(|| Error::NoSuchVm(name.clone()))?;
        places.push(place);
    }
    Ok(counterpart.measured_with_halts().of_vms(&places))
}

/// Matches a VM across recordings by thread ids, then by name; each VM of the other one once.
pub(crate) fn place(
    recorded: &Recorded,
    vm: usize,
    counterpart: &Recorded,
    assigned: &[usize],
) -> Option<usize> {
    let is_of_vm = |vcpu: &Option<(usize, u32)>| vcpu.is_some_and(|(owner, _)| owner == vm);
    let tasks = recorded.recording.tasks.iter();
    let mut threads = tasks.filter(|task| is_of_vm(&task.vcpu));
    let candidates = &counterpart.recording.tasks;
    // After a reboot another thread may have the id: the vCPU's number must agree too.
    let by_thread = threads.find_map(|thread| {
        let task = candidates.iter().find(|task| task.tid == thread.tid)?;
        let (place, number) = task.vcpu?;
        let is_same = thread.vcpu.is_some_and(|vcpu| vcpu.1 == number);
        is_same.then_some(place)
    });
    let name = recorded.vms.get(vm)?;
    let place = by_thread.or_else(|| counterpart.vms.iter().position(|vm| vm == name));
    place.filter(|place| !assigned.contains(place))
}

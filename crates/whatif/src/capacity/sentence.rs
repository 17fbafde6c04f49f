//! The answers in a person's words.

use crate::capacity::cause::{HOST, IDLE, Taker};
use crate::capacity::curve::{Bound, Curve, Failure, Subject};
use crate::capacity::figures::{Band, Check};
use crate::capacity::limit::{Figure, Limit};
use crate::capacity::rebalance::{CONTINUED, HostFailure, MOST_MOVES, Migration, Rebalance};
use crate::capacity::removal::{Removal, Removals};

/// Fewer percent of a VM's ready time are not named as its cause.
const NAMED: f64 = 15.0;

/// A mean with its band: `7.1 % ±1.2`.
#[must_use]
pub fn with_band(figure: Figure, band: Band) -> String {
    let shown = figure.shown(band.mean);
    match band.half_width {
        // In the unit of the mean.
        Some(half) if figure.is_time() && band.mean >= 1_000.0 => {
            format!("{shown} ±{:.2}", half / 1_000.0)
        }
        Some(half) if figure.is_time() => format!("{shown} ±{half:.0}"),
        Some(half) => format!("{shown} ±{half:.1}"),
        None => shown,
    }
}

fn ordinal(count: u32) -> String {
    let words = [
        "first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth",
        "tenth", "eleventh", "twelfth",
    ];
    let index = count.checked_sub(1).map(|index| index as usize);
    match index.and_then(|index| words.get(index)) {
        Some(word) => (*word).to_owned(),
        None => match (count % 100, count % 10) {
            (11..=13, _) => format!("{count}th"),
            (_, 1) => format!("{count}st"),
            (_, 2) => format!("{count}nd"),
            (_, 3) => format!("{count}rd"),
            _ => format!("{count}th"),
        },
    }
}

/// `taken by web's vCPUs and host tasks`; `None` where nothing is known.
fn taken_by(takers: &[Taker]) -> Option<String> {
    let names = takers.iter().filter(|taker| taker.percent >= NAMED).take(2);
    let names = names.map(|taker| match taker.name.as_str() {
        HOST => "tasks of the host".to_owned(),
        IDLE => "wakeups of idle CPUs".to_owned(),
        _ if taker.is_same_vm => "its own vCPUs".to_owned(),
        name => format!("{name}'s vCPUs"),
    });
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| format!("taken by {}", names.join(" and ")))
}

/// The value of a limit with its unit; a small share with all its digits.
fn bound(limit: &Limit) -> String {
    match limit.figure.is_time() || (limit.value * 10.0).fract() == 0.0 {
        true => limit.figure.shown(limit.value),
        false => format!("{} %", limit.value),
    }
}

/// What the VM that breaks its limit does; after `makes` a verb is bare.
fn clause(check: &Check, is_bare: bool) -> String {
    clause_of(check.vm.as_deref().unwrap_or("the host"), check, is_bare)
}

/// The same with this subject.
fn clause_of(subject: &str, check: &Check, is_bare: bool) -> String {
    let value = with_band(check.limit.figure, check.value);
    let limit = bound(&check.limit);
    let (bare, third, end) = match check.limit.figure {
        Figure::Ready => ("wait", "waits", "of its time (limit"),
        Figure::WakeupP50 => ("take", "takes", "to wake up (median; limit"),
        Figure::WakeupP99 => ("take", "takes", "to wake up (99th percentile; limit"),
        Figure::Work => ("do", "does", "of its work alone (limit"),
        Figure::Overhead => ("spend", "spends", "on exits (limit"),
    };
    let verb = if is_bare { bare } else { third };
    format!("{subject} {verb} {value} {end} {limit})")
}

/// The effect of a count; `verb` is `makes` or `make`.
fn effect(check: &Check, verb: &str) -> String {
    format!("{verb} {}", clause(check, true))
}

fn with_cause(text: String, takers: &[Taker]) -> String {
    match taken_by(takers) {
        Some(cause) => format!("{text}, {cause}"),
        None => text,
    }
}

/// The interval, in numbers of further VMs.
fn interval(curve: &Curve) -> String {
    let further = |count: u32| count.saturating_sub(curve.first);
    let (least, greatest) = (further(curve.least), further(curve.greatest));
    match (least == greatest, curve.greatest >= curve.bound) {
        (true, false) => String::new(),
        (_, true) => format!(" (95 %: {least} or more)"),
        (false, false) => format!(" (95 %: {least} to {greatest})"),
    }
}

fn bounded(curve: &Curve, further: u32) -> String {
    let reason = match curve.bound_by {
        Bound::Demand => "with more the VMs would demand over four times the host's CPU time",
        Bound::Count => "no larger count is tried",
    };
    let unit = match &curve.of {
        Subject::Vm(name) if curve.first == 0 => format!("{further} of {name} fit"),
        Subject::Vm(name) => format!("{further} more of {name} fit"),
        Subject::Mix => format!("{further} more of every VM fit"),
    };
    format!("At least {unit}: all limits hold up to there, and {reason}.")
}

/// The answer of a curve.
pub(crate) fn of_curve(curve: &Curve) -> String {
    let Some(largest) = curve.largest else {
        let because = curve.failure.as_ref().map(|failure| {
            let text = with_cause(clause(&failure.check, false), &failure.takers);
            format!(": {text}")
        });
        return format!(
            "The limits do not hold even as recorded{}.",
            because.unwrap_or_default()
        );
    };
    let further = largest.saturating_sub(curve.first);
    let Some(failure) = &curve.failure else {
        return bounded(curve, further);
    };
    format!("{}; {}.", fits(curve, further), crossing(curve, failure))
}

fn fits(curve: &Curve, further: u32) -> String {
    let interval = interval(curve);
    match (&curve.of, further) {
        // A VM of another recording: the host has none.
        (Subject::Vm(name), 0) if curve.first == 0 => format!("{name} does not fit{interval}"),
        (Subject::Vm(name), 1) if curve.first == 0 => format!("1 of {name} fits{interval}"),
        (Subject::Vm(name), further) if curve.first == 0 => {
            format!("{further} of {name} fit{interval}")
        }
        (Subject::Vm(name), 0) => format!("No more of {name} fits{interval}"),
        (Subject::Vm(name), 1) => format!("1 more of {name} fits{interval}"),
        (Subject::Vm(name), further) => format!("{further} more of {name} fit{interval}"),
        (Subject::Mix, 0) => format!("Not one more of every VM fits{interval}"),
        (Subject::Mix, further) => format!("{further} more of every VM fit{interval}"),
    }
}

fn crossing(curve: &Curve, failure: &Failure) -> String {
    let added = failure.count.saturating_sub(curve.first);
    let text = match (&curve.of, added) {
        (Subject::Mix, 1) => format!("one more of each {}", effect(&failure.check, "makes")),
        (Subject::Mix, added) => format!("{added} more {}", effect(&failure.check, "make")),
        (Subject::Vm(_), 1) => format!("one more {}", effect(&failure.check, "makes")),
        (Subject::Vm(_), added) => {
            format!("the {} {}", ordinal(added), effect(&failure.check, "makes"))
        }
    };
    with_cause(text, &failure.takers)
}

fn gains(removal: &Removal) -> String {
    let half = removal.spared_ms.half_width;
    let interval = half.map_or_else(String::new, |half| format!(" ±{half:.0}"));
    let spared = format!(
        "spares the others {:.0}{interval} ms of waiting per second",
        removal.spared_ms.mean
    );
    let gainer = removal
        .vms
        .iter()
        .find(|vm| vm.is_beyond_noise && vm.spared_ms.mean > 0.0);
    match gainer {
        Some(vm) => format!(
            "{spared}, {} most: it waits {:.1} % of its time instead of {:.1} %",
            vm.vm, vm.ready_without_percent, vm.ready_percent
        ),
        None => spared,
    }
}

/// The answer to which VMs to take away.
pub(crate) fn of_removals(removals: &Removals) -> String {
    let suffering = removals.suffering.as_ref().map(|suffering| {
        let waits = format!(
            "{} waits most now, {:.1} % of its time",
            suffering.vm, suffering.ready_percent
        );
        format!(" {}.", with_cause(waits, &suffering.takers))
    });
    let suffering = suffering.unwrap_or_default();
    let Some(first) = removals.steps.first() else {
        return format!("No VM can be taken away.{suffering}");
    };
    let is_gain = first
        .vms
        .iter()
        .any(|vm| vm.is_beyond_noise && vm.spared_ms.mean > 0.0);
    if !is_gain {
        return format!("No VM gains beyond noise by the removal of another one.{suffering}");
    }
    let names: Vec<&str> = removals.steps.iter().map(|step| step.vm.as_str()).collect();
    let verb = match names.len() {
        1 => String::new(),
        count => format!(
            " These are {count} one after the other, each the best after those before: another set of \
             {count} may be better."
        ),
    };
    format!(
        "Take away {}: {} {}.{verb}{suffering}",
        names.join(", then "),
        first.vm_or(names.len()),
        gains(first)
    )
}

/// The VM or host that breaks its limit by most, and what has the CPUs meanwhile.
fn failing(failure: &HostFailure, adverb: &str) -> String {
    let subject = match &failure.check.vm {
        Some(vm) if vm.ends_with(&format!("@{}", failure.host)) => vm.clone(),
        Some(vm) => format!("{vm} on {}", failure.host),
        None => failure.host.clone(),
    };
    let subject = format!("{subject}{adverb}");
    let text = clause_of(&subject, &failure.check, false);
    with_cause(text, &failure.takers)
}

impl Migration {
    /// `web from host1.dat to host2.dat`
    #[must_use]
    pub fn shown(&self) -> String {
        // A VM moves from the host that its name may have.
        let suffix = format!("@{}", self.source);
        let vm = self.vm.strip_suffix(&suffix).unwrap_or(&self.vm);
        format!("{vm} from {} to {}", self.source, self.destination)
    }
}

/// The answer to which VMs to move between hosts.
pub(crate) fn of_rebalance(answer: &Rebalance) -> String {
    let steps: Vec<String> = answer.moves.iter().map(Migration::shown).collect();
    let recorded = answer.before.as_ref().map(|failure| {
        let text = failing(failure, "");
        format!(" As recorded, {text}.")
    });
    let recorded = recorded.unwrap_or_default();
    let unsure = match answer.is_unsure() {
        true => " Within their bands some may still fail.",
        false => "",
    };
    if steps.is_empty() && answer.is_balanced {
        return format!("No VM has to move: all limits hold on every host as recorded.{unsure}");
    }
    if answer.is_balanced {
        let moves = match steps.len() {
            1 => "this one move".to_owned(),
            count => format!("these {count} moves"),
        };
        // Each single move was tried; of larger sets only some were.
        let fewest = match steps.len() {
            1 => "",
            2 => " No single move suffices.",
            _ => " No single move suffices; fewer than these may, as not every set is tried.",
        };
        return format!(
            "Move {}: with {moves} all limits hold on every host.{unsure}{fewest}{recorded}",
            steps.join(", then ")
        );
    }
    let after = answer.after.as_ref();
    let after = after
        .map(|failure| failing(failure, " still"))
        .unwrap_or_default();
    let tried = format!(
        "Tried: {} sets of up to {MOST_MOVES} moves, each single move and further ones of the {CONTINUED} \
         best sets. Another set may suffice.",
        answer.sets
    );
    match steps.len() {
        0 => format!(
            "No moves are found with which all limits hold, and none that helps: {after}. {tried}"
        ),
        _ => format!(
            "No moves are found with which all limits hold. The set that comes nearest moves {}: then \
             {after}.{recorded} {tried}",
            steps.join(", then ")
        ),
    }
}

impl Removal {
    /// The subject of the sentence about the first removal.
    fn vm_or(&self, steps: usize) -> String {
        match steps {
            1 => "it".to_owned(),
            _ => format!("{} alone", self.vm),
        }
    }
}

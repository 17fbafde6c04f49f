//! What differs between two sets of recordings, for a terminal.

use stealtime_analysis::answers::cause_in_words;

use super::grid::{Grid, number, text};
use super::{Screen, Style};
use crate::difference::{Change, Comparison, Side, Word};
use crate::units::{Times, counted};

/// Names shown of VMs or recordings, and findings; JSON has all.
const NAMES: usize = 12;
/// Instead of settings, where a side has no snapshot.
pub(crate) const NO_SETTINGS: &str = "Not known: `stealtime record` puts the host's settings into a recording, \
    and both sides need them.";

/// The comparison, with at most `top` rows of changes.
#[must_use]
pub fn render(comparison: &Comparison, style: Style, top: usize) -> String {
    let mut screen = Screen::new(style);
    screen.heading("What changed");
    for finding in comparison.findings.iter().take(top.min(NAMES)) {
        screen.warn(2, finding);
    }
    let hidden = comparison.findings.len().saturating_sub(top.min(NAMES));
    if hidden > 0 {
        screen.plain(
            2,
            &format!(
                "And {} more; JSON has all.",
                counted(hidden as u64, "finding")
            ),
        );
    }
    if let Some(text) = no_change(comparison) {
        screen.plain(2, text);
    }
    sides(comparison, &mut screen);
    settings(comparison, top, &mut screen);
    changes(comparison, top, &mut screen);
    screen.text
}

/// The sentence of a comparison without findings.
pub(crate) fn no_change(comparison: &Comparison) -> Option<&'static str> {
    let lacks = |side: &Side| !side.lacks.is_empty();
    let shows_all = !lacks(&comparison.before) && !lacks(&comparison.after);
    if comparison.changes.is_empty() {
        return Some(match shows_all {
            true => "No VM is in both: give VMs the same names with --vm-of.",
            false => "Nothing is compared: no VM is in both, or recordings lack the events.",
        });
    }
    let is_quiet = comparison.findings.is_empty();
    is_quiet.then_some("No change of steal, exits or polling is beyond the noise.")
}

fn sides(comparison: &Comparison, screen: &mut Screen) {
    screen.heading("Recordings");
    for (name, side) in [("before", &comparison.before), ("after", &comparison.after)] {
        let times = Times::Ns.show(side.span_ns).replace("  s", " s");
        let paths = list(&side.recordings);
        screen.plain(2, &format!("{name}: {paths}, {times}"));
        for kernel in side.kernels.iter().take(NAMES) {
            screen.dim(4, kernel);
        }
        if let Some(text) = partial(side) {
            screen.warn(4, &text);
        }
        if !side.only_here.is_empty() {
            let text = format!("only {name}: {}", list(&side.only_here));
            screen.warn(2, &text);
        }
        if !side.guessed.is_empty() {
            let names = list(&side.guessed);
            screen.warn(
                4,
                &format!("names that are guesses, as is their match: {names}; --vm-of names VMs"),
            );
        }
        for tracepoint in &side.lacks {
            screen.warn(4, &not_compared(tracepoint));
        }
    }
    screen.dim(2, &intervals(&comparison.before, &comparison.after));
}

/// What is said of recordings that are not read whole.
pub(crate) fn partial(side: &Side) -> Option<String> {
    let names = list(&side.partial);
    (!names.is_empty()).then(|| format!("less was read than was recorded: {names}"))
}

/// What a side does not show without a tracepoint.
pub(crate) fn not_compared(tracepoint: &str) -> String {
    let quantities = match tracepoint {
        "sched_switch" => "steal is",
        _ => "time in the guest and exits are",
    };
    format!("no {tracepoint}: {quantities} not compared")
}

/// The source of the intervals.
pub(crate) fn intervals(first: &Side, second: &Side) -> String {
    let is_sliced = |side: &Side| side.batches != side.recordings.len();
    match is_sliced(first) || is_sliced(second) {
        true => "Intervals are of 95 %, by slices of each recording: chance between recordings is not in \
                 them. Three recordings or more on each side show it."
            .to_owned(),
        false => "Intervals are of 95 %, by the differences between recordings.".to_owned(),
    }
}

/// Names, the first ones of many.
pub(crate) fn list(names: &[String]) -> String {
    let mut shown: Vec<String> = names.iter().take(NAMES).cloned().collect();
    if names.len() > NAMES {
        shown.push(format!("{} more", names.len() - NAMES));
    }
    shown.join(", ")
}

fn settings(comparison: &Comparison, top: usize, screen: &mut Screen) {
    screen.heading("Settings that differ");
    let Some(settings) = &comparison.settings else {
        return screen.plain(2, NO_SETTINGS);
    };
    if settings.is_empty() {
        return screen.plain(2, "None.");
    }
    let mut grid = Grid::new(&[text("setting"), text("before"), text("after")]);
    for setting in settings.iter().take(top) {
        grid.row([
            setting.key.clone(),
            shown_setting(setting.before.as_ref()),
            shown_setting(setting.after.as_ref()),
        ]);
    }
    grid.render(screen);
    if settings.len() > top {
        let text = format!("And {} more; JSON has all.", settings.len() - top);
        screen.dim(2, &text);
    }
}

/// A setting's value; `-` where a host has none.
pub(crate) fn shown_setting(value: Option<&String>) -> String {
    value.map_or_else(|| "-".to_owned(), String::clone)
}

fn changes(comparison: &Comparison, top: usize, screen: &mut Screen) {
    screen.heading("Changes by VM");
    let mut rows: Vec<&Change> = comparison.changes.iter().collect();
    let is_noise = |change: &Change| change.word == Word::WithinNoise;
    // Within a VM what is beyond the noise; its steal in any case.
    rows.retain(|change| !is_noise(change) || change.quantity == "steal");
    let hidden = comparison.changes.len() - rows.len();
    if comparison.changes.is_empty() {
        return screen.plain(2, "None.");
    }
    screen.dim(2, "Per second of each VM's vCPU time.");
    let mut grid = Grid::new(&[
        text("VM"),
        text("quantity"),
        number("before"),
        number("after"),
        number("change"),
        number("±"),
        text("unit"),
        text("means"),
    ]);
    for change in &rows {
        let half_width = change
            .half_width
            .map(|half_width| format!("{half_width:.1}"));
        grid.row([
            change.vm.clone(),
            quantity(change),
            format!("{:.1}", change.before),
            format!("{:.1}", change.after),
            format!("{:+.1}", change.change),
            half_width.unwrap_or_else(|| "?".to_owned()),
            change.unit.to_owned(),
            word(change.word).to_owned(),
        ]);
        // Rows with the largest changes stay; in ns, as rates and times have no common unit.
        grid.weigh((change.change.abs() * 1e6) as u64);
    }
    let (omitted, _) = grid.keep(top);
    grid.render(screen);
    if omitted > 0 {
        let text = format!(
            "And {}; --top shows more, JSON has all.",
            counted(omitted as u64, "smaller row")
        );
        screen.dim(2, &text);
    }
    if hidden > 0 {
        let text = format!(
            "{} within the noise; JSON has them.",
            counted(hidden as u64, "further quantity")
        );
        screen.dim(2, &text.replace("quantitys", "quantities"));
    }
}

/// A quantity with its cause or reason.
pub(crate) fn quantity(change: &Change) -> String {
    match (change.quantity, &change.cause) {
        ("ready", Some(cause)) => format!("steal: {}", cause_in_words(cause)),
        ("exit_rate", Some(reason)) => format!("exits: {reason}"),
        ("exits", _) => "handling exits".to_owned(),
        ("guest", _) => "in the guest".to_owned(),
        (quantity, _) => quantity.to_owned(),
    }
}

/// A verdict in words.
pub(crate) fn word(word: Word) -> &'static str {
    match word {
        Word::Better => "better",
        Word::Worse => "worse",
        Word::Different => "different",
        Word::WithinNoise => "within noise",
        Word::Unknown => "no interval",
    }
}

//! Words of `whatif` that terminal and page share.

use stealtime_lab::stats::{Estimate, Verdict};
use stealtime_whatif::{
    Closeness, Delta, Document, Effect, Gain, Observed, ObservedFigure, ObservedRow, Outcome,
    PopulationChange, Ranked, Waits, Word,
};

use crate::count;

/// What a result is that was stopped.
pub(crate) const PARTIAL: &str =
    "Partial: stopped before all variants were replayed; those above were, with all seeds.";

/// What all numbers are of a recording that was not read whole.
pub(crate) const PARTIAL_RECORDING: &str =
    "Partial: less was read than was recorded; all below is of what was read.";

/// What the columns are.
pub(crate) const LEGEND: &str = "All in ms per second. Net: given back and freed, less work that is not \
    done any more and what the host's tasks wait longer. Variants are ranked by it, and its 95% interval \
    decides what they mean. Given back: waiting for a CPU that the vCPUs of all VMs are spared. Freed: \
    CPU time of the host that is not spent in halts any more, on polling or on sleeping. Work: how much \
    more (+) or less (-) of the recorded work all get done. Loses most: the VM, or the host's tasks with \
    VMMs' other threads among them, by waiting longer or by getting less done.";

/// What the words are.
pub(crate) const WORDS: &str = "better, worse: the net interval leaves out 0. mixed: some gain, some lose. \
    less CPU: CPU time is freed, no VM gains or loses beyond noise. noise: the net interval includes 0. \
    < error: less than the replay as recorded is off by itself.";

/// What the VMs' figures are.
pub(crate) const POPULATION: &str = "Means over the replays. Shares are of the vCPUs' time. Done: the share of \
    its recorded demand that a VM got done. Host: CPU time outside of guest code, for exits and halts. \
    Copies (#2 and later) were not recorded: they have no comparison.";

/// A ranking notes the cost of switches for so many of its first rows.
const BREAK_EVENS: usize = 3;

/// What was recorded.
pub(crate) fn facts(document: &Document) -> String {
    format!(
        "{:.3} s, {} CPUs, {} events",
        document.span_ns as f64 / 1e9,
        document.cpus,
        count(document.events)
    )
}

/// How many waits are understood.
pub(crate) fn waits(waits: &Waits) -> String {
    format!(
        "Waits resolved: {:.1}% ({} ended by other tasks, {} by timers, {} of unknown cause)",
        waits.resolved_percent, waits.edges, waits.timers, waits.unknown
    )
}

/// How far the replay is off.
pub(crate) fn errors(error: &Closeness) -> String {
    format!(
        "median {:.1}%, p90 {:.1}%, worst {:.1}% of the span; exits by reason within {:.1}%",
        error.median_percent, error.p90_percent, error.worst_percent, error.exits_worst_percent
    )
}

/// VMs that a variant takes away; `None` for none.
pub(crate) fn removed(change: &PopulationChange) -> Option<String> {
    let removed = &change.removed;
    (!removed.is_empty())
        .then(|| format!("Taken away, and in no comparison: {}", removed.join(", ")))
}

/// What a difference means.
pub(crate) fn delta_word(delta: &Delta) -> &'static str {
    match delta.difference.verdict {
        Verdict::Same => "the same",
        Verdict::WithinNoise => "within noise",
        _ if delta.below_error => "below the replay's error",
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Different => "different",
        Verdict::Unknown => "one replay only",
    }
}

/// What a variant comes to over all, with the parts of it; `None` where all is the same.
pub(crate) fn net(gain: &Gain) -> Option<String> {
    (gain.outcome != Outcome::Same).then(|| {
        format!(
            "net: {} ms per second ({}): waiting given back {}, CPU time freed {}, work {}",
            estimate(&gain.net_change),
            word(gain.outcome),
            interval(&gain.given_back),
            interval(&gain.cpu_freed),
            interval(&gain.work),
        )
    })
}

/// Of the first rows of a ranking, each with its rank.
pub(crate) fn break_evens(rows: &[Ranked<'_>]) -> Vec<(usize, String)> {
    let rows = (1..).zip(rows).take(BREAK_EVENS);
    rows.filter_map(|(rank, row)| Some((rank, break_even(row.gain)?)))
        .collect()
}

/// At which cost of a switch a gain is gone; `None` where it does not come with more switches.
pub(crate) fn break_even(gain: &Gain) -> Option<String> {
    let cost_us = gain.break_even_us?;
    Some(format!(
        "{} more switches to another task a second: the gain is gone where each costs {} us of cold caches, \
         which a replay does not count",
        amount(gain.displaced.change.mean),
        amount(cost_us),
    ))
}

/// A change with its interval.
pub(crate) fn interval(effect: &Effect) -> String {
    estimate(&effect.change)
}

/// The same of an estimate.
pub(crate) fn estimate(estimate: &Estimate) -> String {
    match estimate.half_width {
        Some(half) => format!("{} ±{}", signed(estimate.mean), amount(half)),
        None => signed(estimate.mean),
    }
}

/// With a decimal below 1,000.
pub(crate) fn amount(value: f64) -> String {
    match value.abs() >= 999.95 {
        true => format!("{value:.0}"),
        false => format!("{value:.1}"),
    }
}

/// With its sign, and no sign where nothing shows.
pub(crate) fn signed(value: f64) -> String {
    match amount(value.abs()).as_str() {
        "0.0" => "0.0".to_owned(),
        text if value < 0.0 => format!("-{text}"),
        text => format!("+{text}"),
    }
}

/// What a variant means, in a word.
pub(crate) const fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Better => "better",
        Outcome::Mixed => "mixed",
        Outcome::LessCpu => "less CPU",
        Outcome::Same => "the same",
        Outcome::WithinNoise => "noise",
        Outcome::BelowError => "< error",
        Outcome::Worse => "worse",
    }
}

pub(crate) fn spread(spread: Option<f64>) -> String {
    spread.map_or_else(|| "-".to_owned(), |spread| format!("{spread:.1}"))
}

/// What the figures of a verdict are.
pub(crate) const FIGURES: &str = "All figures of the verdict and the ranking. Of waiting and of freed CPU time more \
    is better. The verdict rests on those with a *.";

/// What a figure means.
pub(crate) const fn word_of(word: Word) -> &'static str {
    match word {
        Word::Better => "better",
        Word::Worse => "worse",
        Word::Same => "the same",
        Word::WithinNoise => "within noise",
        Word::BelowError => "below error",
        Word::Unknown => "one replay",
    }
}

/// What recordings say of a figure's word; a star where the verdict rests on it.
pub(crate) fn seen_word(figure: &ObservedFigure) -> String {
    let star = if figure.decides { "*" } else { "" };
    let word = match figure.is_refuted {
        Some(true) => "refuted",
        Some(false) => "stands",
        None => "-",
    };
    format!("{word}{star}")
}

pub(crate) fn refuted(observed: &Observed) -> String {
    let figures = || observed.figures.iter();
    let judged = figures().filter(|figure| figure.decides).count();
    match figures().any(|figure| figure.spread.is_some()) {
        true => format!(
            "{} of {judged} figures that the verdict rests on are refuted: the seen change is off by more than \
             interval and spread together, and it does not go that way beyond the spread.",
            observed.refuted
        ),
        false => {
            "Without a spread nothing is refuted: give one more of each, by --again and --seen."
                .to_owned()
        }
    }
}

pub(crate) const fn yes(row: &ObservedRow) -> &'static str {
    if row.is_right { "yes" } else { "no" }
}

pub(crate) fn summary(observed: &Observed) -> String {
    let partial = match observed.partial.is_empty() {
        true => String::new(),
        false => format!(
            "Less was read than was recorded of {}. ",
            observed.partial.join(", ")
        ),
    };
    let (right, rows) = (observed.right, observed.rows.len());
    let (beyond, signs) = (observed.beyond_spread, observed.right_signs);
    match observed.rows.iter().any(|row| row.spread.is_some()) {
        true => format!(
            "{partial}{right} of {rows} right: within 30% of what was seen, or within the spread, which is how \
             far recordings that should be alike are from each other. Of {beyond} changes beyond the \
             spread {signs} have the right sign."
        ),
        false => format!(
            "{partial}{right} of {rows} right: within 30% of what was seen. Of {beyond} that changed {signs} have \
             the right sign. How far recordings differ that should be alike is not known: give one more \
             of each, by --again and --seen."
        ),
    }
}

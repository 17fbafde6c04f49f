//! `whatif` as tables.

mod observed;
mod population;
mod ranking;
pub mod self_test;

use std::fmt::Write as _;

use stealtime_whatif::{CLOSE, Delta, Document, Exits, ReplayedVcpu, TOO_FAR, Variant};

use super::time::vcpu_number;
use super::{Style, decision};
use crate::escape;
use crate::units::wrap;
use crate::whatif_text::{
    PARTIAL, PARTIAL_RECORDING, break_even, delta_word, errors, facts, net, waits,
};

/// What is known before variants are replayed.
#[must_use]
pub fn before(document: &Document) -> String {
    let mut output = String::new();
    let path = escape::terminal(&document.path);
    let _ = writeln!(output, "{path}: {}", facts(document));
    if document.recording_partial {
        let _ = writeln!(output, "{PARTIAL_RECORDING}");
    }
    let _ = writeln!(output, "{}", waits(&document.waits));
    for line in &document.assumed {
        paragraph(&mut output, "", &format!("Assumed: {line}"));
    }
    paragraph(
        &mut output,
        "",
        &format!("Fit: {}", document.fit.sentence()),
    );
    for lack in &document.lacks {
        paragraph(&mut output, "", &format!("Lacking: {}", lack.shown()));
    }
    for line in document.presence.lines() {
        paragraph(&mut output, "", &format!("In part: {line}"));
    }
    for line in &document.not_answerable {
        paragraph(&mut output, "", &format!("Not answerable: {line}"));
    }
    output.push_str("\nReplay under the recorded knobs (recorded > replayed, % of the span)\n");
    let head = "  VM            vCPU      running         ready        halted       polling";
    let _ = writeln!(output, "{head}  wakeups p50     p99, us");
    for vcpu in &document.vcpus {
        vcpu_row(&mut output, vcpu);
    }
    if document
        .vcpus
        .iter()
        .any(|vcpu| vcpu.recorded.unknown_percent >= UNKNOWN_SHOWN)
    {
        output.push_str(
            "  Halted in the replay includes time of unknown state, which is not part of the error.\n",
        );
    }
    let _ = writeln!(output, "  error: {}", errors(&document.error));
    if !document.error.is_close() {
        let sentence = format!("Note: {TOO_FAR}. {CLOSE}");
        paragraph(&mut output, "  ", &sentence);
    }
    if let Some(worst) = worst(&document.vcpus) {
        let _ = writeln!(output, "  most off: {}", escape::terminal(&worst));
    }
    if !document.exits.is_empty() {
        paragraph(&mut output, "  ", &exits(&document.exits));
    }
    output
}

/// What variants do.
#[must_use]
pub fn after(document: &Document) -> String {
    let mut output = String::new();
    if let Some(auto) = &document.auto {
        ranking::auto(&mut output, auto, document.error.is_close());
    } else {
        if document.variants.len() > 1 {
            ranking::grid(&mut output, &document.variants, document.error.is_close());
        }
        if document.variants.len() <= MOST_DETAILED {
            for variant in &document.variants {
                changes(&mut output, variant);
            }
        }
    }
    if let Some(observed) = &document.seen {
        observed::table(&mut output, observed);
    }
    if let Some(advice) = &document.advice {
        output.push('\n');
        paragraph(&mut output, "", advice);
    }
    if document.partial {
        output.push('\n');
        output.push_str(PARTIAL);
        output.push('\n');
    }
    for path in &document.exported {
        let _ = writeln!(output, "\nWritten: {}", escape::terminal(path));
    }
    if let Some(auto) = &document.auto {
        output.push_str(&decision::render(&auto.decision, Style::new(false)));
    }
    output
}

/// More variants are in one table, a row each: the details of seven do not fit on a screen.
const MOST_DETAILED: usize = 6;

/// The largest error of a vCPU's time.
fn worst(vcpus: &[ReplayedVcpu]) -> Option<String> {
    let errors = vcpus
        .iter()
        .flat_map(|vcpu| vcpu.error().named().map(|error| (vcpu, error)));
    let (vcpu, (state, percent)) = errors.max_by(|a, b| a.1.1.abs().total_cmp(&b.1.1.abs()))?;
    Some(format!(
        "{} vCPU {} is {} for {percent:+.1}% of the span",
        vcpu.vm,
        vcpu_number(vcpu.vcpu),
        state
    ))
}

/// Reasons that are named, within three lines; the others are counted.
const MOST_REASONS: usize = 8;

/// Exits by reason.
fn exits(exits: &[Exits]) -> String {
    let count = |exit: &Exits| format!("{} {} > {}", exit.reason, exit.recorded, exit.replayed);
    let mut shown: Vec<String> = exits.iter().take(MOST_REASONS).map(count).collect();
    if exits.len() > MOST_REASONS {
        shown.push(format!("{} more reasons", exits.len() - MOST_REASONS));
    }
    format!("exits: {}", shown.join(", "))
}

fn vcpu_row(output: &mut String, vcpu: &ReplayedVcpu) {
    let (recorded, replayed) = (&vcpu.recorded, &vcpu.replayed);
    let pair = |a: f64, b: f64| format!("{a:5.1} >{b:5.1}");
    let micros = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| (ns / 1_000).to_string());
    let _ = writeln!(
        output,
        "  {:<13} {:>4} {:>12} {:>13} {:>13} {:>13}  {:>11} {:>11}",
        escape::short(&vcpu.vm, 13),
        vcpu_number(vcpu.vcpu),
        pair(recorded.run_percent, replayed.run_percent),
        pair(recorded.ready_percent, replayed.ready_percent),
        pair(recorded.halted_percent, replayed.halted_percent),
        pair(recorded.poll_percent, replayed.poll_percent),
        format!(
            "{}>{}",
            micros(recorded.wakeup_p50_ns),
            micros(replayed.wakeup_p50_ns)
        ),
        format!(
            "{}>{}",
            micros(recorded.wakeup_p99_ns),
            micros(replayed.wakeup_p99_ns)
        ),
    );
}

fn changes(output: &mut String, variant: &Variant) {
    let _ = writeln!(output, "\n{}", escape::terminal(&variant.name));
    output.push_str("  VM            quantity          before      after          difference\n");
    for change in &variant.changes {
        change_row(output, change);
    }
    if let Some(change) = &variant.population {
        population::table(output, change);
    }
    if let Some(net) = net(&variant.gain) {
        paragraph(output, "  ", &net);
    }
    if let Some(break_even) = break_even(&variant.gain) {
        paragraph(output, "  ", &break_even);
    }
    paragraph(output, "  ", &format!("verdict: {}", variant.verdict));
}

fn change_row(output: &mut String, change: &Delta) {
    let estimate = &change.difference.estimate;
    let word = delta_word(change);
    let _ = writeln!(
        output,
        "  {:<13} {:<10} {:<5}{:>9.1} {:>10.1} {:>+9.1} ±{:<8.1} {word}",
        escape::short(&change.vm, 13),
        change.quantity,
        change.unit,
        change.before,
        change.after,
        estimate.mean,
        estimate.half_width.unwrap_or(0.0),
    );
}

/// Unknown time of a vCPU, in percent, from which on a note explains why its halted times differ.
const UNKNOWN_SHOWN: f64 = 5.0;

/// Columns of a terminal, as of [`Style::new`](super::Style::new).
const WIDTH: usize = 100;

/// Text that goes on under itself.
pub(super) fn paragraph(output: &mut String, indent: &str, text: &str) {
    let text = escape::terminal(text).into_owned();
    let mut hang = "";
    for line in wrap(&text, WIDTH - indent.len() - 2) {
        let _ = writeln!(output, "{indent}{hang}{line}");
        hang = "  ";
    }
}

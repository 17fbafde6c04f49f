//! `whatif` as tables.

mod observed;
mod ranking;
pub mod self_test;

use std::fmt::Write as _;

use stealtime_whatif::{Both, CLOSE, Delta, Document, Exits, TOO_FAR, Variant};

use super::time::vcpu_number;
use crate::escape;
use crate::units::wrap;
use crate::whatif_text::{PARTIAL, PARTIAL_RECORDING, delta_word, errors, facts, net, waits};

/// What is known before variants are replayed.
#[must_use]
pub fn before(document: &Document) -> String {
    let mut out = String::new();
    let path = escape::terminal(&document.path);
    let _ = writeln!(out, "{path}: {}", facts(document));
    if document.recording_partial {
        let _ = writeln!(out, "{PARTIAL_RECORDING}");
    }
    let _ = writeln!(out, "{}", waits(&document.waits));
    for line in &document.assumed {
        paragraph(&mut out, "", &format!("Assumed: {line}"));
    }
    paragraph(&mut out, "", &format!("Fit: {}", document.fit.sentence()));
    for lack in &document.lacks {
        paragraph(&mut out, "", &format!("Lacking: {}", lack.shown()));
    }
    for line in document.presence.lines() {
        paragraph(&mut out, "", &format!("In part: {line}"));
    }
    for line in &document.not_answerable {
        paragraph(&mut out, "", &format!("Not answerable: {line}"));
    }
    out.push_str("\nReplay under the recorded knobs (recorded > replayed, % of the span)\n");
    let head = "  VM            vCPU      running         ready        halted       polling";
    let _ = writeln!(out, "{head}  wakeups p50     p99, us");
    for vcpu in &document.vcpus {
        vcpu_row(&mut out, vcpu);
    }
    if document
        .vcpus
        .iter()
        .any(|both| both.recorded.unknown_percent >= 5.0)
    {
        out.push_str(
            "  Halted in the replay is also what nobody knows of; that is not part of the error.\n",
        );
    }
    let _ = writeln!(out, "  error: {}", errors(&document.error));
    if !document.error.is_close() {
        let sentence = format!("Note: {TOO_FAR}. {CLOSE}");
        paragraph(&mut out, "  ", &sentence);
    }
    if let Some(worst) = worst(&document.vcpus) {
        let _ = writeln!(out, "  most off: {}", escape::terminal(&worst));
    }
    if !document.exits.is_empty() {
        paragraph(&mut out, "  ", &exits(&document.exits));
    }
    out
}

/// What variants do.
#[must_use]
pub fn after(document: &Document) -> String {
    let mut out = String::new();
    if let Some(auto) = &document.auto {
        ranking::auto(&mut out, auto, document.error.is_close());
    } else {
        if document.variants.len() > 1 {
            ranking::grid(&mut out, &document.variants, document.error.is_close());
        }
        if document.variants.len() <= MOST_DETAILED {
            for one in &document.variants {
                variant(&mut out, one);
            }
        }
    }
    if let Some(seen) = &document.seen {
        observed::table(&mut out, seen);
    }
    if let Some(advice) = &document.advice {
        out.push('\n');
        paragraph(&mut out, "", advice);
    }
    if document.partial {
        out.push('\n');
        out.push_str(PARTIAL);
        out.push('\n');
    }
    for path in &document.exported {
        let _ = writeln!(out, "\nWritten: {}", escape::terminal(path));
    }
    out
}

/// More variants are in one table, a row each.
const MOST_DETAILED: usize = 6;

/// The largest error of a vCPU's time.
fn worst(vcpus: &[Both]) -> Option<String> {
    let all = vcpus
        .iter()
        .flat_map(|both| both.off().named().map(|off| (both, off)));
    let (both, (what, by)) = all.max_by(|a, b| a.1.1.abs().total_cmp(&b.1.1.abs()))?;
    Some(format!(
        "{} vCPU {} is {} for {by:+.1}% of the span",
        both.vm,
        vcpu_number(both.vcpu),
        what
    ))
}

/// Reasons that are named; the others are counted.
const MOST_REASONS: usize = 8;

/// Exits by reason.
fn exits(exits: &[Exits]) -> String {
    let one = |exit: &Exits| format!("{} {} > {}", exit.reason, exit.recorded, exit.replayed);
    let mut shown: Vec<String> = exits.iter().take(MOST_REASONS).map(one).collect();
    if exits.len() > MOST_REASONS {
        shown.push(format!("{} more reasons", exits.len() - MOST_REASONS));
    }
    format!("exits: {}", shown.join(", "))
}

fn vcpu_row(out: &mut String, vcpu: &Both) {
    let (was, is) = (&vcpu.recorded, &vcpu.replayed);
    let pair = |a: f64, b: f64| format!("{a:5.1} >{b:5.1}");
    let micros = |ns: Option<u64>| ns.map_or("-".to_owned(), |ns| (ns / 1_000).to_string());
    let _ = writeln!(
        out,
        "  {:<13} {:>4} {:>12} {:>13} {:>13} {:>13}  {:>11} {:>11}",
        escape::short(&vcpu.vm, 13),
        vcpu_number(vcpu.vcpu),
        pair(was.run_percent, is.run_percent),
        pair(was.ready_percent, is.ready_percent),
        pair(was.halted_percent, is.halted_percent),
        pair(was.poll_percent, is.poll_percent),
        format!("{}>{}", micros(was.wakeup_p50_ns), micros(is.wakeup_p50_ns)),
        format!("{}>{}", micros(was.wakeup_p99_ns), micros(is.wakeup_p99_ns)),
    );
}

fn variant(out: &mut String, variant: &Variant) {
    let _ = writeln!(out, "\n{}", escape::terminal(&variant.name));
    out.push_str("  VM            quantity          before      after          difference\n");
    for change in &variant.changes {
        change_row(out, change);
    }
    if let Some(net) = net(&variant.gain) {
        paragraph(out, "  ", &net);
    }
    paragraph(out, "  ", &format!("verdict: {}", variant.verdict));
}

fn change_row(out: &mut String, change: &Delta) {
    let estimate = &change.difference.estimate;
    let word = delta_word(change);
    let _ = writeln!(
        out,
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

/// Columns of a terminal.
const WIDTH: usize = 100;

/// Text that goes on under itself.
pub(super) fn paragraph(out: &mut String, indent: &str, text: &str) {
    let text = escape::terminal(text).into_owned();
    let mut hang = "";
    for line in wrap(&text, WIDTH - indent.len() - 2) {
        let _ = writeln!(out, "{indent}{hang}{line}");
        hang = "  ";
    }
}

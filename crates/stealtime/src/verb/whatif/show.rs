//! Results as tables.

use std::fmt::Write as _;

use stealtime_lab::stats::Verdict;
use stealtime_report::{escape, vcpu_number};

use super::Report;
use super::result::{Both, CLOSE, Change, Error, Exits, TOO_FAR, Variant, Waits};
use super::show_gain::{self, paragraph};
use super::show_seen;

/// What is known before variants are replayed.
pub(super) fn before(report: &Report) -> String {
    let mut out = String::new();
    let path = escape::terminal(&report.path);
    let _ = writeln!(out, "{path}: {}", facts(report));
    if report.recording_partial {
        let _ = writeln!(out, "{PARTIAL_RECORDING}");
    }
    let _ = writeln!(out, "{}", waits(&report.waits));
    for line in &report.assumed {
        paragraph(&mut out, "", &format!("Assumed: {line}"));
    }
    for lack in &report.lacks {
        paragraph(&mut out, "", &format!("Lacking: {}", lack.shown()));
    }
    for line in report.presence.lines() {
        paragraph(&mut out, "", &format!("In part: {line}"));
    }
    for line in &report.not_answerable {
        paragraph(&mut out, "", &format!("Not answerable: {line}"));
    }
    out.push_str("\nReplay under the recorded knobs (recorded > replayed, % of the span)\n");
    let head = "  VM            vCPU      running         ready        halted       polling";
    let _ = writeln!(out, "{head}  wakeups p50     p99, us");
    for vcpu in &report.vcpus {
        vcpu_row(&mut out, vcpu);
    }
    if report
        .vcpus
        .iter()
        .any(|both| both.recorded.unknown_percent >= 5.0)
    {
        out.push_str(
            "  Halted in the replay is also what nobody knows of; that is not part of the error.\n",
        );
    }
    let _ = writeln!(out, "  error: {}", errors(&report.error));
    if !report.error.is_close() {
        let sentence = format!("Note: {TOO_FAR}. {CLOSE}");
        paragraph(&mut out, "  ", &sentence);
    }
    if let Some(worst) = worst(&report.vcpus) {
        let _ = writeln!(out, "  most off: {}", escape::terminal(&worst));
    }
    if !report.exits.is_empty() {
        paragraph(&mut out, "  ", &exits(&report.exits));
    }
    out
}

/// What variants do.
pub(super) fn after(report: &Report) -> String {
    let mut out = String::new();
    if let Some(auto) = &report.auto {
        show_gain::auto(&mut out, auto, report.error.is_close());
    } else {
        if report.variants.len() > 1 {
            show_gain::grid(&mut out, &report.variants, report.error.is_close());
        }
        if report.variants.len() <= MOST_DETAILED {
            for one in &report.variants {
                variant(&mut out, one);
            }
        }
    }
    if let Some(seen) = &report.seen {
        show_seen::table(&mut out, seen);
    }
    if let Some(advice) = &report.advice {
        out.push('\n');
        paragraph(&mut out, "", advice);
    }
    if report.partial {
        out.push('\n');
        out.push_str(PARTIAL);
        out.push('\n');
    }
    for path in &report.exported {
        let _ = writeln!(out, "\nWritten: {}", escape::terminal(path));
    }
    out
}

/// What a result is that was stopped.
pub(super) const PARTIAL: &str =
    "Partial: stopped before all variants were replayed; those above were, with all seeds.";

/// What all numbers are of a recording that was not read whole.
pub(super) const PARTIAL_RECORDING: &str =
    "Partial: less was read than was recorded; all below is of what was read.";

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
pub(super) fn exits(exits: &[Exits]) -> String {
    let one = |exit: &Exits| format!("{} {} > {}", exit.reason, exit.recorded, exit.replayed);
    let mut shown: Vec<String> = exits.iter().take(MOST_REASONS).map(one).collect();
    if exits.len() > MOST_REASONS {
        shown.push(format!("{} more reasons", exits.len() - MOST_REASONS));
    }
    format!("exits: {}", shown.join(", "))
}

/// What was recorded.
pub(super) fn facts(report: &Report) -> String {
    format!(
        "{:.3} s, {} CPUs, {} events",
        report.span_ns as f64 / 1e9,
        report.cpus,
        report.events
    )
}

/// How many waits are understood.
pub(super) fn waits(waits: &Waits) -> String {
    format!(
        "Waits resolved: {:.1}% ({} ended by other tasks, {} by timers, {} by nobody known)",
        waits.resolved_percent, waits.edges, waits.timers, waits.unknown
    )
}

/// How far the replay is off.
pub(super) fn errors(error: &Error) -> String {
    format!(
        "median {:.1}%, p90 {:.1}%, worst {:.1}% of the span; exits by reason within {:.1}%",
        error.median_percent, error.p90_percent, error.worst_percent, error.exits_worst_percent
    )
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
    if let Some(net) = show_gain::net(&variant.gain) {
        paragraph(out, "  ", &net);
    }
    paragraph(out, "  ", &format!("verdict: {}", variant.verdict));
}

/// What a difference means.
pub(super) fn word(change: &Change) -> &'static str {
    match change.difference.verdict {
        Verdict::Same => "the same",
        Verdict::WithinNoise => "within noise",
        _ if change.below_error => "below the replay's error",
        Verdict::Better => "better",
        Verdict::Worse => "worse",
        Verdict::Different => "different",
        Verdict::Unknown => "one replay only",
    }
}

fn change_row(out: &mut String, change: &Change) {
    let estimate = &change.difference.estimate;
    let word = word(change);
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

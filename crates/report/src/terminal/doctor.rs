//! What is found on a host, for a terminal.

use std::fmt::Write as _;

use stealtime_doctor::{Change, Diagnosis, Finding, Mechanism, State, Urgency};

use super::Style;
use super::decision::{self, manager_name};
use crate::escape;
use crate::units::{counted, wrap};

/// Findings that are shown.
const MOST_FINDINGS: usize = 40;

/// Findings with their commands, then the mechanisms.
#[must_use]
pub fn render(diagnosis: &Diagnosis, style: Style) -> String {
    let mut page = String::new();
    let host = diagnosis.host.as_deref().unwrap_or("this host");
    let count = diagnosis.findings.len();
    let title = match count {
        0 => format!("Nothing on {host} costs guests time, as far as its settings show"),
        _ => format!("{} on {host}", counted(count as u64, "finding")),
    };
    let _ = writeln!(page, "{}", style.bold(&escape::terminal(&title)));
    for found in diagnosis.findings.iter().take(MOST_FINDINGS) {
        page.push('\n');
        finding(found, style, &mut page);
    }
    if count > MOST_FINDINGS {
        let _ = writeln!(
            page,
            "\n{} more: --format json has all.",
            count - MOST_FINDINGS
        );
    }
    let _ = writeln!(page, "\n{}", style.bold("The five mechanisms"));
    for mechanism in &diagnosis.mechanisms {
        row(mechanism, style, &mut page);
    }
    if !diagnosis.missing.is_empty() {
        let _ = writeln!(page, "\n{}", style.bold("Not read, so not judged"));
        for missing in &diagnosis.missing {
            lines(
                &format!("{}: {}", missing.what, missing.why),
                2,
                style,
                &mut page,
            );
        }
    }
    page.push_str(&decision::render(&diagnosis.decision, style));
    page
}

fn finding(finding: &Finding, style: Style, page: &mut String) {
    let word = match finding.urgency {
        Urgency::Costs => "costs",
        Urgency::Likely => "likely",
        Urgency::Depends => "depends",
    };
    let title = format!("{word}: {} [{}]", finding.title, finding.id);
    for (index, line) in wrap(&escape::terminal(&title), style.width)
        .iter()
        .enumerate()
    {
        let indent = if index == 0 { "" } else { "  " };
        let line = match finding.urgency {
            Urgency::Costs => style.warn(line),
            _ => style.bold(line),
        };
        let _ = writeln!(page, "{indent}{line}");
    }
    if finding.vms.len() > 1 {
        let names = finding.vms.iter().take(8).map(String::as_str);
        let names: Vec<&str> = names.collect();
        let text = format!(
            "{}: {}",
            counted(finding.vms.len() as u64, "VM"),
            names.join(", ")
        );
        lines(&text, 2, style, page);
    }
    for evidence in &finding.evidence {
        lines(evidence, 2, style, page);
    }
    lines(&finding.advice, 2, style, page);
    for change in &finding.changes {
        commands(change, style, page);
    }
}

/// Commands are lines of their own, so that they can be copied: they are not wrapped.
fn commands(change: &Change, style: Style, page: &mut String) {
    steps("do", &change.set, style, page);
    steps("undo", &change.undo, style, page);
    let acts = change.acts.as_deref().map(|acts| format!("acts {acts}"));
    note(
        &[acts.as_deref().unwrap_or_default(), &change.note],
        style,
        page,
    );
    steps("keep", &change.keep, style, page);
    steps("forget", &change.forget, style, page);
    for steps_by in &change.managers {
        let name = manager_name(steps_by.manager);
        note(
            &[
                &format!("by {name}, acts {}", steps_by.acts),
                &steps_by.note,
            ],
            style,
            page,
        );
        steps("do", &steps_by.set, style, page);
        steps("undo", &steps_by.undo, style, page);
    }
}

fn steps(label: &str, steps: &[String], style: Style, page: &mut String) {
    for step in steps {
        let label = style.dim(&format!("{label:>8}: "));
        let _ = writeln!(page, "{label}{}", escape::terminal(step));
    }
}

fn note(parts: &[&str], style: Style, page: &mut String) {
    let parts = parts.iter().filter(|part| !part.is_empty()).copied();
    let text = parts.collect::<Vec<_>>().join("; ");
    for line in wrap(&escape::terminal(&text), style.width.saturating_sub(10)) {
        let _ = writeln!(page, "{:10}{}", "", style.dim(&line));
    }
}

fn row(mechanism: &Mechanism, style: Style, page: &mut String) {
    let state = match mechanism.state {
        State::On => "on",
        State::Off => "off",
        State::Absent => "not in this kernel",
        State::Unknown => "unknown",
    };
    let _ = writeln!(page, "  {}: {state}", mechanism.name);
    lines(
        &format!("kernel: {}; {}", mechanism.kernel, mechanism.evidence),
        4,
        style,
        page,
    );
    lines(&format!("would it pay: {}", mechanism.pays), 4, style, page);
}

fn lines(text: &str, indent: usize, style: Style, page: &mut String) {
    for line in wrap(&escape::terminal(text), style.width.saturating_sub(indent)) {
        let _ = writeln!(page, "{:indent$}{line}", "");
    }
}

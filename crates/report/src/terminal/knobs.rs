//! The reference of all knobs for a terminal.

use stealtime_lab::knobs::reference::{Entry, WorkloadEntry};

use super::Style;
use crate::units::wrap;

/// Columns that explanations are indented by.
const INDENT: usize = 4;

/// These knobs, one after the other, under the first part of their names.
#[must_use]
pub fn render(entries: &[Entry], style: Style) -> String {
    let mut out = String::new();
    let mut group = "";
    for entry in entries {
        let this = entry.name.split('.').next().unwrap_or_default();
        if this != group {
            if !group.is_empty() {
                out.push('\n');
            }
            group = this;
            out.push_str(&style.bold(&format!("{this}.")));
            out.push('\n');
        }
        out.push_str(&format!("  {} = {}\n", entry.name, entry.default));
        let (about, values) = (entry.about, &entry.values);
        let owner = match entry.upstream {
            true => entry.source.to_owned(),
            false => format!("our name: {}", entry.source),
        };
        let texts = [
            format!("{about}."),
            format!("Values: {values}. [{owner}]"),
            format!("Replay: {}.", entry.replay_says),
            on_host(entry),
        ];
        for text in texts {
            for line in wrap(&text, style.width.saturating_sub(INDENT)) {
                out.push_str(&" ".repeat(INDENT));
                out.push_str(&style.dim(&line));
                out.push('\n');
            }
        }
    }
    out
}

/// How a real host gets the value.
fn on_host(entry: &Entry) -> String {
    let host = &entry.on_host;
    let (Some(set), Some(undo), Some(acts)) = (&host.set, &host.undo, &host.acts) else {
        return format!("Host: {}.", host.note);
    };
    let note = match host.note.is_empty() {
        true => String::new(),
        false => format!(" ({})", host.note),
    };
    format!("Host: {set}, {acts}. Undo: {undo}.{note}")
}

/// These workloads with their parameters.
#[must_use]
pub fn render_workloads(entries: &[WorkloadEntry], style: Style) -> String {
    let mut out = String::new();
    let mut indented = |indent: usize, text: &str, dim: bool| {
        for line in wrap(text, style.width.saturating_sub(indent)) {
            out.push_str(&" ".repeat(indent));
            out.push_str(&if dim { style.dim(&line) } else { line });
            out.push('\n');
        }
    };
    for entry in entries {
        indented(0, &format!("{}: {}", entry.name, entry.about), false);
        for parameter in &entry.parameters {
            indented(
                2,
                &format!("{} = {}", parameter.name, parameter.default),
                false,
            );
            let text = format!("{}. Values: {}.", parameter.about, parameter.values);
            indented(INDENT, &text, true);
        }
    }
    out
}

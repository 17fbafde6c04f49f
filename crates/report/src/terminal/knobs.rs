//! The reference of all knobs for a terminal.

use stealtime_lab::knobs::reference::{Entry, WorkloadEntry};

use super::{Screen, Style};

/// Columns that explanations are indented by.
const INDENT: usize = 4;

/// These knobs, one after the other, under the first part of their names.
#[must_use]
pub fn render(entries: &[Entry], style: Style) -> String {
    let mut screen = Screen::new(style);
    let mut group = "";
    for entry in entries {
        let prefix = entry.name.split('.').next().unwrap_or_default();
        if prefix != group {
            group = prefix;
            screen.heading(&format!("{prefix}."));
        }
        screen.line(&format!("  {} = {}", entry.name, entry.default));
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
            screen.dim(INDENT, &text);
        }
    }
    screen.text
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
    let mut screen = Screen::new(style);
    for entry in entries {
        screen.plain(0, &format!("{}: {}", entry.name, entry.about));
        for parameter in &entry.parameters {
            screen.plain(2, &format!("{} = {}", parameter.name, parameter.default));
            let text = format!("{}. Values: {}.", parameter.about, parameter.values);
            screen.dim(INDENT, &text);
        }
    }
    screen.text
}

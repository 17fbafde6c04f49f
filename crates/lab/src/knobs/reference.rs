//! All knobs for readers: `stealtime knobs` and `docs/knobs.md`.

use std::fmt::Write as _;

use serde::Serialize;

use super::{Knob, Source, all};

/// A knob as the reference has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// `switch`, `number`, `time`, `cpus`, `choice` or `text`.
    pub kind: &'static str,
    /// What its values look like.
    pub values: String,
    /// Its default, as one would write it.
    pub default: String,
    /// What it does.
    pub about: &'static str,
    /// Whether upstream has this name.
    pub upstream: bool,
    /// What upstream calls it, or where ours comes from.
    pub source: &'static str,
}

/// All knobs in the order of the reference.
#[must_use]
pub fn entries() -> Vec<Entry> {
    all().map(entry).collect()
}

fn entry(knob: &Knob) -> Entry {
    let (upstream, source) = match knob.source {
        Source::Upstream(source) => (true, source),
        Source::Ours(source) => (false, source),
    };
    let default = knob.default().to_string();
    Entry {
        name: knob.full_name(),
        kind: knob.kind.name(),
        values: knob.kind.syntax(),
        default: if default.is_empty() {
            "none".to_owned()
        } else {
            default
        },
        about: knob.about,
        upstream,
        source,
    }
}

/// The reference as Markdown: `docs/knobs.md` of all knobs.
#[must_use]
pub fn markdown(entries: &[Entry]) -> String {
    let mut text = String::from(
        "# Knobs\n\n\
         Written by `stealtime knobs --format markdown`; defaults are those of Linux 7.2 and of the\n\
         simulated host. A name of upstream is marked with what it belongs to; all others are ours.\n\
         Times take `ns`, `us`, `ms` or `s`; a number alone is in ns. `NAME` is a VM's or a group's\n\
         name, or `*` for all. `vm.NAME.workload.PARAMETER` sets a parameter of the workload;\n\
         `task.NAME.count`, `task.NAME.nice` and `task.NAME.workload.PARAMETER` are of the host's tasks.\n",
    );
    let mut group = String::new();
    for entry in entries {
        let this = entry.name.split('.').next().unwrap_or_default().to_owned();
        if this != group {
            let _ = write!(
                text,
                "\n## {this}\n\n| knob | values | default | does | name of |\n|---|---|---|---|---|\n"
            );
            group = this;
        }
        let source = cell(entry.source);
        let owner = match entry.upstream {
            true => source,
            false => format!("ours: {source}"),
        };
        let _ = writeln!(
            text,
            "| `{}` | {} | `{}` | {} | {owner} |",
            entry.name,
            cell(&entry.values),
            entry.default,
            cell(entry.about)
        );
    }
    text
}

/// Text as the cell of a Markdown table: `<` would begin a tag, `|` the next cell.
fn cell(text: &str) -> String {
    text.replace('<', "\\<").replace('|', "\\|")
}

/// A workload as its reference has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WorkloadEntry {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub about: &'static str,
    /// Its parameters.
    pub parameters: Vec<ParameterEntry>,
}

/// A parameter of a workload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ParameterEntry {
    /// Its name.
    pub name: &'static str,
    /// Its default, as one would write it.
    pub default: String,
    /// What its values look like.
    pub values: String,
    /// What it means, and where the default comes from.
    pub about: &'static str,
}

/// All workloads of the library.
#[must_use]
pub fn workloads() -> Vec<WorkloadEntry> {
    let workloads = stealtime_simulator::workload::LIBRARY.iter();
    let entries = workloads.map(|workload| WorkloadEntry {
        name: workload.name,
        about: workload.about,
        parameters: workload.params.iter().map(parameter).collect(),
    });
    entries.collect()
}

fn parameter(doc: &stealtime_simulator::workload::ParamDoc) -> ParameterEntry {
    let show = |value: u64| match doc.unit {
        "ns" => crate::units::show_time(value),
        _ => value.to_string(),
    };
    let unit = if doc.unit == "ns" { "" } else { doc.unit };
    let values = format!("{} to {} {unit}", show(doc.min), show(doc.max));
    ParameterEntry {
        name: doc.name,
        default: show(doc.default),
        values: values.trim_end().to_owned(),
        about: doc.about,
    }
}

/// The reference of workloads as Markdown: `docs/workloads.md`.
#[must_use]
pub fn workloads_markdown(entries: &[WorkloadEntry]) -> String {
    let mut text = String::from(
        "# Workloads\n\n\
         Written by `stealtime knobs --workloads --format markdown`. A scenario names one in\n\
         `workload = \"NAME\"` or `workload = { name = \"NAME\", PARAMETER = VALUE }`; a knob sets a\n\
         parameter by `vm.NAME.workload.PARAMETER`.\n",
    );
    for entry in entries {
        let _ = write!(text, "\n## {}\n\n{}.\n", entry.name, entry.about);
        if entry.parameters.is_empty() {
            continue;
        }
        text.push_str("\n| parameter | default | values | is |\n|---|---|---|---|\n");
        for p in &entry.parameters {
            let _ = writeln!(
                text,
                "| `{}` | `{}` | {} | {} |",
                p.name,
                p.default,
                cell(&p.values),
                cell(p.about)
            );
        }
    }
    text
}

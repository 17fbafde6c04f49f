//! All knobs for readers: `stealtime knobs` and `docs/knobs.md`.

use std::fmt::Write as _;

use serde::Serialize;

use super::{FairClass, HostSetting, Knob, Source, all};

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
    /// What a replay can do with it: `shows` its effect, `simulate` has it instead, or another
    /// option does (`instead`).
    pub replay: &'static str,
    /// The same as a clause.
    pub replay_says: String,
    /// The fair class that has it, `eevdf` or `cfs`; `null` for both, and for other knobs.
    pub fair_class: Option<&'static str>,
    /// How a real host gets its value.
    pub on_host: OnHost,
}

/// How a real host gets the value of a knob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OnHost {
    /// The step, with `VALUE`, the VM's `NAME`, and `TID` or `TIDS` of its threads; `null` if only
    /// the simulated host has the knob.
    pub set: Option<String>,
    /// What undoes it.
    pub undo: Option<String>,
    /// From when on it acts.
    pub acts: Option<String>,
    /// Words for values, conditions and equivalents; or why no host has the knob. Empty for none.
    pub note: String,
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
        replay: knob.replay.name(),
        replay_says: knob.replay.describe(),
        fair_class: knob.class.map(FairClass::name),
        on_host: on_host(knob),
    }
}

fn on_host(knob: &Knob) -> OnHost {
    let step = match knob.host {
        HostSetting::Step(step) => step,
        HostSetting::SimulationOnly(reason) => {
            return OnHost {
                set: None,
                undo: None,
                acts: None,
                note: format!("simulation only: {reason}"),
            };
        }
    };
    let spellings = step.spellings(&knob.kind).into_iter();
    let mut notes: Vec<String> = spellings
        .map(|(word, spelled)| format!("{word}: {spelled}"))
        .collect();
    if !step.note.is_empty() {
        notes.push(step.note.to_owned());
    }
    OnHost {
        set: Some(step.template()),
        undo: Some(step.undo_template()),
        acts: Some(step.acts.to_string()),
        note: notes.join("; "),
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
         name, or `*` for all. Names with dots and other signs are quoted: `vm.\"a.b\".nice`.\n\
         `vm.NAME.workload.PARAMETER` sets a parameter of the workload;\n\
         `task.NAME.count`, `task.NAME.nice` and `task.NAME.workload.PARAMETER` are of the host's tasks.\n\n\
         The second table of each group has the effect in a replay (`stealtime whatif`), and the step that\n\
         root takes to set it on a host. `TID` is one of the VM's threads, `TIDS` are all.\n\
         What acts at once holds until the host or the VM restarts.\n",
    );
    for group in entries.chunk_by(|entry, next| namespace(entry) == namespace(next)) {
        let name = group.first().map_or("", namespace);
        let _ = write!(
            text,
            "\n## {name}\n\n| knob | values | default | does | name of |\n|---|---|---|---|---|\n"
        );
        for entry in group {
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
        let _ = write!(
            text,
            "\n### {name} on a host\n\n| knob | a replay | set | undo | acts | note |\n\
             |---|---|---|---|---|---|\n"
        );
        for entry in group {
            text.push_str(&host_row(entry));
        }
    }
    text
}

/// The first part of a knob's name.
fn namespace(entry: &Entry) -> &str {
    entry.name.split('.').next().unwrap_or_default()
}

/// What a replay and a real host can do with a knob.
fn host_row(entry: &Entry) -> String {
    let code = |text: &Option<String>| match text {
        Some(text) => format!("`{}`", text.replace('|', "\\|")),
        None => "-".to_owned(),
    };
    let host = &entry.on_host;
    let class = match entry.fair_class {
        Some(class) => format!(", with {}", class.to_uppercase()),
        None => String::new(),
    };
    format!(
        "| `{}` | {}{class} | {} | {} | {} | {} |\n",
        entry.name,
        cell(&entry.replay_says),
        code(&host.set),
        undo_cell(host),
        host.acts.as_deref().unwrap_or("-"),
        cell(&host.note)
    )
}

fn undo_cell(host: &OnHost) -> String {
    match host.undo.as_deref() {
        Some(undo) if undo == super::host_setting::FORMER_VALUE => undo.to_owned(),
        Some(undo) => format!("`{undo}`"),
        None => "-".to_owned(),
    }
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

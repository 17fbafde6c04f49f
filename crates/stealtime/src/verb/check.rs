//! `stealtime check`: every interleaving of a protocol.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::json;
use stealtime_report::{escape, wrap};
use stealtime_verify::{
    Case, End, Finding, Limits, Outcome, PROTOCOLS, Protocol, Replay, Trace, cases,
};

use crate::args::{self, Form, Forms};
use crate::error::CliError;
use crate::output;
use crate::report::quoted;

/// Explore every interleaving of a protocol of the hypervisor crate.
///
/// Without a variant it explores all variants that must pass. Exit status 1: a property is violated.
/// The output then shows the shortest path to the violation; --keep-in writes it for --replay.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime check
  stealtime check pi-notify --variant as-posted-v1 --keep-in .
  stealtime check pi-notify --variant put --agents two-vcpus,device=2 --bound 40
  stealtime check --list")]
pub(crate) struct Check {
    /// The protocol; without it all of them
    #[arg(value_name = "PROTOCOL")]
    protocol: Option<String>,

    /// The variant of the protocol; without it all that must pass
    #[arg(long, value_name = "V")]
    variant: Option<String>,

    /// The agents around it, as a list with commas: names of sets, and counts NAME=NUMBER for each set
    /// (see --list). Without it every set as it is
    #[arg(long, value_name = "LIST")]
    agents: Option<String>,

    /// Explore only paths of up to so many steps
    #[arg(long, value_name = "N")]
    bound: Option<u32>,

    /// The memory for states, in MiB; the result says so if states do not fit
    #[arg(long, value_name = "MIB", default_value_t = 3072,
          value_parser = clap::value_parser!(u64).range(1..=1_048_576))]
    memory: u64,

    /// Show the path in a file of a failed check
    #[arg(long, value_name = "FILE",
          conflicts_with_all = ["protocol", "variant", "agents", "bound", "memory", "keep_in"])]
    replay: Option<PathBuf>,

    /// Write a file for --replay into this folder for each violation; without it none
    #[arg(long, value_name = "FOLDER")]
    keep_in: Option<PathBuf>,

    /// List protocols, variants, sets of agents and properties
    #[arg(long, conflicts_with_all = ["replay", "bound", "memory", "keep_in"])]
    list: bool,

    #[command(flatten)]
    form: Form<Format>,
}

/// How to write the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Tables
    #[value(alias = "text")]
    Table,
    /// One JSON object for each exploration, replay or protocol listed, a line each
    Json,
}

impl Forms for Format {
    const TABLE: Self = Self::Table;
    const JSON: Self = Self::Json;
}

impl Check {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if let Some(file) = &self.replay {
            return self.show(file);
        }
        let chosen = cases(
            self.protocol.as_deref(),
            self.variant.as_deref(),
            self.agents.as_deref(),
        )
        .map_err(|error| CliError::Check(error.to_string()))?;
        if self.list {
            let listed = if self.form.is_json() { list_json } else { list };
            return print(&listed(&chosen));
        }
        if let Some(folder) = &self.keep_in {
            output::check_folder(folder).map_err(|source| CliError::Write {
                path: folder.clone(),
                source,
            })?;
        }
        let mut found = 0;
        for (n, case) in chosen.iter().enumerate() {
            found += self.explore(case)?;
            let next = chosen.get(n + 1).map(|next| next.protocol);
            if !self.form.is_json() && next != Some(case.protocol) {
                let (protocol, left_out) = (case.protocol, case.left_out());
                let mut text = String::new();
                wrapped(
                    &mut text,
                    "",
                    &format!("{protocol}: not explored: {left_out}"),
                );
                print(&format!("{text}\n"))?;
            }
        }
        if found > 0 {
            return Err(CliError::Violations(found));
        }
        Ok(())
    }

    fn show(&self, file: &Path) -> Result<(), CliError> {
        let failed = |reason: String| CliError::Check(format!("{}: {reason}", file.display()));
        let text = std::fs::read_to_string(file).map_err(|error| failed(error.to_string()))?;
        let replay: Replay = text.parse().map_err(|error| failed(format!("{error}")))?;
        let Replay {
            protocol,
            variant,
            scene,
            path,
        } = &replay;
        let case = cases(Some(protocol), Some(variant), Some(scene));
        let case = case.map_err(|error| failed(error.to_string()))?;
        let case = case
            .first()
            .ok_or_else(|| failed("no such case".to_owned()))?;
        let trace = case.walk(path).map_err(|error| failed(error.to_string()))?;
        if self.form.is_json() {
            print(&replay_json(&replay, &trace))?;
        } else {
            let mut text = format!("{protocol}, variant {variant}, agents {scene}\n\n{trace}\n");
            match &trace.violation {
                Some(found) => {
                    let said = format!("{}: {}", found.property, found.sentence);
                    wrapped(&mut text, "", &said);
                }
                None => text.push_str("Nothing is violated at the end of this path.\n"),
            }
            print(&text)?;
        }
        match trace.violation {
            Some(_) => Err(CliError::Violations(1)),
            None => Ok(()),
        }
    }

    /// Explores one case and writes what was seen; how many violations.
    fn explore(&self, case: &Case) -> Result<usize, CliError> {
        let limits = Limits {
            steps: self.bound,
            memory_mib: self.memory,
            threads: args::threads(None).get(),
            ..Limits::default()
        };
        let begin = Instant::now();
        let outcome = case.explore(limits);
        let took = begin.elapsed();
        let mut replays = Vec::new();
        for finding in &outcome.findings {
            let trace = case.walk(&finding.path);
            let trace = trace.map_err(|error| CliError::Check(error.to_string()))?;
            let keep = |folder| keep(folder, case, finding);
            let file = self.keep_in.as_deref().map(keep).transpose()?;
            replays.push((finding, trace, file));
        }
        let shown = if self.form.is_json() { json_line } else { text };
        print(&shown(case, &outcome, took, &replays))?;
        Ok(outcome.findings.len())
    }
}

/// Writes the path of a violation to a file in this folder; its name.
fn keep(folder: &Path, case: &Case, finding: &Finding) -> Result<PathBuf, CliError> {
    let flaw = finding.violation.flaw.map(|flaw| format!("-flaw-{flaw}"));
    let path = folder.join(format!(
        "check-{}-{}-{}-{}{}.replay",
        case.protocol,
        case.variant,
        case.scene.replace(['+', ',', '='], "-"),
        finding.violation.property,
        flaw.unwrap_or_default()
    ));
    let replay = Replay {
        protocol: case.protocol.to_owned(),
        variant: case.variant.to_owned(),
        scene: case.scene.clone(),
        path: finding.path.clone(),
    };
    let failed = |source| CliError::Write {
        path: path.clone(),
        source,
    };
    output::to_file(&path, |writer| write!(writer, "{replay}").map_err(failed))?;
    Ok(path)
}

type Kept<'a> = (&'a Finding, Trace, Option<PathBuf>);

/// Columns of what is shown.
const COLUMNS: usize = 100;

/// Adds a line, broken between words where it is too long; what follows stands further in.
fn wrapped(page: &mut String, indent: &str, line: &str) {
    let mut hang = "";
    for part in wrap(line, COLUMNS - indent.len() - 4) {
        let _ = writeln!(page, "{indent}{hang}{part}");
        hang = "    ";
    }
}

/// Adds a row of a list: what has a name, and what is said of it.
fn row(page: &mut String, head: &str, said: &str) {
    let mut head = head;
    for part in wrap(said, COLUMNS - head.chars().count()) {
        let _ = writeln!(page, "{head}{part}");
        head = "                                       ";
    }
}

fn print(text: &str) -> Result<(), CliError> {
    output::to_stdout(|writer| writer.write_all(text.as_bytes()))
}

/// How far an exploration came.
fn extent(end: End) -> String {
    match end {
        End::Exhausted => "all states of the model".to_owned(),
        End::Bound { steps } => format!("partial: only paths of up to {steps} steps"),
        End::Memory { steps, limit_mib } => format!(
            "partial: {limit_mib} MiB were full, all paths of up to {steps} steps were seen; give \
             more with --memory"
        ),
        End::FirstFinding => "up to the first violation".to_owned(),
    }
}

/// Counts that may be chosen, as they are.
fn bounds(case: &Case) -> String {
    let counts = case.counts();
    let counts = counts.iter().map(|(name, n)| format!("{name}={n}"));
    counts.collect::<Vec<_>>().join(",")
}

fn text(case: &Case, outcome: &Outcome, took: Duration, replays: &[Kept<'_>]) -> String {
    let verdict = match (replays.len(), outcome.end) {
        (0, End::Exhausted) => "passes",
        (0, _) => "nothing found",
        _ => "FAILS",
    };
    let mut text = String::new();
    let said = format!(
        "{} {} ({}): {verdict}; {}",
        case.protocol,
        case.variant,
        case.scene,
        extent(outcome.end)
    );
    wrapped(&mut text, "", &said);
    let _ = writeln!(
        text,
        "    {:.1} s; {} states, {} steps taken, longest path {}",
        took.as_secs_f64(),
        outcome.states,
        outcome.transitions,
        outcome.depth,
    );
    let bounds = bounds(case);
    if !bounds.is_empty() {
        wrapped(&mut text, "    ", &format!("bounds: {bounds}"));
    }
    for (finding, trace, file) in replays {
        let violation = &finding.violation;
        let flaw = violation.flaw.map(|flaw| format!(" (flaw {flaw})"));
        let said = format!(
            "{}{}: {}",
            violation.property,
            flaw.unwrap_or_default(),
            violation.sentence
        );
        text.push('\n');
        wrapped(&mut text, "", &said);
        // A command is to be copied: it is not broken.
        let next = file.as_ref().map_or_else(
            || "to keep this path for a replay: --keep-in FOLDER".to_owned(),
            |file| {
                format!(
                    "replay: stealtime check --replay {}",
                    quoted(&file.display().to_string())
                )
            },
        );
        let _ = write!(text, "\n{trace}\n{}\n\n", escape::terminal(&next));
    }
    text
}

fn json_line(case: &Case, outcome: &Outcome, took: Duration, replays: &[Kept<'_>]) -> String {
    let violations = replays.iter().map(|(finding, trace, file)| {
        json!({
            "property": finding.violation.property,
            "flaw": finding.violation.flaw,
            "sentence": finding.violation.sentence,
            "steps": steps_json(trace),
            "replay": file.as_ref().map(|file| file.display().to_string()),
        })
    });
    let line = json!({
        "protocol": case.protocol,
        "variant": case.variant,
        "agents": case.scene,
        "states": outcome.states,
        "steps_taken": outcome.transitions,
        "longest_path": outcome.depth,
        "bounds": case.counts().into_iter().collect::<std::collections::BTreeMap<_, _>>(),
        "not_explored": case.left_out(),
        "partial": outcome.end != End::Exhausted,
        "extent": extent(outcome.end),
        "seconds": took.as_secs_f64(),
        "violations": violations.collect::<Vec<_>>(),
    });
    format!("{line}\n")
}

fn steps_json(trace: &Trace) -> Vec<serde_json::Value> {
    let steps = trace.rows.iter().map(
        |row| json!({"agent": trace.agents[row.agent], "step": row.text, "changes": row.changes}),
    );
    steps.collect()
}

fn replay_json(replay: &Replay, trace: &Trace) -> String {
    let violation = trace.violation.as_ref().map(
        |found| json!({"property": found.property, "flaw": found.flaw, "sentence": found.sentence}),
    );
    let line = json!({
        "protocol": replay.protocol,
        "variant": replay.variant,
        "agents": replay.scene,
        "steps": steps_json(trace),
        "violation": violation,
    });
    format!("{line}\n")
}

/// The protocols of the cases chosen.
fn listed(chosen: &[Case]) -> impl Iterator<Item = &'static Protocol> {
    let requested = |protocol: &&Protocol| chosen.iter().any(|c| c.protocol == protocol.name);
    PROTOCOLS.iter().filter(requested)
}

/// The sets of agents that a variant runs with.
fn sets(protocol: &str, variant: &str) -> Vec<String> {
    let known = cases(Some(protocol), Some(variant), None).unwrap_or_default();
    known.into_iter().map(|case| case.scene).collect()
}

/// The counts that a protocol's sets may be given.
fn counted(chosen: &[Case], protocol: &Protocol) -> Vec<&'static str> {
    let case = chosen.iter().find(|case| case.protocol == protocol.name);
    let counts = case.map(Case::counts).unwrap_or_default();
    counts.into_iter().map(|(name, _)| name).collect()
}

fn list_json(chosen: &[Case]) -> String {
    let lines = listed(chosen).map(|protocol| {
        let variants = protocol.variants.iter().map(|variant| {
            json!({
                "name": variant.name,
                "about": variant.about,
                "must_pass": variant.sound,
                "agents": sets(protocol.name, variant.name),
            })
        });
        let properties = protocol.properties.iter();
        let line = json!({
            "protocol": protocol.name,
            "about": protocol.about,
            "variants": variants.collect::<Vec<_>>(),
            "counts": counted(chosen, protocol),
            "properties": properties.copied().collect::<std::collections::BTreeMap<_, _>>(),
            "not_explored": protocol.left_out,
        });
        format!("{line}\n")
    });
    lines.collect()
}

fn list(chosen: &[Case]) -> String {
    let mut text = String::new();
    for protocol in listed(chosen) {
        let _ = writeln!(text, "{}: {}\n  variants", protocol.name, protocol.about);
        for variant in protocol.variants {
            let verdict = if variant.sound { "must pass" } else { "faulty" };
            let (name, about) = (variant.name, variant.about);
            row(&mut text, &format!("    {name:24} {verdict:9} "), about);
            let sets = sets(protocol.name, name);
            let agents = format!("    {:24} {:9} ", "", "agents");
            row(&mut text, &agents, &sets.join(", "));
        }
        let names = counted(chosen, protocol);
        if !names.is_empty() {
            let _ = writeln!(text, "  counts\n    {}", names.join(", "));
        }
        let _ = writeln!(text, "  properties");
        for (name, says) in protocol.properties {
            row(&mut text, &format!("    {name:34} "), says);
        }
    }
    text
}

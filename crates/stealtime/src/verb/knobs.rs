//! `stealtime knobs`: the reference.

use clap::{Args, ValueEnum};
use stealtime_lab::knobs::reference::{
    Entry, WorkloadEntry, entries, markdown, workloads, workloads_markdown,
};
use stealtime_report::terminal::Style;
use stealtime_report::{json, terminal};

use crate::args::{Form, Forms};
use crate::error::CliError;
use crate::output;

/// List the knobs of the simulated host, by their real names.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime knobs halt_poll
  stealtime knobs --workloads redis
  stealtime knobs --format json")]
pub(crate) struct Knobs {
    /// Only knobs (or workloads) with this text in their names
    #[arg(value_name = "PART")]
    part: Option<String>,

    /// Workloads and their parameters instead of knobs
    #[arg(long)]
    workloads: bool,

    #[command(flatten)]
    form: Form<Format>,
}

/// How to write the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For a terminal
    Table,
    /// An array of objects
    Json,
    /// docs/knobs.md, docs/workloads.md
    Markdown,
}

impl Forms for Format {
    const TABLE: Self = Self::Table;
    const JSON: Self = Self::Json;
}

impl Knobs {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if self.workloads {
            return self.list_workloads();
        }
        let part = self.part.as_deref().unwrap_or_default();
        let found: Vec<Entry> = entries()
            .into_iter()
            .filter(|entry| entry.name.contains(part))
            .collect();
        if found.is_empty() {
            let problem = format!("no knob has {part:?} in its name; `stealtime knobs` lists all");
            return Err(CliError::Simulate(problem));
        }
        output::to_stdout(|writer| match self.form.get() {
            Format::Table => {
                let style = Style::new(output::color());
                writer.write_all(terminal::knobs::render(&found, style).as_bytes())
            }
            Format::Json => json::write_any(&found, writer),
            Format::Markdown => writer.write_all(markdown(&found).as_bytes()),
        })
    }

    fn list_workloads(&self) -> Result<(), CliError> {
        let part = self.part.as_deref().unwrap_or_default();
        let found: Vec<WorkloadEntry> = workloads()
            .into_iter()
            .filter(|entry| entry.name.contains(part))
            .collect();
        if found.is_empty() {
            let problem = format!(
                "no workload has {part:?} in its name; `stealtime knobs --workloads` lists all"
            );
            return Err(CliError::Simulate(problem));
        }
        output::to_stdout(|writer| match self.form.get() {
            Format::Table => {
                let style = Style::new(output::color());
                writer.write_all(terminal::knobs::render_workloads(&found, style).as_bytes())
            }
            Format::Json => json::write_any(&found, writer),
            Format::Markdown => writer.write_all(workloads_markdown(&found).as_bytes()),
        })
    }
}

//! `stealtime clock`.

mod doctor;
mod drill;
mod rehearse;
mod show;
mod snapshot;
mod state;

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::error::CliError;
use crate::output;

/// Guest clocks: what this host's KVM offers, drills, saved states, snapshots and reported failures
#[derive(Debug, Args)]
pub(crate) struct Clock {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Doctor(doctor::Doctor),
    Drill(drill::Drill),
    Save(state::Save),
    Restore(state::Restore),
    Show(show::Show),
    Inspect(snapshot::Inspect),
    Facts(rehearse::GatherFacts),
    Rehearse(rehearse::Rehearse),
}

impl Clock {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.what {
            What::Doctor(doctor) => doctor.run(),
            What::Drill(drill) => drill.run(),
            What::Save(save) => save.run(),
            What::Restore(restore) => restore.run(),
            What::Show(show) => show.run(),
            What::Inspect(inspect) => inspect.run(),
            What::Facts(facts) => facts.run(),
            What::Rehearse(rehearse) => rehearse.run(),
        }
    }
}

/// How results are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    #[default]
    Table,
    /// For programs
    Json,
}

#[derive(Debug, Args)]
struct Shown {
    /// How to show it
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    format: Format,

    /// Short for --format json
    #[arg(long, conflicts_with = "format")]
    json: bool,
}

impl Shown {
    /// Whether JSON is asked for.
    fn is_json(&self) -> bool {
        self.json || self.format == Format::Json
    }

    /// Writes `value` as JSON, or as `table` does it.
    fn show<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), CliError> {
        output::to_stdout(|writer| {
            if self.is_json() {
                serde_json::to_writer_pretty(&mut *writer, value)?;
                return writeln!(writer);
            }
            table(writer)
        })
    }
}

/// An error of `guest-clock` as the command shows it: what it calls options are options here.
fn clock_error(error: impl std::fmt::Display) -> CliError {
    CliError::Clock(with_options(&error.to_string()))
}

/// A text of `guest-clock` with the command's names of options.
fn with_options(text: &str) -> String {
    let options = [
        ("Inexact::Accept", "--accept-inexact"),
        ("Unequal::Highest", "--unequal highest"),
        ("Unequal::Keep", "--unequal keep"),
        ("Policy::AtMost", "--policy at-most"),
        ("Policy::Stopped", "--policy stopped"),
        ("allow more", "allow more with --limit"),
        ("trust more", "trust more with --clocks-trusted"),
        ("taken_realtime_ns is not given", "--taken is not given"),
        ("tsc_khz is not given", "--guest-khz is not given"),
        // No option says it: the bounds are of the longest time.
        ("; Options::uncertainty may say for how long", ""),
        ("read_within_ns is 0", "--read-within is not given"),
    ];
    options
        .iter()
        .fold(text.to_owned(), |text, (field, option)| {
            text.replace(field, option)
        })
}

/// Columns of what is shown.
const COLUMNS: usize = 100;

/// Writes a line, broken between words where it is too long; what follows is indented.
fn wrapped(writer: &mut dyn Write, line: &str, indent: usize) -> std::io::Result<()> {
    let lead = line.len() - line.trim_start().len();
    let mut column = lead;
    write!(writer, "{:lead$}", "")?;
    for (index, word) in line.trim_start().split(' ').enumerate() {
        let width = word.chars().count();
        if index > 0 && column + 1 + width > COLUMNS {
            write!(writer, "\n{:indent$}{word}", "")?;
            column = indent + width;
        } else {
            let space = usize::from(index > 0);
            write!(writer, "{:space$}{word}", "")?;
            column += space + width;
        }
    }
    writeln!(writer)
}

//! `stealtime clock`.

mod doctor;
mod drill;
mod state;

use std::io::Write;

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;

use crate::error::CliError;
use crate::output;

/// Guest clocks on /dev/kvm: what this host offers, drills, and saved states
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
}

impl Clock {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        match &self.what {
            What::Doctor(doctor) => doctor.run(),
            What::Drill(drill) => drill.run(),
            What::Save(save) => save.run(),
            What::Restore(restore) => restore.run(),
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
    let options = [
        ("Inexact::Accept", "--accept-inexact"),
        ("Unequal::Highest", "--unequal highest"),
        ("Unequal::Keep", "--unequal keep"),
        ("Policy::AtMost", "--policy at-most"),
        ("Policy::Stopped", "--policy stopped"),
        ("allow more", "allow more with --limit"),
    ];
    let message = options
        .iter()
        .fold(error.to_string(), |text, (field, option)| {
            text.replace(field, option)
        });
    CliError::Clock(message)
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

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
    /// Writes `value` as JSON, or as `table` does it.
    fn show<T: Serialize>(
        &self,
        value: &T,
        table: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
    ) -> Result<(), CliError> {
        output::to_stdout(|out| {
            if self.json || self.format == Format::Json {
                serde_json::to_writer_pretty(&mut *out, value)?;
                return writeln!(out);
            }
            table(out)
        })
    }
}

/// An error of `guest-clock` as the command shows it.
fn clock_error(error: impl std::fmt::Display) -> CliError {
    CliError::Clock(error.to_string())
}

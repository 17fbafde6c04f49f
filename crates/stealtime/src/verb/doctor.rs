//! `stealtime doctor`.

use std::path::PathBuf;

use clap::Args;
use stealtime_doctor::diagnose;
use stealtime_report::terminal::Style;
use stealtime_report::{json, terminal};

use super::snapshot::take;
use crate::args::Form;
use crate::error::CliError;
use crate::output;

/// Show what this host's settings do to guest time, with the commands to change them.
///
/// Each finding has its evidence, the next step, and commands to apply and to undo. Nothing is
/// changed. Then each of the five mechanisms: whether this kernel has it, whether it is on, and
/// whether it would pay here.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo stealtime doctor
  stealtime doctor host.json
  stealtime doctor --format json")]
pub(crate) struct Doctor {
    /// A snapshot of the host (`stealtime snapshot -o FILE`) instead of this host; `-` is standard
    /// input
    #[arg(value_name = "SNAPSHOT", conflicts_with = "root")]
    file: Option<PathBuf>,

    /// Read /proc and /sys below this directory, or in a file of `stealtime snapshot --copy`
    #[arg(long, value_name = "PATH", default_value = "/")]
    root: PathBuf,

    #[command(flatten)]
    form: Form,
}

impl Doctor {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let snapshot = take(self.file.as_deref(), &self.root)?;
        let diagnosis = diagnose(&snapshot);
        output::to_stdout(|writer| match self.form.is_json() {
            true => json::write_any(&diagnosis, writer),
            false => {
                let style = Style::new(output::color());
                writer.write_all(terminal::doctor::render(&diagnosis, style).as_bytes())
            }
        })
    }
}

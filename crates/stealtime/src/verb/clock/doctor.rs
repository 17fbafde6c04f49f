//! `stealtime clock doctor`.

use clap::Args;
use guest_clock::doctor::{Checkup, examine};

use super::Shown;
use crate::error::CliError;

/// What KVM on this host offers for guest clocks, and what follows for restores
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock doctor
  stealtime clock doctor --json
  stealtime clock doctor --no-bench

Tries out what it reports, with small guests of its own. Exit status 1 if restores cannot be exact.")]
pub(crate) struct Doctor {
    /// Leave out the measurements: what reading the clocks, and saving and restoring, costs
    #[arg(long)]
    no_bench: bool,

    #[command(flatten)]
    shown: Shown,
}

impl Doctor {
    /// Examines the host.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let checkup: Checkup = examine(!self.no_bench).map_err(super::clock_error)?;
        self.shown.show(&checkup, |writer| {
            for finding in &checkup.findings {
                let found = format!("{:<18} {}", finding.what, finding.found);
                super::wrapped(writer, &found, 19)?;
                super::wrapped(writer, &format!("{:<20} {}", "", finding.meaning), 21)?;
            }
            Ok(())
        })?;
        if checkup.exact {
            return Ok(());
        }
        Err(CliError::Found(
            "restores on this host cannot be exact".to_owned(),
        ))
    }
}

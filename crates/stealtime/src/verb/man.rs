//! `stealtime man`: the manual pages, for packages.

use std::path::PathBuf;

use clap::{Args, CommandFactory};

use crate::error::CliError;

/// Write the manual pages of this command and of its verbs to a folder
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct Man {
    /// The folder, which exists
    folder: PathBuf,
}

impl Man {
    /// Writes them.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        // Verbs name the whole command line only once it is built.
        let mut command = crate::Cli::command().disable_help_subcommand(true);
        command.build();
        clap_mangen::generate_to(command, &self.folder).map_err(|source| CliError::Write {
            path: self.folder.clone(),
            source,
        })
    }
}

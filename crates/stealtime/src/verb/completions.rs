//! `stealtime completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

/// Print a shell's completions for this command
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  stealtime completions bash > ~/.local/share/bash-completion/completions/stealtime")]
pub(crate) struct Completions {
    /// The shell
    shell: Shell,
}

impl Completions {
    /// Prints them.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let mut script = Vec::new();
        clap_complete::generate(
            self.shell,
            &mut crate::Cli::command(),
            "stealtime",
            &mut script,
        );
        output::to_stdout(|writer| writer.write_all(&script))
    }
}

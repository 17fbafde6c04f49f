//! The `stealtime` command.
//!
//! Exit status: 0 done, 1 found what it was asked to look for, 2 bad use or bad input, 130 stopped
//! by Ctrl-C.

mod added_from;
mod args;
mod error;
mod host;
mod input;
mod output;
mod progress;
mod replayable;
mod report;
mod scheduler;
mod verb;
mod watched;
mod when;

use std::process::ExitCode;

use clap::Parser;

use verb::Verb;

/// Where guest time goes on KVM hosts, and what gives it back.
#[derive(Debug, Parser)]
#[command(
    name = "stealtime",
    version,
    propagate_version = true,
    max_term_width = 100
)]
#[command(after_help = "\
Examples:
  stealtime record --seconds 5
  stealtime analyze trace.dat.zst
  stealtime analyze perf.data --key time,ready
  stealtime export trace.dat --to perfetto -o trace.pftrace
  stealtime simulate scenarios/halt-polling.toml
  stealtime reproduce --quick
  stealtime clock drill --times 1000

Exit status: 0 done, 1 found what it was asked to look for, 2 bad use or bad input.")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

fn main() -> ExitCode {
    // Parsing errors end the process here, with status 2.
    let cli = Cli::parse();
    output::handle_interrupts();
    match cli.verb.run() {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever reads the output has seen enough: `| head`.
        Err(error) if error.is_broken_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            output::note_safe(&format!("stealtime: {}", error.shown()));
            ExitCode::from(error.status())
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_sound() {
        super::Cli::command().debug_assert();
    }
}

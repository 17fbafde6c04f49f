//! The `stealtime` command, and its verbs as functions of other programs ([`Call`]).
//!
//! Exit status: 0 done, 1 found what it was asked to look for, 2 bad use or bad input, 130 stopped
//! by Ctrl-C.

mod added_from;
mod args;
mod call;
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

use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;

use clap::Parser;

use verb::Verb;

pub use call::{Analysis, Call, Failure, Opened, Step};

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

/// The words that start this command, where its file alone does not.
static STARTED_BY: OnceLock<Vec<OsString>> = OnceLock::new();

/// Says which words start this command, for an interpreter that runs it. The first call counts.
pub fn set_started_by(words: Vec<OsString>) {
    // Later words start the same command.
    let _ = STARTED_BY.set(words);
}

/// This command again, without arguments. `/proc/self/exe` is this program even if its file was replaced.
fn this_command() -> Command {
    let words = STARTED_BY.get().map_or(&[][..], Vec::as_slice);
    let mut words = words.iter();
    let program = words
        .next()
        .map_or("/proc/self/exe".as_ref(), OsString::as_os_str);
    let mut command = Command::new(program);
    command.args(words);
    command
}

/// Runs the command with these arguments, the first of which is the program. Returns the exit status.
///
/// Ctrl-C is its own from here on, and what cannot be parsed ends the process.
#[must_use]
pub fn main(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    // Parsing errors end the process here, with status 2.
    let cli = Cli::parse_from(arguments);
    output::handle_interrupts();
    match cli.verb.run() {
        Ok(()) => 0,
        // Whoever reads the output has seen enough: `| head`.
        Err(error) if error.is_broken_pipe() => 0,
        Err(error) => {
            output::note_safe(&format!("stealtime: {}", error.shown()));
            error.status()
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

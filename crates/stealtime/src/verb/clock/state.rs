//! `stealtime clock save` and `stealtime clock restore`.

use std::io::Read;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use guest_clock::drill::rehearsal::{Restored, restore_into_own_guest, save_own_guest};
use guest_clock::{Inexact, MAX_BYTES, Options, Policy, Saved, Unequal};

use serde::Serialize;
use stealtime_report::escape;

use super::{Shown, clock_error, with_options};
use crate::error::CliError;
use crate::output;

/// Save the clocks of a small test guest, as a state file to test a VMM with
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock save state.json
  stealtime clock save --vcpus 8 --form binary state.bin
  stealtime clock save --json state.json     # the file, and on standard output what is in it

KVM gives a VM's clocks only to the process that made the VM. So a VMM saves them itself: call the
library from it.")]
pub(crate) struct Save {
    /// Where to; `-` is standard output
    file: PathBuf,

    /// vCPUs of the guest
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=64))]
    vcpus: u16,

    /// The file's form: JSON, or the compact binary one
    #[arg(long, value_enum, default_value_t = Form::Json)]
    form: Form,

    #[command(flatten)]
    shown: Shown,
}

/// What was saved where.
#[derive(Serialize)]
struct Written<'a> {
    file: String,
    form: Form,
    bytes: usize,
    vcpus: usize,
    saved: &'a Saved,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "snake_case")]
enum Form {
    /// JSON
    Json,
    /// Compact
    Binary,
}

impl Save {
    /// Saves.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if self.file == Path::new("-") && self.shown.is_json() {
            return Err(CliError::OfNoUse {
                option: "--json",
                why: "shows on standard output what was saved, and with - the state itself goes there",
            });
        }
        let saved = save_own_guest(usize::from(self.vcpus)).map_err(clock_error)?;
        let bytes = match self.form {
            Form::Json => (saved.to_json() + "\n").into_bytes(),
            Form::Binary => saved.to_bytes(),
        };
        if self.file == Path::new("-") {
            return output::to_stdout(|writer| writer.write_all(&bytes));
        }
        output::to_file(&self.file, |writer| {
            writer.write_all(&bytes).map_err(|source| CliError::Write {
                path: self.file.clone(),
                source,
            })
        })?;
        let written = Written {
            file: self.file.display().to_string(),
            form: self.form,
            bytes: bytes.len(),
            vcpus: saved.vcpus(),
            saved: &saved,
        };
        self.shown.show(&written, |writer| {
            let (file, vcpus) = (escape::terminal(&written.file), written.vcpus);
            writeln!(
                writer,
                "{file}: clocks of {vcpus} vCPUs, {} bytes",
                bytes.len()
            )
        })
    }
}

/// Check a state file, restore it into a small test guest, and report the result
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock restore state.json
  stealtime clock restore --policy stopped state.bin
  stealtime clock restore --json state.json
  stealtime clock restore --policy at-most --limit 5000000000 --accept-inexact state.json

Reads either form, checked as hostile input. Exit status 2 with the reason if it is refused.")]
pub(crate) struct Restore {
    /// The state; `-` is standard input
    file: PathBuf,

    /// Guest time over the pause
    #[arg(long, value_enum, default_value_t = Pause::Elapsed)]
    policy: Pause,

    /// In ns: with `at-most` the largest advance of guest time; with `elapsed` longer ones are refused
    #[arg(long, value_name = "NS")]
    limit: Option<u64>,

    #[command(flatten)]
    means: Means,

    #[command(flatten)]
    shown: Shown,
}

/// What may be taken instead of exactness, and what is known of the wall clocks.
#[derive(Debug, Args)]
pub(super) struct Means {
    /// Restore with a stated bound where an exact restore is impossible
    #[arg(long)]
    accept_inexact: bool,

    /// What to do with TSC offsets that differ between vCPUs
    #[arg(long, value_enum, default_value_t = Differing::Refuse)]
    unequal: Differing,

    /// The destination's wall clock minus the source's, in ns, as PTP or NTP measures it: taken off
    /// the pause
    #[arg(
        long,
        default_value_t = 0,
        value_name = "NS",
        allow_negative_numbers = true
    )]
    clocks_ahead: i64,

    /// The largest difference of the wall clocks that is trusted, in ns; larger ones are refused
    #[arg(long, value_name = "NS")]
    clocks_trusted: Option<u64>,
}

impl Means {
    pub(super) fn options(&self, policy: Policy) -> Options {
        let mut options = Options::new(policy).unequal(match self.unequal {
            Differing::Refuse => Unequal::Refuse,
            Differing::Highest => Unequal::Highest,
            Differing::First => Unequal::First,
            Differing::Keep => Unequal::Keep,
        });
        if self.accept_inexact {
            options.inexact = Inexact::Accept;
        }
        options.wall_clocks(self.clocks_ahead, self.clocks_trusted.unwrap_or(u64::MAX))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Pause {
    /// It stands still
    Stopped,
    /// It advances by the length of the pause
    Elapsed,
    /// It advances by the length of the pause, up to the limit
    AtMost,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Differing {
    /// Refuse
    Refuse,
    /// All get the most advanced one
    Highest,
    /// All get the first one's
    First,
    /// Keep them
    Keep,
}

impl Restore {
    /// Restores.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let bytes = read(&self.file)?;
        let saved = Saved::load(&bytes).map_err(|error| self.error(error))?;
        let options = self.options()?;
        let restored = restore_into_own_guest(&saved, &options);
        let restored: Restored = restored.map_err(|error| self.error(error))?;
        self.shown.show(&restored, |writer| {
            for line in with_options(&restored.explanation.to_string()).lines() {
                super::wrapped(writer, line, 2)?;
            }
            let observed = &restored.seen;
            writeln!(
                writer,
                "the guest read both clocks {} times: TSC back by at most {} cycles, kvmclock by {} ns",
                observed.rounds, observed.tsc_back, observed.clock_back_ns
            )
        })
    }

    fn error(&self, error: impl std::fmt::Display) -> CliError {
        clock_error(format_args!("{}: {error}", crate::error::input(&self.file)))
    }

    fn options(&self) -> Result<Options, CliError> {
        let policy = match (self.policy, self.limit) {
            (Pause::Stopped, None) => Policy::Stopped,
            (Pause::Stopped, Some(_)) => {
                return Err(clock_error("--limit says nothing with --policy stopped"));
            }
            (Pause::Elapsed, limit) => Policy::Elapsed {
                refuse_above_ns: limit.unwrap_or(u64::MAX),
            },
            (Pause::AtMost, Some(max_ns)) => Policy::AtMost { max_ns },
            (Pause::AtMost, None) => {
                return Err(clock_error("--policy at-most needs --limit NS"));
            }
        };
        Ok(self.means.options(policy))
    }
}

/// The bytes of a state, or of facts; `-` is standard input.
pub(super) fn read(file: &Path) -> Result<Vec<u8>, CliError> {
    let mut bytes = Vec::new();
    // One byte more than may be: that is enough to refuse it.
    let limit = MAX_BYTES as u64 + 1;
    let outcome = if file == Path::new("-") {
        std::io::stdin().lock().take(limit).read_to_end(&mut bytes)
    } else {
        let open = std::fs::File::open(file);
        open.and_then(|file| file.take(limit).read_to_end(&mut bytes))
    };
    outcome.map_err(|error| clock_error(format_args!("{}: {error}", crate::error::input(file))))?;
    Ok(bytes)
}

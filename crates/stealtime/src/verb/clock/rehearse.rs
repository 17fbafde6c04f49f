//! `stealtime clock facts` and `stealtime clock rehearse`.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use guest_clock::{Facts, Outcome, Policy, Rehearsed, Restored, rehearse_on};
use serde::Serialize;

use super::snapshot::{Known, MOST_NS, load};
use super::state::Means;
use super::{Shown, clock_error, with_options, wrapped};
use crate::error::CliError;
use crate::output;

/// Write the facts of this host that a restore depends on, for `clock rehearse` on another machine
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock facts > host-b.json
  stealtime clock facts host-b.json

Needs /dev/kvm, and creates no guest that runs.")]
pub(crate) struct GatherFacts {
    /// Where to; `-` is standard output
    #[arg(default_value = "-")]
    file: PathBuf,
}

impl GatherFacts {
    /// Gathers them.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let facts = Facts::gather().map_err(clock_error)?.to_json() + "\n";
        if self.file == Path::new("-") {
            return output::to_stdout(|writer| writer.write_all(facts.as_bytes()));
        }
        output::to_file(&self.file, |writer| {
            writer
                .write_all(facts.as_bytes())
                .map_err(|source| CliError::Write {
                    path: self.file.clone(),
                    source,
                })
        })
    }
}

/// Rehearse the restore of a snapshot on another host, without KVM: refusals, jumps, bounds and writes
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock rehearse state.json --host host-b.json
  stealtime clock rehearse state.json --host host-b.json --pause 3600000000000 --json
  stealtime clock rehearse vmstate --host host-b.json --read-within 50000000 --accept-inexact

`clock facts` writes the facts of a host. Snapshots are those of `clock inspect`. Exit status 1 if
every policy is refused.")]
pub(crate) struct Rehearse {
    /// The snapshot; `-` is standard input
    file: PathBuf,

    /// The facts of the destination
    #[arg(long, value_name = "FACTS")]
    host: PathBuf,

    /// Time from the save to the restore by the wall clocks, in ns
    #[arg(long, default_value_t = 1_000_000_000, value_name = "NS", value_parser = clap::value_parser!(u64).range(..=MOST_NS))]
    pause: u64,

    /// The largest advance of guest time with the policy at-most, in ns
    #[arg(long, default_value_t = 100_000_000, value_name = "NS")]
    limit: u64,

    #[command(flatten)]
    means: Means,

    #[command(flatten)]
    known: Known,

    #[command(flatten)]
    shown: Shown,
}

/// A rehearsal as JSON has it.
#[derive(Serialize)]
struct Document<'a> {
    made_by: guest_clock::snapshot::MadeBy,
    guest_khz: Option<u32>,
    host: Facts,
    pause_ns: u64,
    policies: &'a [Rehearsed],
}

impl Rehearse {
    /// Rehearses.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let snapshot = load(&self.file)?;
        let named = |path: &Path, error: &dyn std::fmt::Display| {
            clock_error(format_args!("{}: {error}", crate::error::input(path)))
        };
        let saved = snapshot.to_saved(&self.known.assumed());
        let saved = saved.map_err(|error| named(&self.file, &error))?;
        let facts = super::state::read(&self.host)?;
        let facts = Facts::from_json(&facts).map_err(|error| named(&self.host, &error))?;
        let policies = [
            Policy::ELAPSED,
            Policy::AtMost { max_ns: self.limit },
            Policy::Stopped,
        ];
        let options = policies.map(|policy| self.means.options(policy));
        let rehearsed = rehearse_on(&saved, &facts, self.pause, &options);
        let mut rehearsed = rehearsed.map_err(|error| named(&self.host, &error))?;
        rehearsed.iter_mut().for_each(name_options);
        let document = Document {
            made_by: snapshot.made_by,
            guest_khz: snapshot.tsc_khz.or(self.known.assumed().tsc_khz),
            host: facts,
            pause_ns: self.pause,
            policies: &rehearsed,
        };
        self.shown
            .show(&document, |writer| table(writer, &document))?;
        let is_refused = |rehearsed: &Rehearsed| matches!(rehearsed.outcome, Outcome::Refused(_));
        match rehearsed.iter().all(is_refused) {
            true => Err(CliError::Found(
                "the restore is refused with every policy".to_owned(),
            )),
            false => Ok(()),
        }
    }
}

/// Sentences of `guest-clock` with the command's names of options.
fn name_options(rehearsed: &mut Rehearsed) {
    let sentences = match &mut rehearsed.outcome {
        Outcome::Refused(reason) => std::slice::from_mut(reason),
        Outcome::Restored(restored) => restored.reasons.as_mut_slice(),
        _ => &mut [],
    };
    for sentence in sentences {
        *sentence = with_options(sentence);
    }
}

fn table(writer: &mut dyn Write, document: &Document<'_>) -> io::Result<()> {
    let guest_khz = document
        .guest_khz
        .map_or_else(|| "-".to_owned(), |khz| khz.to_string());
    let host = &document.host;
    let scaling = if host.has_scaling { "with" } else { "without" };
    let line = format!(
        "{}'s guest of {guest_khz} kHz, {} ns after its save, on a host of {} kHz {scaling} scaling",
        document.made_by, document.pause_ns, host.tsc_khz
    );
    wrapped(writer, &line, 2)?;
    let mut writes: Option<&Restored> = None;
    for rehearsed in document.policies {
        let policy = match rehearsed.policy {
            Policy::Stopped => "stopped".to_owned(),
            Policy::AtMost { max_ns } => format!("at most {max_ns} ns"),
            _ => "elapsed".to_owned(),
        };
        match &rehearsed.outcome {
            Outcome::Refused(reason) => {
                wrapped(writer, &format!("policy {policy}: REFUSED: {reason}"), 2)?;
            }
            Outcome::Restored(restored) => {
                outcome(writer, &policy, restored)?;
                writes = writes.or(Some(restored));
            }
            _ => {}
        }
    }
    if let Some(restored) = writes {
        writeln!(
            writer,
            "writes, in order, with the first policy that is not refused:"
        )?;
        for (number, write) in (1..).zip(&restored.writes) {
            wrapped(writer, &format!("  {number:>2} {write}"), 7)?;
        }
    }
    Ok(())
}

fn outcome(writer: &mut dyn Write, policy: &str, restored: &Restored) -> io::Result<()> {
    let exact = if restored.exact { "exact" } else { "bounded" };
    let line = format!(
        "policy {policy}: guest time jumps by {} ns ({} cycles), {exact}",
        restored.advanced_ns, restored.added_cycles
    );
    wrapped(writer, &line, 2)?;
    wrapped(writer, &format!("  bounds: {}", restored.bounds), 4)?;
    for reason in &restored.reasons {
        wrapped(writer, &format!("  - {reason}"), 4)?;
    }
    Ok(())
}

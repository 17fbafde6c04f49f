//! `stealtime clock inspect`.

use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use guest_clock::snapshot::{self, Assumed, Counters, Snapshot};
use serde::Serialize;

use super::{Shown, clock_error, wrapped};
use crate::error::CliError;

/// Read the clocks of a snapshot of Firecracker, Cloud Hypervisor, QEMU or guest-clock, without KVM
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock inspect state.json
  stealtime clock inspect vmstate
  stealtime clock inspect --json migration.bin

Reads Firecracker's vmstate (snapshot formats 3 to 11), Cloud Hypervisor's state.json, QEMU's
migration streams with their description, and both forms of a saved state. Checked as hostile
input: exit status 2 with the reason if a file is no snapshot.")]
pub(crate) struct Inspect {
    /// The snapshot; `-` is standard input
    file: PathBuf,

    #[command(flatten)]
    shown: Shown,
}

/// The longest time, and the highest frequency, that a state holds.
pub(super) const MOST_NS: u64 = i64::MAX as u64;
const MOST_KHZ: i64 = i32::MAX as i64 - 1;

/// What is known of a snapshot that the file does not have.
#[derive(Debug, Args)]
pub(super) struct Known {
    /// Time within which the snapshot has all its values, in ns: at most the pause for it. It
    /// becomes the bound of the TSCs
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(1..=MOST_NS))]
    read_within: Option<u64>,

    /// The wall clock at the save, in ns since the epoch, where the snapshot has none
    #[arg(long, value_name = "NS", value_parser = clap::value_parser!(u64).range(..=MOST_NS))]
    taken: Option<u64>,

    /// The guest's TSC frequency in kHz, where the snapshot has none
    #[arg(long, value_name = "KHZ", value_parser = clap::value_parser!(u32).range(1..=MOST_KHZ))]
    guest_khz: Option<u32>,

    /// The source host's TSC frequency in kHz, where the snapshot has none and the guest is scaled
    #[arg(long, value_name = "KHZ", value_parser = clap::value_parser!(u32).range(1..=MOST_KHZ))]
    source_khz: Option<u32>,
}

impl Known {
    pub(super) fn assumed(&self) -> Assumed {
        let mut assumed = Assumed::default();
        assumed.host_tsc_khz = self.source_khz;
        assumed.tsc_khz = self.guest_khz;
        assumed.taken_realtime_ns = self.taken;
        assumed.read_within_ns = self.read_within.unwrap_or(0);
        assumed
    }
}

/// Reads a snapshot; `-` is standard input.
pub(super) fn load(file: &Path) -> Result<Snapshot, CliError> {
    let error = |error: &dyn std::fmt::Display| {
        clock_error(format_args!("{}: {error}", crate::error::input(file)))
    };
    let inspected = if file == Path::new("-") {
        snapshot::inspect_stream(&mut io::stdin().lock())
    } else {
        let mut opened = File::open(file).map_err(|e| error(&e))?;
        match opened.stream_position() {
            Ok(_) => snapshot::inspect(&mut opened),
            Err(_) => snapshot::inspect_stream(&mut opened),
        }
    };
    inspected.map_err(|e| error(&e))
}

/// A snapshot as JSON has it.
#[derive(Serialize)]
struct Inspected<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    /// TSCs of vCPUs are this far apart.
    apart_cycles: u64,
    apart_ns: Option<u64>,
}

impl Inspect {
    /// Reads it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let snapshot = load(&self.file)?;
        let inspected = Inspected {
            snapshot: &snapshot,
            apart_cycles: snapshot.apart_cycles(),
            apart_ns: snapshot.apart_ns(),
        };
        self.shown
            .show(&inspected, |writer| table(writer, &snapshot))
    }
}

fn or_none(value: Option<u64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

fn table(writer: &mut dyn Write, snapshot: &Snapshot) -> io::Result<()> {
    let version = stealtime_report::escape::terminal(&snapshot.version);
    writeln!(writer, "{}, {version}", snapshot.made_by)?;
    if let Some(clock) = &snapshot.clock {
        writeln!(
            writer,
            "kvmclock {} ns, wall clock {}, host TSC {}",
            clock.clock_ns,
            or_none(clock.realtime_ns),
            or_none(clock.host_tsc)
        )?;
    }
    let khz = |khz: Option<u32>| or_none(khz.map(u64::from));
    writeln!(
        writer,
        "guest TSC {} kHz, host TSC {} kHz",
        khz(snapshot.tsc_khz),
        khz(snapshot.host_tsc_khz)
    )?;
    writeln!(
        writer,
        "{:>5}  {:>20}  {:>20}  {:>20}  {:>20}",
        "vCPU", "TSC", "TSC_ADJUST", "deadline", "TSC offset"
    )?;
    for (index, vcpu) in snapshot.vcpus.iter().enumerate() {
        row(writer, index, vcpu)?;
    }
    let mut bound = String::new();
    if snapshot.own().is_none() {
        let apart = match snapshot.apart_ns() {
            Some(ns) => format!("{ns} ns"),
            None => format!("{} cycles", snapshot.apart_cycles()),
        };
        bound = format!(
            "bound of a restore: at least {apart}, as far as the vCPUs' TSCs are apart; state what it \
             is with --read-within (clock rehearse)"
        );
    } else if let Some(state) = snapshot.own() {
        bound = format!("bound of a restore: {}", own_bound(state));
    }
    for missing in &snapshot.missing {
        wrapped(writer, &format!("missing: {missing}"), 2)?;
    }
    wrapped(writer, &bound, 2)
}

/// What the save adds to the bound of a restore.
fn own_bound(saved: &guest_clock::Saved) -> String {
    match saved.state() {
        guest_clock::State::X86(x86) => {
            let cycles = x86.vcpus.iter().map(|vcpu| vcpu.offset_bound_cycles).max();
            format!(
                "rounding, {} ns of the instant and {} cycles of the offsets",
                x86.instant.bound_ns,
                cycles.unwrap_or(0)
            )
        }
        guest_clock::State::Arm64(arm64) => format!(
            "rounding, {} ticks of the instant and {} ticks of the offset",
            arm64.instant_bound_ticks, arm64.offset_bound_ticks
        ),
        _ => "not known".to_owned(),
    }
}

fn row(writer: &mut dyn Write, index: usize, vcpu: &Counters) -> io::Result<()> {
    let signed = |value: Option<u64>| {
        value.map_or_else(|| "-".to_owned(), |value| value.cast_signed().to_string())
    };
    let deadline = match vcpu.tsc_deadline {
        Some(0) => "not armed".to_owned(),
        deadline => or_none(deadline),
    };
    writeln!(
        writer,
        "{index:>5}  {:>20}  {:>20}  {deadline:>20}  {:>20}",
        or_none(vcpu.tsc),
        signed(vcpu.tsc_adjust),
        signed(vcpu.tsc_offset)
    )
}

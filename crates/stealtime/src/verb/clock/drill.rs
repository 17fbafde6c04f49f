//! `stealtime clock drill`.

use std::io::{self, IsTerminal, Write};
use std::ops::ControlFlow;
use std::sync::atomic::Ordering;

use clap::{Args, ValueEnum};
use guest_clock::drill::{self, Device, Distribution, DrillReport, Method, MethodReport};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;

use super::Shown;
use crate::error::CliError;
use crate::output;

/// Save and restore small guests over and over, by value and by offset, and show the errors of both
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock drill
  stealtime clock drill --times 10000 --vcpus 2-8 --load 4
  stealtime clock drill --device fake --times 10000
  stealtime clock drill --device fake --times 50 --between 1200000   # vCPUs come apart by value

Exit status 1 if a restore by offset breaks a promise: a step back, unequal vCPUs, an error beyond
the stated bound. Ctrl-C ends the drill after the current restore. It shows the measurements, marked
partial, with exit status 130.")]
pub(crate) struct Drill {
    /// The real device, or the same arithmetic on a fake host, where each call takes a fixed time
    #[arg(long, value_enum, default_value_t = Where::Kvm)]
    device: Where,

    /// Saves and restores by each method
    #[arg(long, default_value_t = 200, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    times: u32,

    /// vCPUs of the guests: N, or FROM-TO for each number in turn
    #[arg(long, default_value = "2-8", value_name = "N-M", value_parser = span)]
    vcpus: (usize, usize),

    /// Threads that compete with the VMM's for a CPU
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=1024))]
    load: u16,

    /// Largest delay of the VMM's thread ahead of its writes, in microseconds, at random
    #[arg(long, default_value_t = 1000, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    delay: u64,

    /// Delay between the writes of two vCPUs, in microseconds, by either method. Without it, by value
    /// only: at random, up to an eighth of --delay. KVM takes values within a second for equal
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u64).range(0..=10_000_000))]
    between: Option<u64>,

    /// Readings of both clocks by each vCPU, on both sides of the move
    #[arg(long, default_value_t = 20, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    rounds: u32,

    /// The seed of the random delays
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// /dev/kvm
    Kvm,
    /// No device
    Fake,
}

/// Why a text is no span of vCPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum SpanError {
    /// A number of vCPUs that no drill has.
    #[error("{0:?} is not from 1 to 64")]
    OutOfRange(String),
    /// From a larger to a smaller number.
    #[error("{0} is more than {1}")]
    Reversed(usize, usize),
}

fn span(text: &str) -> Result<(usize, usize), SpanError> {
    let number = |text: &str| match text.parse() {
        Ok(n @ 1..=64) => Ok(n),
        _ => Err(SpanError::OutOfRange(text.to_owned())),
    };
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (number(first)?, number(last)?) {
        (first, last) if first <= last => Ok((first, last)),
        (first, last) => Err(SpanError::Reversed(first, last)),
    }
}

impl Drill {
    /// Drills.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let mut drill = drill::Drill::default();
        drill.device = match self.device {
            Where::Kvm => Device::Kvm,
            Where::Fake => Device::Fake,
        };
        (drill.least_vcpus, drill.most_vcpus) = self.vcpus;
        (drill.times, drill.rounds, drill.load) = (self.times, self.rounds, usize::from(self.load));
        drill.most_delay_ns = self.delay.saturating_mul(1000);
        drill.between_ns = self.between.map(|micros| micros.saturating_mul(1000));
        drill.seed = self.seed;
        let bar = io::stderr().is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr();
            ProgressBar::with_draw_target(Some(u64::from(self.times)), target)
        });
        let stop = output::stop_by_interrupt();
        let report = drill.run(&mut |done, _| {
            if let Some(bar) = &bar {
                bar.set_position(u64::from(done));
            }
            match stop.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        if let Some(bar) = &bar {
            bar.finish_and_clear();
        }
        let report = report.map_err(super::clock_error)?;
        let shown = Drilled {
            partial: report.is_partial(),
            report: &report,
        };
        self.shown.show(&shown, |writer| table(writer, &report))?;
        if report.is_partial() {
            return Err(CliError::Stopped);
        }
        if report.promises_kept() {
            return Ok(());
        }
        let message = "a restore by offset broke a promise".to_owned();
        Err(CliError::Found(message))
    }
}

/// A report as JSON has it.
#[derive(Serialize)]
struct Drilled<'a> {
    partial: bool,
    #[serde(flatten)]
    report: &'a DrillReport,
}

fn table(writer: &mut dyn Write, report: &DrillReport) -> io::Result<()> {
    let place = match report.device {
        Device::Kvm => "/dev/kvm",
        Device::Fake => "no device (KVM's arithmetic on a host where only calls take time)",
    };
    let (completed, times, seed) = (report.done, report.times, report.seed);
    if report.is_partial() {
        writeln!(
            writer,
            "{place}: PARTIAL, stopped after {completed} of {times} drills by each method, seed {seed}"
        )?;
    } else {
        writeln!(
            writer,
            "{place}: {times} drills by each method, seed {seed}"
        )?;
    }
    writeln!(
        writer,
        "host TSC {} kHz; guests' TSCs are moved by {}",
        report.tsc_khz, report.tsc_moves_by
    )?;
    if report.tsc_moves_by == "nothing" {
        writeln!(
            writer,
            "  this KVM accepts TSC offsets and values and ignores both: the guest's TSC is the \
             host's, by\n  either method, and only the kvmclock shows what they do. The stated \
             bound has in it how far that\n  TSC is from where it should be"
        )?;
    }
    writeln!(writer)?;
    let (value, offset) = (find(report, Method::Value), find(report, Method::Offset));
    writeln!(writer, "{:<34}{:>16}{:>16}", "", "by value", "by offset")?;
    let mut row = |name: &str, show: &dyn Fn(&MethodReport) -> String| {
        let cell = |m: Option<&MethodReport>| m.map(show).unwrap_or_default();
        writeln!(writer, "{name:<34}{:>16}{:>16}", cell(value), cell(offset))
    };
    type Of = fn(&MethodReport) -> &Distribution;
    let errors: [(&str, Of); 3] = [
        ("kvmclock off", |m| &m.kvmclock),
        ("TSC off", |m| &m.tsc),
        ("between vCPUs", |m| &m.between_vcpus),
    ];
    for (name, error) in errors {
        row(&format!("{name}, ns: median"), &|m| {
            error(m).median_abs.to_string()
        })?;
        row("  on average", &|m| error(m).mean.to_string())?;
        row("  99 %", &|m| error(m).p99_abs.to_string())?;
        row("  99.9 %", &|m| error(m).p999_abs.to_string())?;
        row("  latest (behind)", &|m| error(m).least.min(0).to_string())?;
        row("  earliest (ahead)", &|m| error(m).most.max(0).to_string())?;
    }
    row("largest stated bound, ns", &|m| {
        bound(m, m.largest_bound_ns)
    })?;
    row("restores beyond their bound", &|m| bound(m, m.beyond_bound))?;
    row("guest saw TSC go back, cycles", &|m| {
        m.guest_tsc_back.to_string()
    })?;
    row("guest saw kvmclock go back, ns", &|m| {
        m.guest_clock_back_ns.to_string()
    })?;
    row("guest's readings", &|m| m.guest_readings.to_string())?;
    row("  with the master clock off", &|m| {
        m.guest_unstable.to_string()
    })?;
    row("saving took, us: median", &|m| {
        (m.save.median_abs / 1000).to_string()
    })?;
    row("restoring took, us: median", &|m| {
        (m.restore.median_abs / 1000).to_string()
    })
}

fn bound(method: &MethodReport, number: u64) -> String {
    match method.method {
        Method::Value => "-".to_owned(),
        _ => number.to_string(),
    }
}

fn find(report: &DrillReport, method: Method) -> Option<&MethodReport> {
    report.methods.iter().find(|m| m.method == method)
}

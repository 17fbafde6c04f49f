//! `stealtime clock show`.

use std::io::{self, Write};

use clap::{Args, ValueEnum};
use guest_clock::drill::Device;
use guest_clock::fake::GuestReading;
use guest_clock::reported::{self, Order, REPORTS, Shown as Report};
use serde::Serialize;

use super::{Shown, clock_error, wrapped};
use crate::error::CliError;

/// Show a failure that users of VMMs have reported: the order of calls that fails, and the one that does not
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime clock show --list
  stealtime clock show 6200
  stealtime clock show firecracker-6200 --json
  stealtime clock show 7930 --device kvm

Without a device the output is the same each time. Exit status 1 if the order that should be right
shows a failure.")]
pub(crate) struct Show {
    /// The report: its number, or PROJECT-NUMBER
    #[arg(required_unless_present = "list")]
    report: Option<String>,

    /// List the reports
    #[arg(long, conflicts_with_all = ["report", "device"])]
    list: bool,

    /// The same arithmetic on a fake host, or the real device where it can show the report
    #[arg(long, value_enum, default_value_t = Where::Fake)]
    device: Where,

    #[command(flatten)]
    shown: Shown,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Where {
    /// No device
    Fake,
    /// /dev/kvm
    Kvm,
}

/// A report in the list.
#[derive(Serialize)]
struct Listed {
    names: &'static [&'static str],
    failure: &'static str,
}

impl Show {
    /// Shows it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let Some(name) = &self.report else {
            return self.list();
        };
        let device = match self.device {
            Where::Fake => Device::Fake,
            Where::Kvm => Device::Kvm,
        };
        let report = reported::find(name).map_err(clock_error)?;
        let shown = report.show(device).map_err(clock_error)?;
        self.shown.show(&shown, |writer| table(writer, &shown))?;
        if shown.right.is_faulty() {
            return Err(CliError::Found(
                "the right order shows a failure on this device".to_owned(),
            ));
        }
        Ok(())
    }

    fn list(&self) -> Result<(), CliError> {
        let listed = REPORTS.map(|report| Listed {
            names: report.names,
            failure: report.failure,
        });
        self.shown.show(&listed, |writer| {
            for report in &listed {
                let line = format!("{}: {}", report.names.join(", "), report.failure);
                wrapped(writer, &line, 4)?;
            }
            Ok(())
        })
    }
}

fn table(writer: &mut dyn Write, report: &Report) -> io::Result<()> {
    let line = format!("{}: {}", report.names.join(", "), report.failure);
    wrapped(writer, &line, 4)?;
    if let Device::Kvm = report.device {
        writeln!(writer, "on /dev/kvm")?;
    }
    order(writer, "FAILS", &report.failing)?;
    order(writer, "RIGHT", &report.right)
}

fn order(writer: &mut dyn Write, mark: &str, order: &Order) -> io::Result<()> {
    writeln!(writer)?;
    wrapped(writer, &format!("{mark}: {}", order.title), 7)?;
    readings(writer, "before", &order.before)?;
    for (number, step) in (1..).zip(&order.steps) {
        wrapped(writer, &format!("  {number:>2} {step}"), 7)?;
    }
    readings(writer, "after", &order.after)?;
    for sight in &order.seen {
        wrapped(writer, &format!("  => {sight}"), 5)?;
    }
    if !order.is_faulty() {
        writeln!(writer, "  => no failure")?;
    }
    Ok(())
}

fn readings(writer: &mut dyn Write, name: &str, readings: &[GuestReading]) -> io::Result<()> {
    for (vcpu, reading) in readings.iter().enumerate() {
        let name = if vcpu == 0 { name } else { "" };
        let stable = if reading.stable {
            "stable"
        } else {
            "not stable"
        };
        let notice = if reading.stopped {
            ", notified of a pause"
        } else {
            ""
        };
        writeln!(
            writer,
            "  {name:<6} vCPU {vcpu}: TSC {:>16}, kvmclock {:>15} ns, {stable}{notice}",
            reading.tsc, reading.kvmclock_ns
        )?;
    }
    Ok(())
}

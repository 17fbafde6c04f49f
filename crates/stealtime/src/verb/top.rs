//! `stealtime top`.

mod app;
mod batch;
mod draw;
mod screen;
#[cfg(test)]
mod screen_tests;
mod view;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::Form;
use crate::error::CliError;
use crate::output;
use crate::watched::{Collection, Watched};
pub(crate) use view::vcpu_name;
use view::{Column, Shape};

/// Show where guest time goes while it goes: VMs, their vCPUs, and the host's CPUs
///
/// For each VM: the shares of its vCPUs' time in the guest, in exits, polling, waiting for a CPU (ready),
/// throttled and halted. And its wakeup latency, its longest wait for a CPU, its exits a second. The numbers
/// of a second are those that `analyze` has of a recording of it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo stealtime top
  sudo stealtime top --sort stall --interval 500ms
  sudo stealtime top --batch --for 10s
  sudo stealtime top --format json --for 1m | jq '.vms[] | {vm, ready_ns}'
  stealtime top --replay trace.dat

Needs root and tracefs. The host gets BPF programs, or a tracing instance (--collector), which
go at the end; nothing else is written.
Keys: ? shows them. A second with lost events is marked, and its numbers are lower bounds.")]
pub(crate) struct Top {
    /// Write text, or JSON lines with --format json, instead of a screen; so it is without a terminal
    #[arg(long)]
    batch: bool,

    /// End after this time: 10s, 5m
    #[arg(long = "for", value_name = "TIME", value_parser = long_time)]
    duration: Option<Duration>,

    /// Time between samples, 100ms at least
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,

    /// The column to sort by
    #[arg(long, value_name = "COLUMN", value_enum, default_value_t = Column::Ready)]
    sort: Column,

    /// Sort the other way round
    #[arg(long)]
    reverse: bool,

    /// Only VMs with this text in their names
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,

    /// Show vCPUs below their VMs
    #[arg(long)]
    vcpus: bool,

    /// Rows of VMs in text, at most
    #[arg(long, value_name = "N", default_value_t = 40)]
    top: usize,

    #[command(flatten)]
    collection: Collection,

    /// Show this recording instead of the host, on a screen at its own pace
    #[arg(long, value_name = "FILE", conflicts_with = "buffer")]
    replay: Option<PathBuf>,

    /// Read the counters of scx_stealtime from this file
    #[arg(long, value_name = "FILE", hide = true)]
    scheduler: Option<PathBuf>,

    #[command(flatten)]
    form: Form,
}

impl Top {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let is_json = self.form.is_json();
        let is_batch = self.batch || is_json || !output::has_screen();
        let mut watched = match &self.replay {
            Some(path) => Watched::recording(path, self.interval, !is_batch)?,
            None => Watched::host(self.interval, &self.collection, 0)?,
        };
        watched.set_scheduler(self.scheduler.as_deref());
        let shape = Shape {
            sort: self.sort,
            reverse: self.reverse,
            filter: self.filter.clone(),
            vcpus: self.vcpus,
        };
        let shown = match is_batch {
            true => batch::run(&mut watched, &shape, self.duration, self.top, is_json),
            false => screen::run(&mut watched, shape, self.duration),
        };
        watched.stop();
        shown
    }
}

/// Why a text is no time for `top`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TimeError {
    /// No time.
    #[error("not a length of time: give 10s, 500ms or 5m")]
    Time,
    /// Too short.
    #[error("an interval is 100ms at least, and 1 hour at most")]
    Interval,
}

/// A length of time above zero, with minutes and hours.
pub(crate) fn long_time(text: &str) -> Result<Duration, TimeError> {
    let scaled = |unit: &str, seconds: u64| {
        let number = text.strip_suffix(unit)?.parse::<u64>().ok()?;
        number.checked_mul(seconds).map(Duration::from_secs)
    };
    let short = || crate::when::length(text).ok().map(Duration::from_nanos);
    let time = short().or_else(|| scaled("m", 60));
    let time = time.or_else(|| scaled("h", 3600));
    time.filter(|time| !time.is_zero()).ok_or(TimeError::Time)
}

/// A time between samples.
pub(crate) fn interval(text: &str) -> Result<Duration, TimeError> {
    const RANGE: std::ops::RangeInclusive<Duration> =
        Duration::from_millis(100)..=Duration::from_secs(3600);
    let time = long_time(text)?;
    match RANGE.contains(&time) {
        true => Ok(time),
        false => Err(TimeError::Interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        assert_eq!(long_time("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(long_time("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(long_time("1.5s"), Ok(Duration::from_millis(1500)));
        for text in ["", "0s", "5", "-1s", "1d", "99999999999999999999h"] {
            assert_eq!(long_time(text), Err(TimeError::Time), "{text}");
        }
        assert_eq!(interval("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(interval("99ms"), Err(TimeError::Interval));
    }
}

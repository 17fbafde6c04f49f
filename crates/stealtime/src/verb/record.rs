//! `stealtime record`.

use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stealtime_live::{Commands, Ended, Missing, Observer, Options, Progress, Summary};
use stealtime_report::{count, escape, json};

use crate::args::Form;
use crate::error::CliError;
use crate::output;
use crate::report::quoted;

/// Record this host for analyze and whatif.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime record --seconds 5
  stealtime record -o busy.dat --size 500M
  stealtime record --print

Needs root and tracefs, but neither trace-cmd nor perf. trace-cmd and KernelShark open the file.
Only the events that the analyses need are recorded, in a tracing instance of its own. Ctrl-C ends
the recording with a whole file. The file has the host's snapshot too: `stealtime snapshot FILE`.")]
pub(crate) struct Record {
    /// The file to write [default: trace.dat; perf.data with --perf]
    #[arg(short, long, alias = "out", value_name = "FILE")]
    output: Option<PathBuf>,

    /// End after this time; without it, the recording ends with Ctrl-C
    #[arg(long, value_name = "N", value_parser = seconds)]
    seconds: Option<Duration>,

    /// End once the events take so many bytes: 500M, 2G
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    size: Option<u64>,

    /// The trace clock; by default one that all CPUs share
    #[arg(long, value_name = "NAME")]
    clock: Option<String>,

    /// MiB of each CPU's ring buffer; by default four seconds at the rate of the first second
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=65_536))]
    buffer: Option<u64>,

    /// Record by perf_event_open into a perf.data without a snapshot, where tracefs can only be read
    #[arg(long, conflicts_with = "print")]
    perf: bool,

    /// Print the commands of trace-cmd and perf that record the same on this kernel, and record nothing
    #[arg(long, conflicts_with_all = ["output", "size", "buffer"])]
    print: bool,

    #[command(flatten)]
    form: Form,
}

impl Record {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        if self.print {
            return self.print_commands();
        }
        let usual = if self.perf { "perf.data" } else { "trace.dat" };
        let output = self.output.clone().unwrap_or_else(|| usual.into());
        output::check_named("-o", &output, "a file")?;
        output::check(&output)?;
        let output = output::replaced_file(&output)?;
        let options = Options {
            output,
            duration: self.seconds,
            size: self.size,
            clock: self.clock.clone(),
            buffer_kb: self.buffer.map(|mib| mib * 1024),
            by_perf: self.perf,
        };
        let mut console = Console::new(self.seconds);
        let recorded = stealtime_live::record(&options, &mut console);
        console.clear();
        let summary = recorded.map_err(CliError::Record)?;
        output::to_stdout(|writer| match self.form.is_json() {
            true => json::write_any(&summary, writer),
            false => writer.write_all(rendered(&summary).as_bytes()),
        })?;
        match summary.error {
            Some(error) => Err(CliError::RecordedPart(summary.file, error)),
            None => Ok(()),
        }
    }

    fn print_commands(&self) -> Result<(), CliError> {
        let seconds = self.seconds.map_or(5.0, |seconds| seconds.as_secs_f64());
        let commands =
            stealtime_live::commands(self.clock.as_deref(), seconds).map_err(CliError::Record)?;
        output::to_stdout(|writer| match self.form.is_json() {
            true => json::write_any(&commands, writer),
            false => writer.write_all(rendered_commands(&commands).as_bytes()),
        })
    }
}

/// Records the host for this time, without progress. With a snapshot the recording names its VMs.
///
/// # Errors
/// The host cannot be recorded, or the file cannot be written.
pub(super) fn quietly(
    output: &Path,
    time: Duration,
    stop: &'static AtomicBool,
    has_snapshot: bool,
) -> Result<(), CliError> {
    let options = Options {
        output: output.to_owned(),
        duration: Some(time),
        ..Options::default()
    };
    let mut console = Console {
        stop,
        bar: None,
        duration: Some(time),
        lost: 0,
        has_snapshot,
        before: None,
    };
    let summary = stealtime_live::record(&options, &mut console).map_err(CliError::Record)?;
    match summary.error {
        Some(error) => Err(CliError::RecordedPart(summary.file, error)),
        None => Ok(()),
    }
}

/// Why a text limits no recording.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum LimitError {
    /// No time.
    #[error("expected a number of seconds, as 5 or 0.5")]
    Seconds,
    /// No size.
    #[error("expected a number of bytes, as 500M or 2G")]
    Bytes,
}

/// A positive number of seconds.
fn seconds(text: &str) -> Result<Duration, LimitError> {
    let number = text.parse().ok().filter(|seconds: &f64| *seconds > 0.0);
    let duration = number.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or(LimitError::Seconds)
}

/// A number of bytes, with K, M, G or T of 1,024 each.
pub(super) fn bytes(text: &str) -> Result<u64, LimitError> {
    let text = text
        .trim()
        .trim_end_matches(['B', 'b'])
        .trim_end_matches('i');
    let (digits, shift) = match text.char_indices().next_back() {
        Some((end, 'K' | 'k')) => (&text[..end], 10),
        Some((end, 'M' | 'm')) => (&text[..end], 20),
        Some((end, 'G' | 'g')) => (&text[..end], 30),
        Some((end, 'T' | 't')) => (&text[..end], 40),
        _ => (text, 0),
    };
    let number = digits
        .trim()
        .parse::<u64>()
        .ok()
        .filter(|number| *number > 0);
    let scaled = number.and_then(|number| number.checked_mul(1 << shift));
    scaled.ok_or(LimitError::Bytes)
}

/// Standard error while the host is recorded.
struct Console {
    stop: &'static AtomicBool,
    bar: Option<ProgressBar>,
    duration: Option<Duration>,
    /// Losses that were shown.
    lost: u64,
    /// Whether the recording gets the host's snapshot.
    has_snapshot: bool,
    /// Reads the snapshot of the begin, while events are recorded already.
    before: Option<JoinHandle<Option<stealtime_host::Snapshot>>>,
}

impl Console {
    fn new(duration: Option<Duration>) -> Self {
        let is_shown = io::stderr().is_terminal();
        Self {
            stop: output::stop_by_interrupt(),
            bar: is_shown.then(|| bar(duration)),
            duration,
            lost: 0,
            has_snapshot: true,
            before: None,
        }
    }

    fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// A line above the bar.
    fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| output::note(text)),
            None => output::note(text),
        }
    }
}

fn bar(duration: Option<Duration>) -> ProgressBar {
    let total = duration.map(|duration| duration.as_millis() as u64);
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "recording {bar:30} {msg}",
        None => "recording {spinner} {msg}",
    };
    // A template that does not parse would only mean the default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

impl Observer for Console {
    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn progress(&mut self, progress: &Progress) {
        if progress.lost > self.lost {
            let lost = count(progress.lost - self.lost);
            self.lost = progress.lost;
            self.say(&format!(
                "{:.1} s: {lost} events lost: record again with a larger --buffer",
                progress.elapsed.as_secs_f64()
            ));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(progress.elapsed.as_millis() as u64);
            let end = self.duration.map_or_else(
                || ", Ctrl-C ends it".to_owned(),
                |duration| format!(" of {:.0} s", duration.as_secs_f64()),
            );
            bar.set_message(format!(
                "{:.0} s{end}, {} events/s, {}, {} lost",
                progress.elapsed.as_secs_f64(),
                count(progress.rate),
                size(progress.bytes),
                count(progress.lost)
            ));
        }
    }

    fn warn(&mut self, text: &str) {
        self.say(text);
    }

    fn started(&mut self) {
        if !self.has_snapshot {
            return;
        }
        let read = || stealtime_host::Snapshot::read(Path::new("/")).ok();
        self.before = std::thread::Builder::new().spawn(read).ok();
    }

    fn snapshot(&mut self) -> Option<String> {
        if !self.has_snapshot {
            return None;
        }
        match stealtime_host::Snapshot::read(Path::new("/")) {
            Ok(mut snapshot) => {
                // VMs that have ended meanwhile are in this one alone.
                let begin = self.before.take().and_then(|begin| begin.join().ok());
                snapshot.before = begin.flatten().map(Box::new);
                Some(snapshot.to_json())
            }
            Err(error) => {
                self.say(&format!(
                    "stealtime: the recording has no snapshot of the host: {error}"
                ));
                None
            }
        }
    }

    fn unfinished(&mut self, path: Option<&Path>) {
        output::unfinished(path.map(Path::to_owned));
    }
}

/// The summary for people.
fn rendered(summary: &Summary) -> String {
    let file = summary.file.display().to_string();
    let file = escape::terminal(&file);
    let lost = match summary.lost {
        0 => "none lost".to_owned(),
        lost => format!("{} lost: record with a larger --buffer", count(lost)),
    };
    let ended = match summary.ended {
        Ended::Time | Ended::Stopped => "",
        Ended::Size => ", at the size asked for",
        Ended::Output => ", before its time",
    };
    let events = summary.events.map_or_else(String::new, |events| {
        format!(", {} events on {} CPUs", count(events), summary.cpus)
    });
    let mut text = format!(
        "{file}: {}, {:.2} s{ended}{events}, {lost}\n",
        size(summary.bytes),
        summary.seconds
    );
    text.push_str(&format!(
        "  clock {}: {}\n  buffers of {} KiB for each CPU; recording took {:.1} % of a CPU\n",
        summary.clock, summary.clock_reason, summary.buffer_kb, summary.cpu_percent
    ));
    text.push_str(&rendered_missing(&summary.missing));
    let argument = quoted(&summary.file.display().to_string());
    let argument = escape::terminal(&argument);
    text.push_str(&format!("  next: stealtime analyze {argument}\n"));
    text
}

/// A line for each answer that is lost.
fn rendered_missing(missing: &[Missing]) -> String {
    let mut text = String::new();
    for row in missing {
        let (events, reason) = (row.events.join(" "), row.reason.text());
        text.push_str(&format!(
            "  not recorded: {events} ({reason})\n    without: {}\n",
            row.without
        ));
    }
    text
}

fn rendered_commands(commands: &Commands) -> String {
    let mut text = format!("{}\n\n{}\n", commands.trace_cmd, commands.perf);
    if !(commands.refused.is_empty() && commands.missing.is_empty()) {
        text.push('\n');
    }
    for row in &commands.refused {
        let error = escape::terminal(&row.error);
        text.push_str(&format!("  perf cannot sample {}: {error}\n", row.event));
    }
    text.push_str(&rendered_missing(&commands.missing));
    text
}

/// Bytes in a unit that suits them.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        bytes if bytes < 1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        bytes if bytes < 1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        bytes => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_are_read() {
        let sizes = ["500M", "2GiB", "1k", "4096", "10 MB"].map(|text| bytes(text).expect(text));
        assert_eq!(sizes, [500 << 20, 2 << 30, 1 << 10, 4096, 10 << 20]);
        for text in ["", "M", "0", "-1", "1.5G", "99999999T", "x"] {
            assert!(bytes(text).is_err(), "{text}");
        }
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for text in ["", "0", "-1", "nan", "inf", "1e30", "5s"] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }
}

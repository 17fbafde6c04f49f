//! `stealtime watch`: a flight recorder.

mod disk;
mod line;
mod trigger;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use chrono::Utc;
use clap::Args;
use stealtime_live::Keep;
use stealtime_report::counted;
use stealtime_whatif::Condition;

use crate::args::Form;
use crate::error::CliError;
use crate::output;
use crate::verb::record::bytes;
use crate::verb::top::{interval, long_time};
use crate::watched::{ROUND, Watched};
use disk::{Done, Folder, Job, Outcome, Writer};
use trigger::{Trigger, Triggers, at_most};

/// Names of VMs are known some time after the begin.
const NAMES: Duration = Duration::from_secs(5);
/// Pages are kept so much longer than recordings need: rounds and samples come late.
const SLACK: Duration = Duration::from_millis(300);

/// Keep the latest seconds of this host, and write them to a file when a condition is met
///
/// A flight recorder: each recording has the seconds before its trigger, and one after it, with the host's
/// snapshot. A condition triggers when a VM begins to meet it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo stealtime watch --when 'vm.db.stall>20ms' -o /var/lib/stealtime
  sudo stealtime watch --when 'stall>50ms' --when 'vm.web.ready>30%' --at-most 2/h --for 8h
  sudo stealtime watch --when 'vm.*.wakeup.p99>5ms' --json | jq '.seen[].vm'
  stealtime watch --when 'stall>20ms' --replay trace.dat

Figures of a condition, of any VM or of one (`vm.db.ready>10%`):
  ready        time without a CPU, in percent of the vCPUs' time (steal)
  throttled    of it, time for which the bandwidth of the control group is used up
  wakeup.p50   median time from a wakeup to running
  wakeup.p99   the same, 99th percentile
  stall        the longest single wait for a CPU

Needs root and tracefs. The host gets a tracing instance, which goes at the end. Ctrl-C and SIGTERM
write a recording that is due, and end.
Exit status: 0 nothing was seen, 1 a condition was met, 2 it could not watch.")]
pub(crate) struct Watch {
    /// Record when this is so in an interval (repeat for several)
    #[arg(long, value_name = "CONDITION", required = true)]
    when: Vec<String>,

    /// Write recordings to this folder
    #[arg(short, long, alias = "out", value_name = "DIR", default_value = ".")]
    output: PathBuf,

    /// A recording has so much time before its trigger
    #[arg(long, value_name = "TIME", value_parser = long_time, default_value = "10s")]
    keep: Duration,

    /// And so much time after it: 0s for none
    #[arg(long, value_name = "TIME", value_parser = crate::when::length, default_value = "1s")]
    after: u64,

    /// Record at most so many triggers in a minute, an hour or a day: 1/m, 6/h, 20/d
    #[arg(long, value_name = "N/TIME", default_value = "6/h")]
    at_most: String,

    /// Bytes of all recordings in the folder: 500M, 2G
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "1G")]
    max_size: u64,

    /// Delete the oldest recordings of the folder where a new one would pass --max-size
    #[arg(long)]
    delete_oldest: bool,

    /// MiB of events that are kept at most; where they are less than --keep, recordings are shorter
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=65_536))]
    memory: u64,

    /// Time between looks at the conditions, 100ms at least
    #[arg(long, value_name = "TIME", default_value = "500ms", value_parser = interval)]
    interval: Duration,

    /// End after this time: 10s, 8h
    #[arg(long = "for", value_name = "TIME", value_parser = long_time)]
    duration: Option<Duration>,

    /// MiB of each CPU's ring buffer; by default by the memory of the host
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1024))]
    buffer: Option<u64>,

    /// Say when this recording would have triggered, and write nothing
    #[arg(long, value_name = "FILE", conflicts_with_all = ["buffer", "output"])]
    replay: Option<PathBuf>,

    #[command(flatten)]
    form: Form,
}

/// What there was, for the last line.
#[derive(Debug, Default)]
struct Totals {
    triggers: u64,
    recorded: u64,
    /// Losses of events, in the samples.
    lost: u64,
}

impl Watch {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let conditions = self.when.iter().map(|text| Condition::parse(text));
        let conditions: Result<Vec<Condition>, _> = conditions.collect();
        let conditions = conditions.map_err(|error| CliError::Watch(format!("--when {error}")))?;
        let rate = at_most(&self.at_most)
            .map_err(|error| CliError::Watch(format!("--at-most {}: {error}", self.at_most)))?;
        let triggers = Triggers::new(conditions, rate, Duration::from_nanos(self.after));
        let totals = match &self.replay {
            Some(path) => self.replay(path, triggers)?,
            None => self.watch(triggers)?,
        };
        match totals.triggers {
            0 => Ok(()),
            triggers => Err(CliError::Found(format!(
                "{}{}{}",
                counted(triggers, "trigger"),
                match self.replay {
                    None => format!(", {}", counted(totals.recorded, "recording")),
                    Some(_) => String::new(),
                },
                match totals.lost {
                    0 => String::new(),
                    _ => "; events were lost: use a larger --buffer".to_owned(),
                }
            ))),
        }
    }

    /// Says when a recording would have triggered.
    fn replay(&self, path: &Path, mut triggers: Triggers) -> Result<Totals, CliError> {
        let mut watched = Watched::recording(path, self.interval, false)?;
        let mut totals = Totals::default();
        let shown = |trigger: Trigger| Done {
            outcome: match trigger.is_held {
                true => Outcome::AtMost,
                false => Outcome::Replayed,
            },
            time: None,
            trigger,
        };
        let stop = output::stop_by_interrupt();
        let mut goes_on = true;
        while goes_on && !stop.load(Ordering::Relaxed) {
            goes_on = watched.poll()?;
            while let Some((sample, _)) = watched.sample() {
                if let Some(trigger) = triggers.sample(&sample) {
                    self.show(&shown(trigger), &mut totals)?;
                }
            }
        }
        if let Some(trigger) = triggers.finish() {
            self.show(&shown(trigger), &mut totals)?;
        }
        note_unknown(&mut triggers, "the recording has");
        Ok(totals)
    }

    /// Watches this host.
    fn watch(&self, mut triggers: Triggers) -> Result<Totals, CliError> {
        let failed = |source| CliError::Write {
            path: self.output.clone(),
            source,
        };
        // The folder first: what cannot be written is not watched for.
        std::fs::create_dir_all(&self.output).map_err(failed)?;
        output::check_folder(&self.output).map_err(failed)?;
        let stop = output::stop_by_interrupt();
        let keep = Keep {
            time: self.keep + Duration::from_nanos(self.after) + self.interval + SLACK,
            bytes: usize::try_from(self.memory << 20).unwrap_or(usize::MAX),
        };
        let buffer_kb = self.buffer.map(|mib| mib * 1024);
        let mut watched = Watched::recorder(self.interval, buffer_kb, keep, disk::THREADS)?;
        // The folder may belong to another user.
        stealtime_live::drop_capabilities(true);
        let folder = Folder {
            path: self.output.clone(),
            max_size: self.max_size,
            deletes_oldest: self.delete_oldest,
        };
        let writer = Writer::start(folder).map_err(failed)?;
        let mut totals = Totals::default();
        let mut result = self.look(&mut watched, &mut triggers, &writer, stop, &mut totals);
        if let Some(trigger) = triggers.finish() {
            let refused = record(&mut watched, trigger, &writer);
            result = result.and(self.show_all(refused, &mut totals));
        }
        watched.stop();
        result = result.and(self.show_all(writer.finish(), &mut totals));
        result.map(|()| totals)
    }

    /// Looks at the conditions until the end.
    fn look(
        &self,
        watched: &mut Watched,
        triggers: &mut Triggers,
        writer: &Writer,
        stop: &std::sync::atomic::AtomicBool,
        totals: &mut Totals,
    ) -> Result<(), CliError> {
        let began = Instant::now();
        let mut names_are_due = true;
        loop {
            watched.poll()?;
            while let Some((sample, _)) = watched.sample() {
                totals.lost += sample.lost + sample.lost_gaps;
                if let Some(trigger) = triggers.sample(&sample) {
                    self.show_all(record(watched, trigger, writer), totals)?;
                }
            }
            while let Some(end) = writer.done() {
                self.show(&end, totals)?;
            }
            if names_are_due && began.elapsed() >= NAMES {
                note_unknown(triggers, "it is watched for if it starts later; there are:");
                names_are_due = false;
            }
            let is_over = self.duration.is_some_and(|limit| began.elapsed() >= limit);
            if is_over || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            std::thread::sleep(ROUND);
        }
    }

    fn show_all(
        &self,
        ends: impl IntoIterator<Item = Done>,
        totals: &mut Totals,
    ) -> Result<(), CliError> {
        ends.into_iter().try_for_each(|end| self.show(&end, totals))
    }

    /// The line of a trigger.
    fn show(&self, end: &Done, totals: &mut Totals) -> Result<(), CliError> {
        totals.triggers += 1;
        totals.recorded += u64::from(matches!(end.outcome, Outcome::Recorded { .. }));
        let mut line = match self.form.is_json() {
            true => line::json(end),
            false => line::text(end, &self.at_most),
        };
        line.push('\n');
        output::to_stdout(|writer| writer.write_all(line.as_bytes()))
    }
}

/// Begins to write the recording of a trigger. What is not written is returned.
fn record(watched: &mut Watched, trigger: Trigger, writer: &Writer) -> Option<Done> {
    let time = Utc::now();
    let refused = |trigger, outcome| Done {
        trigger,
        time: Some(time),
        outcome,
    };
    if trigger.is_held {
        return Some(refused(trigger, Outcome::AtMost));
    }
    match watched.flight() {
        Some((flight, before)) => writer.write(Job {
            trigger,
            time,
            flight,
            before,
        }),
        None => Some(refused(trigger, Outcome::Replayed)),
    }
}

/// Says which VMs of conditions are not there: their names may be wrong.
fn note_unknown(triggers: &mut Triggers, fate: &str) {
    if let Some((unknown, running)) = triggers.unknown() {
        let running = match running.is_empty() {
            true => "none".to_owned(),
            false => running.join(", "),
        };
        output::note(&format!(
            "stealtime: no VM is named {}; {fate} {running}",
            unknown.join(", ")
        ));
    }
}

//! `stealtime try`: a knob of this host turned in turns, and taken back.

mod document;
mod live;
mod plan;
mod text;

use std::io::{self, BufRead, IsTerminal};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use clap::Args;
use stealtime_lab::units::{Plain, TimeError, time};
use stealtime_report::{counted, json};
use stealtime_trial::{Action, Host, RunFolder, Session, Side, Turns, recover, watch};
use stealtime_whatif::{Condition, RecordedTurns};

use crate::args::{self, Form};
use crate::error::CliError;
use crate::output;

use super::sched;
use document::{TryDocument, Turn};
use live::{Recorder, Source};
use plan::Plan;

/// Replays of the prediction, unless `--seeds` says how many.
const SEEDS: u64 = 5;
/// Slices with a guard are so long, unless `--slice` says how long.
const SLICE: Duration = Duration::from_secs(1);
/// A session gives a sign after each slice: a part of [`PATIENCE`].
const LONGEST_SLICE: Duration = Duration::from_secs(30);
/// What a host does within this time of a turn is the end of the former turn's work.
const SETTLE: Duration = Duration::from_millis(200);
/// A wait for an answer looks at the stop flag in this time.
const LOOK: Duration = Duration::from_millis(50);
/// A session without a sign for so long is taken for dead. Reading a slice can take minutes on a host
/// without a free CPU.
const PATIENCE: Duration = Duration::from_secs(180);

/// Turn knobs of this host in turns, compare with the prediction, and take them back
///
/// Records a baseline, predicts as `whatif` does, shows what would change and asks. Then turns the knobs
/// on and off, A B A B, and records each turn. It takes everything back after the time, on Ctrl-C, on a
/// guard's condition and on an error. A watchdog process does so if the command is killed. See docs/try.md.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  sudo stealtime try --set kvm.halt_poll_ns=0
  sudo stealtime try --set vm.web.cpu_weight=300 --stop-if 'vm.db.ready>10%'
  sudo stealtime try --set sched.base_slice_ns=1ms --for 60s --turn 10s --yes --json
  sudo stealtime try --set vm.web.pinning='1:1 0-3' --keep turns/
  sudo stealtime try --set sched.policy=scx-stealtime --stop-if 'stall>200ms'
  sudo stealtime try --restore

Figures of a condition, of any VM or of one (`vm.db.ready>10%`):
  ready        time without a CPU, in percent of the vCPUs' time (steal)
  throttled    of it, time for which the bandwidth of the control group is used up
  wakeup.p50   median time from a wakeup to running
  wakeup.p99   the same, 99th percentile
  stall        the longest single wait for a CPU

Exit status: 0 done, 1 a guard stopped it, 2 it could not be tried or taken back, 130 Ctrl-C.")]
pub(crate) struct Try {
    /// Turn a knob (repeat for several at once); `stealtime knobs` lists them
    #[arg(
        long,
        value_name = "KNOB=VALUE",
        required_unless_present = "restore",
        conflicts_with = "restore"
    )]
    set: Vec<String>,

    /// How long to turn: 40s
    #[arg(long = "for", value_name = "TIME", value_parser = duration, default_value = "40s")]
    total: Duration,

    /// Length of a turn; at least two of each fit into --for
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    turn: Duration,

    /// Record turns in slices of this length; conditions are checked after each [default: 1s with
    /// --stop-if, else the turn]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    slice: Option<Duration>,

    /// Length of the recording that the prediction is made from
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "5s")]
    baseline: Duration,

    /// Stop and take back if this is so in a slice (repeat for several)
    #[arg(long, value_name = "CONDITION")]
    stop_if: Vec<String>,

    /// Turn without asking
    #[arg(long)]
    yes: bool,

    /// Turn without a prediction
    #[arg(long, conflicts_with_all = ["asked_seeds", "jobs"])]
    no_prediction: bool,

    /// Replays of the prediction [default: 5]
    #[arg(long = "seeds", value_name = "N", value_parser = clap::value_parser!(u64).range(2..=1000))]
    asked_seeds: Option<u64>,

    /// Replays at a time; without it, as many as there are CPUs
    #[arg(long, value_name = "N", visible_alias = "threads")]
    jobs: Option<NonZeroUsize>,

    /// Keep the recordings in this folder
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,

    /// Only take back what a killed `stealtime try` left behind
    #[arg(long, conflicts_with_all = ["stop_if", "yes", "keep"])]
    restore: bool,

    #[command(flatten)]
    place: Place,

    /// Take recordings of this folder instead of the host's: a.dat and b.dat
    #[arg(long, value_name = "DIR", hide = true)]
    recordings: Option<PathBuf>,

    #[command(flatten)]
    form: Form,
}

/// Where the host and the former values are; other places are for tests.
#[derive(Debug, Args)]
struct Place {
    /// Turn files below this directory
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,

    /// Keep former values in this folder
    #[arg(
        long,
        value_name = "DIR",
        default_value = "/run/stealtime",
        hide = true
    )]
    run_folder: PathBuf,
}

/// Restore when a trial's process ends without doing so.
#[derive(Debug, Args)]
#[command(hide = true)]
pub(crate) struct TryWatchdog {
    #[command(flatten)]
    place: Place,
}

impl TryWatchdog {
    /// Watches.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let host = Host::new(&self.place.root);
        let outcomes = watch(&host, &self.place.run_folder, PATIENCE).map_err(stopped)?;
        let Some(outcomes) = outcomes else {
            return Ok(());
        };
        output::note("stealtime: `stealtime try` ended without taking back what it had turned:");
        live::tell(&outcomes);
        live::check(&outcomes)
    }
}

fn duration(text: &str) -> Result<Duration, TimeError> {
    let ns = time(text, Plain::Refused)?;
    match ns {
        0 => Err(TimeError::NoTime(text.to_owned())),
        ns => Ok(Duration::from_nanos(ns)),
    }
}

/// An error of the trial as one of the command.
fn stopped(error: impl std::fmt::Display) -> CliError {
    CliError::Try(error.to_string())
}

/// How a trial ended.
enum End {
    /// After its time.
    Time,
    /// By Ctrl-C or a signal.
    Signal,
    /// A condition was met: the sentence.
    Guard(String),
    /// It could not go on.
    Error(CliError),
}

impl Try {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let host = Host::new(&self.place.root).with_scheduler(sched::find());
        if self.restore {
            return self.restore_leftovers(&host);
        }
        let guards = self.guards()?;
        let turns = self.turns()?;
        // Without a terminal the question would have no answer; nothing is recorded for it.
        if !self.yes && !io::stdin().is_terminal() {
            return Err(stopped(
                "there is no terminal to ask on: add --yes to turn knobs without a question",
            ));
        }
        // The flag is watched from here on: a signal ends the trial, not the process.
        let stop = output::stop_by_interrupt();
        let folder = self.folder(&host)?;
        let plan = Plan::new(&self.place.root, &host, &self.set)?;
        let mut recorder = Recorder::new(self.source(), self.keep.as_deref(), stop)?;
        let fitted = plan.fit(recorder.baseline(self.baseline)?)?;
        let baseline = &fitted.base;
        for guard in &guards {
            guard.check_vm(baseline.recorded()).map_err(stopped)?;
        }
        recorder.check_stopped()?;
        let prediction = match self.no_prediction {
            true => None,
            false => Some(fitted.predict(self.seeds(), args::threads(self.jobs), stop)?),
        };
        recorder.check_stopped()?;
        let mut document = TryDocument::new(&plan, prediction, &guards, &turns, self.times());
        if !self.agreed(&document)? {
            return Err(stopped("nothing was turned"));
        }
        let mut recorded = RecordedTurns::new(baseline.recorded());
        let entries = plan.entries.clone();
        let session = Session::begin(host, folder, entries, self.watchdog()).map_err(stopped)?;
        let end = self.alternate(session, turns, &mut recorder, &mut recorded, &mut document);
        document.add_turns(&recorded, || plan.changes(baseline));
        self.show(&document)?;
        end?;
        live::check(&document.restored)
    }

    /// Turns, records and takes back. The document gets what happened; the error is the end's.
    fn alternate(
        &self,
        mut session: Session,
        mut turns: Turns,
        recorder: &mut Recorder,
        recorded: &mut RecordedTurns<'_>,
        document: &mut TryDocument,
    ) -> Result<(), CliError> {
        let guards = document.guards.clone();
        let mut end = End::Time;
        while let Some(action) = turns.next() {
            let result = match action {
                Action::Turn(side) => session.turn(side).map_err(stopped).map(|()| {
                    document.turns.push(Turn::new(side));
                    recorder.wait(SETTLE);
                    None
                }),
                Action::Record { turn, side } => {
                    let slice = recorder.slice(turn, side, self.slice());
                    slice.and_then(|slice| {
                        session.beat().map_err(stopped)?;
                        recorded.add(turn, &slice);
                        Ok(met(&guards, &slice))
                    })
                }
                Action::Restore => break,
            };
            match result {
                Ok(Some(guard)) => end = End::Guard(guard),
                Ok(None) if recorder.is_stopped() => end = End::Signal,
                Ok(None) => continue,
                // A slice that a signal cut short may be unreadable.
                Err(_) if recorder.is_stopped() => end = End::Signal,
                Err(error) => end = End::Error(error),
            }
            turns.stop();
        }
        document.restored = session.finish().map_err(stopped)?;
        match end {
            End::Time => Ok(()),
            End::Signal => {
                document.stopped = Some("by a signal".to_owned());
                Err(CliError::Stopped)
            }
            End::Guard(guard) => {
                let side = document.turns.last().map(|turn| turn.side);
                document.stop_by_guard(&guard, side == Some(Side::B));
                Err(CliError::Found(format!("stopped: {guard}")))
            }
            End::Error(error) => {
                let reason = match &error {
                    CliError::Try(reason) => reason.clone(),
                    error => error.to_string(),
                };
                document.stopped = Some(format!("by an error: {reason}"));
                Err(error)
            }
        }
    }

    fn guards(&self) -> Result<Vec<Condition>, CliError> {
        let guards = self.stop_if.iter().map(|text| Condition::parse(text));
        let guards: Result<Vec<Condition>, _> = guards.collect();
        guards.map_err(|error| stopped(format!("--stop-if {error}")))
    }

    /// The turns that fit.
    fn turns(&self) -> Result<Turns, CliError> {
        let pairs = self.total.as_nanos() / (2 * self.turn.as_nanos()).max(1);
        let pairs = usize::try_from(pairs).unwrap_or(usize::MAX);
        if !(2..=10_000).contains(&pairs) {
            return Err(stopped(format!(
                "--for {:?} with --turn {:?} gives {} of turns: from 2 to 10,000 are needed to see chance",
                self.total,
                self.turn,
                counted(pairs as u64, "pair")
            )));
        }
        let slice = self.slice.unwrap_or(match self.stop_if.is_empty() {
            true => self.turn,
            false => SLICE.min(self.turn),
        });
        let slice = slice.min(LONGEST_SLICE);
        let slices = self.turn.as_nanos().div_ceil(slice.as_nanos().max(1));
        Ok(Turns::new(pairs, usize::try_from(slices).unwrap_or(1)))
    }

    /// The length of a slice: slices fill a turn.
    fn slice(&self) -> Duration {
        let slices = self.turns().map_or(1, |turns| turns.slices());
        self.turn / u32::try_from(slices).unwrap_or(1)
    }

    fn times(&self) -> [f64; 3] {
        let seconds = [self.baseline, self.turn, self.slice()];
        seconds.map(|time| time.as_secs_f64())
    }

    fn seeds(&self) -> u64 {
        self.asked_seeds.unwrap_or(SEEDS)
    }

    fn source(&self) -> Source {
        match &self.recordings {
            Some(recordings) => Source::Folder {
                recordings: recordings.clone(),
                root: self.place.root.clone(),
            },
            None => Source::Host,
        }
    }

    /// The folder of former values, after what was left in it is taken back.
    fn folder(&self, host: &Host) -> Result<RunFolder, CliError> {
        let folder = RunFolder::open(&self.place.run_folder).map_err(live::needs_root)?;
        if let Some(outcomes) = recover(host, &folder).map_err(stopped)? {
            output::note("stealtime: took back what a killed `stealtime try` had left:");
            live::tell(&outcomes);
            live::check(&outcomes)?;
        }
        Ok(folder)
    }

    fn restore_leftovers(&self, host: &Host) -> Result<(), CliError> {
        let folder = RunFolder::open(&self.place.run_folder).map_err(live::needs_root)?;
        let outcomes = recover(host, &folder).map_err(stopped)?;
        let restored = outcomes.unwrap_or_default();
        output::to_stdout(|writer| match self.form.is_json() {
            true => json::write_any(&restored, writer),
            false => writer.write_all(text::restored(&restored).as_bytes()),
        })?;
        live::check(&restored)
    }

    /// The process that outlives this one.
    fn watchdog(&self) -> Command {
        let mut command = crate::this_command();
        let Place { root, run_folder } = &self.place;
        command.arg("try-watchdog").arg("--root").arg(root);
        command.arg("--run-folder").arg(run_folder);
        command
    }

    /// Shows what would be turned, and asks.
    fn agreed(&self, document: &TryDocument) -> Result<bool, CliError> {
        let plan = text::plan(document);
        match self.form.is_json() {
            true => output::note_safe(plan.trim_end()),
            false => output::to_stdout(|writer| writer.write_all(plan.as_bytes()))?,
        }
        if self.yes {
            return Ok(true);
        }
        output::note_safe("Make these changes in turns? [y/N]");
        let answer = answer()?;
        Ok(["y", "yes"].contains(&answer.trim().to_lowercase().as_str()))
    }

    fn show(&self, document: &TryDocument) -> Result<(), CliError> {
        output::to_stdout(|writer| match self.form.is_json() {
            true => json::write_any(document, writer),
            false => writer.write_all(text::result(document).as_bytes()),
        })
    }
}

/// A line of standard input. Ctrl-C ends the wait for it.
fn answer() -> Result<String, CliError> {
    let (sender, receiver) = mpsc::channel();
    let reader = move || {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        // The receiver is gone after Ctrl-C.
        let _ = sender.send(read.map(|_| line));
    };
    let started = std::thread::Builder::new().spawn(reader);
    started.map_err(CliError::Stdin)?;
    let stop = output::stop_by_interrupt();
    loop {
        match receiver.recv_timeout(LOOK) {
            Ok(line) => return line.map_err(CliError::Stdin),
            Err(mpsc::RecvTimeoutError::Timeout) if !stop.load(Ordering::Relaxed) => {}
            Err(_) => return Err(CliError::Stopped),
        }
    }
}

/// The first condition that a slice meets, as a sentence.
fn met(guards: &[Condition], slice: &stealtime_whatif::Recorded) -> Option<String> {
    let met = guards.iter().flat_map(|guard| guard.met(slice));
    met.map(|met| met.to_string()).next()
}

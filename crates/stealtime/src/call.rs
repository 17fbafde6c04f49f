//! Verbs as functions: a program that links this crate has the options, checks and messages of the command.

use std::cell::RefCell;
use std::ffi::OsString;
use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use clap::Parser;
use stealtime_analysis::Answers;
use stealtime_events::Event;
use stealtime_trace::EventSource;

use crate::args::{Recording, Window};
use crate::error::CliError;
use crate::verb::{Analyze, pick};
use crate::{Cli, input};

thread_local! {
    /// The call that this thread works for. Threads that a verb starts report through the verb.
    static CURRENT: RefCell<Option<Arc<Call>>> = const { RefCell::new(None) };
}

/// Stops of calls that have ended, for the next ones: there are as many as calls that ran at a time.
static STOPS: Mutex<Vec<&'static AtomicBool>> = Mutex::new(Vec::new());

/// A call of a verb: stopped, and watched, from other threads.
#[derive(Debug)]
pub struct Call {
    stopped: &'static AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    printed: Vec<u8>,
    notes: Vec<String>,
    step: Option<Step>,
}

/// How far the work of a call is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What is done: `reading`, `sweep`.
    pub doing: &'static str,
    /// Bytes of a recording, runs or replays.
    pub done: u64,
    /// The same of the whole; `None`: not known.
    pub total: Option<u64>,
}

/// Why a call gives no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The command's message.
    pub message: String,
    /// The command's exit status.
    pub status: u8,
}

/// The answers of `analyze`.
#[derive(Debug)]
pub struct Analysis {
    /// All of them, with histograms.
    pub answers: Answers,
    /// What `--format json` prints.
    pub document: Vec<u8>,
    /// Why less was read than was recorded: the file is cut short or damaged.
    pub cut: Option<String>,
}

/// A recording that is open for its events.
pub struct Opened {
    /// The events behind [`Self::begin`].
    pub source: Box<dyn EventSource>,
    /// Events up to the first one of the host.
    pub begin: Vec<Event>,
    /// Times of events that were asked for, in ns of the recording's clock, without the end.
    pub times: std::ops::Range<u64>,
    window: Window,
    first_ns: u64,
}

/// A recording's events by the options of every verb that reads one.
#[derive(Debug, Parser)]
#[command(name = "stealtime")]
struct Opening {
    #[command(flatten)]
    recording: Recording,
    #[command(flatten)]
    window: Window,
}

/// The options of `analyze`.
#[derive(Debug, Parser)]
#[command(name = "stealtime")]
struct Analyzing {
    #[command(flatten)]
    analyze: Analyze,
}

/// Ends the work of this thread for a call.
struct Working(Option<Arc<Call>>);

impl Drop for Working {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

impl Default for Call {
    fn default() -> Self {
        let free = lock(&STOPS).pop();
        let stopped = free.unwrap_or_else(|| Box::leak(Box::default()));
        stopped.store(false, Ordering::Relaxed);
        Self {
            stopped,
            state: Mutex::default(),
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        lock(&STOPS).push(self.stopped);
    }
}

impl Opened {
    /// Checks the times that were asked for against a recording with its last event at `last_ns`.
    ///
    /// # Errors
    /// They hold no part of it, with the command's words.
    pub fn check_times(&self, last_ns: u64) -> Result<(), Failure> {
        Ok(pick::window_of(self.window, self.first_ns, last_ns)?)
    }
}

impl Call {
    /// Ends the work as Ctrl-C ends the command: after what has begun.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    /// How far the work is; `None` if nothing is known of it.
    #[must_use]
    pub fn progress(&self) -> Option<Step> {
        self.state().step
    }

    /// What the command prints on standard error, line by line, since this was called last.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        mem::take(&mut self.state().notes)
    }

    /// What the command prints on standard output, since this was called last.
    #[must_use]
    pub fn printed(&self) -> Vec<u8> {
        mem::take(&mut self.state().printed)
    }

    /// Runs a verb with its options, the verb first.
    ///
    /// # Errors
    /// Those of the command. [`Self::printed`] has what the command prints before it.
    pub fn run(self: &Arc<Self>, arguments: &[OsString]) -> Result<(), Failure> {
        let _working = self.work();
        Ok(Cli::try_parse_from(command_line(arguments))?.verb.run()?)
    }

    /// Runs `analyze` with the options behind the verb.
    ///
    /// # Errors
    /// Those of the command; a recording that is cut short is an answer.
    pub fn analyze(self: &Arc<Self>, options: &[OsString]) -> Result<Analysis, Failure> {
        let _working = self.work();
        let Analyzing { analyze } = Analyzing::try_parse_from(command_line(options))?;
        Ok(analyze.call()?)
    }

    /// Opens a recording with the options that every verb has for it, and `--from` and `--until`. `wanted`
    /// has the tracepoints that are decoded; without it, all.
    ///
    /// # Errors
    /// Those of the command.
    pub fn open(
        options: &[OsString],
        wanted: Option<Vec<&'static str>>,
    ) -> Result<Opened, Failure> {
        let Opening { recording, window } = Opening::try_parse_from(command_line(options))?;
        let mut source = input::open(&recording.trace, &recording, wanted)?;
        let (mut begin, first) = input::first_event(&mut *source)?;
        let first_ns = first.map_or(0, |event| event.time_ns);
        begin.extend(first);
        let begin_ns = window.from.map(|moment| moment.resolve(first_ns));
        let end_ns = window.until.map(|moment| moment.resolve(first_ns));
        Ok(Opened {
            source,
            begin,
            times: begin_ns.unwrap_or(0)..end_ns.unwrap_or(u64::MAX),
            window,
            first_ns,
        })
    }

    /// The call that this thread works for.
    pub(crate) fn current() -> Option<Arc<Self>> {
        CURRENT.with_borrow(Clone::clone)
    }

    pub(crate) const fn stopped(&self) -> &'static AtomicBool {
        self.stopped
    }

    pub(crate) fn note(&self, text: &str) {
        self.state().notes.push(text.to_owned());
    }

    pub(crate) fn print(&self, bytes: &[u8]) {
        self.state().printed.extend_from_slice(bytes);
    }

    pub(crate) fn step(&self, step: Step) {
        self.state().step = Some(step);
    }

    fn work(self: &Arc<Self>) -> Working {
        Working(CURRENT.replace(Some(Arc::clone(self))))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn command_line(arguments: &[OsString]) -> impl Iterator<Item = &OsString> {
    static NAME: std::sync::LazyLock<OsString> = std::sync::LazyLock::new(|| "stealtime".into());
    std::iter::once(&*NAME).chain(arguments)
}

impl From<CliError> for Failure {
    fn from(error: CliError) -> Self {
        Self {
            message: error.shown(),
            status: error.status(),
        }
    }
}

impl From<clap::Error> for Failure {
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        // The usage that follows is that of a terminal.
        let message = text.split("\n\n").next().unwrap_or_default();
        let message = message.strip_prefix("error: ").unwrap_or(message);
        Self {
            message: message.trim_end().to_owned(),
            status: 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arguments(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn a_call_has_what_the_command_prints() {
        let call = Arc::new(Call::default());
        let knob = arguments(&["knobs", "kvm.halt_poll_ns", "--json"]);
        call.run(&knob).expect("a knob");
        let printed = String::from_utf8(call.printed()).expect("UTF-8");
        assert!(printed.contains("kvm.halt_poll_ns"), "{printed}");
        assert!(call.printed().is_empty() && Call::current().is_none());
    }

    #[test]
    fn errors_are_those_of_the_command() {
        let call = Arc::new(Call::default());
        let missing = call.run(&arguments(&["analyze", "no such file"]));
        let missing = missing.expect_err("no file");
        assert!(missing.message.starts_with("no such file: "), "{missing}");
        assert_eq!(missing.status, 2);
        let wrong = call.run(&arguments(&["fit", "a", "--seeds", "x"]));
        let wrong = wrong.expect_err("no number").message;
        assert!(
            wrong.starts_with("invalid value 'x' for '--seeds"),
            "{wrong}"
        );
    }

    #[test]
    fn a_stop_is_free_again_when_its_call_ends() {
        let call = Call::default();
        call.stop();
        let stop = call.stopped();
        assert!(stop.load(Ordering::Relaxed));
        drop(call);
        // Other tests may have taken it meanwhile, and have cleared it.
        let is_free = lock(&STOPS).iter().any(|free| std::ptr::eq(*free, stop));
        assert!(is_free || !stop.load(Ordering::Relaxed));
    }
}

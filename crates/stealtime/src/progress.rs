//! How far a long reading is, on standard error where that is a terminal.

use std::io::{IsTerminal, stderr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use stealtime_trace::EventSource;

use crate::call::{Call, Step};

/// Readings shorter than this show nothing.
const LONG: Duration = Duration::from_millis(700);
/// Events between looks at the clock.
const STRIDE: u64 = 1 << 16;

/// Whether files are read at once, with one bar for all of them.
static IS_HIDDEN: AtomicBool = AtomicBool::new(false);

/// From now on single files have no bar.
pub(crate) fn hide_files() {
    IS_HIDDEN.store(true, Ordering::Relaxed);
}

/// Work that takes longer than this is asked for with `--yes`, in seconds.
pub(crate) const LONG_SECONDS: f64 = 3600.0;

/// A time that need not be exact to the second.
pub(crate) fn long(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} seconds"),
        s if s < 7_200.0 => format!("{:.0} minutes", s / 60.0),
        s if s < 172_800.0 => format!("{:.1} hours", s / 3600.0),
        s => format!("{:.1} days", s / 86_400.0),
    }
}

/// A progress bar that appears when the work is long.
#[derive(Debug)]
pub(crate) struct Progress {
    doing: &'static str,
    started: Instant,
    events: u64,
    bar: Option<ProgressBar>,
    shown: bool,
    /// The program that watches this work instead.
    call: Option<Arc<Call>>,
}

impl Progress {
    /// Work that begins now.
    pub(crate) fn new(doing: &'static str) -> Self {
        Self {
            doing,
            started: Instant::now(),
            events: 0,
            bar: None,
            call: Call::current(),
            shown: stderr().is_terminal() && !IS_HIDDEN.load(Ordering::Relaxed),
        }
    }

    /// So many more events were read.
    pub(crate) fn events(&mut self, count: usize, source: &dyn EventSource) {
        let former = self.events / STRIDE;
        self.events += count as u64;
        if self.events / STRIDE == former {
            return;
        }
        if let Some(call) = &self.call {
            let (bytes, total) = source.progress();
            call.step(Step {
                doing: self.doing,
                done: bytes,
                total,
            });
        } else if self.shown && self.started.elapsed() > LONG {
            let (bytes, total) = source.progress();
            self.draw(bytes, total);
        }
    }

    /// Whether the program that watches this work has stopped it.
    pub(crate) fn is_stopped(&self) -> bool {
        let call = self.call.as_ref();
        call.is_some_and(|call| call.stopped().load(Ordering::Relaxed))
    }

    fn draw(&mut self, bytes: u64, total: Option<u64>) {
        let doing = self.doing;
        let bar = self.bar.get_or_insert_with(|| new_bar(doing, total));
        if let Some(total) = total {
            bar.set_length(total);
        }
        bar.set_position(bytes);
        bar.set_message(format!("{} events", self.events));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// A bar for runs, each of which takes a while.
#[derive(Debug)]
pub(crate) enum RunProgress {
    /// Short, or without a terminal.
    Hidden,
    /// A terminal's.
    Bar(ProgressBar),
    /// Watched by a program.
    Called {
        call: Arc<Call>,
        doing: &'static str,
        total: Option<u64>,
    },
}

impl RunProgress {
    /// So many runs begin now.
    pub(crate) fn new(doing: &'static str, runs: usize) -> Self {
        let template = "{prefix} {bar:30} {pos}/{len} runs, {eta} left";
        match runs {
            0 | 1 => Self::Hidden,
            _ => Self::with_template(doing, Some(runs as u64), template),
        }
    }

    /// Runs begin, and a search decides how many.
    pub(crate) fn unbounded(doing: &'static str) -> Self {
        Self::with_template(doing, None, "{prefix} {spinner} {pos} replays, {elapsed}")
    }

    fn with_template(doing: &'static str, total: Option<u64>, template: &str) -> Self {
        if let Some(call) = Call::current() {
            return Self::Called { call, doing, total };
        }
        if !stderr().is_terminal() {
            return Self::Hidden;
        }
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_prefix(doing);
        Self::Bar(bar)
    }

    /// So many were done before it began: they say nothing of the time that is left.
    pub(crate) fn resumed(self, runs: u64) -> Self {
        if let Self::Bar(bar) = &self {
            bar.set_position(runs);
            bar.reset_eta();
        }
        self
    }

    /// So many are done.
    pub(crate) fn done(&self, runs: usize) {
        match self {
            Self::Hidden => {}
            Self::Bar(bar) => bar.set_position(runs as u64),
            Self::Called { call, doing, total } => call.step(Step {
                doing,
                done: runs as u64,
                total: *total,
            }),
        }
    }
}

impl Drop for RunProgress {
    fn drop(&mut self) {
        if let Self::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn new_bar(doing: &'static str, total: Option<u64>) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
    let template = match total {
        Some(_) => "{prefix} {bar:30} {percent}% {bytes}/{total_bytes}, {msg}",
        None => "{prefix} {spinner} {bytes}, {msg}",
    };
    // A template that does not parse would only mean the default style.
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.set_prefix(doing);
    bar
}

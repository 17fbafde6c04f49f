//! A host CPU's track: the task that runs, and within it the interrupts that it takes.

use std::io;

use stealtime_events::{Kind, Names, Tid};
use stealtime_track::Loss;

use super::packet::{Category, Mark, Name, arg};
use super::track::{Period, Sink, Stack, Track};
use super::words;

/// Interrupts nested deeper than this are not shown: hosts nest few, but a damaged trace may lack ends.
const DEEPEST: usize = 16;
/// The key of a task's slice.
const TASK: u64 = 0;

/// A host CPU.
#[derive(Debug)]
pub(super) struct Cpu {
    stack: Stack,
}

impl Cpu {
    /// A CPU of which nothing is known.
    pub(super) fn new(cpu: u16, is_shown: bool) -> Self {
        Self {
            stack: Stack::new(Track::Cpu(cpu), is_shown),
        }
    }

    /// From now on this task runs. The idle task has no slice.
    pub(super) fn run(
        &mut self,
        sink: &mut Sink<'_>,
        time: u64,
        tid: Tid,
        name: Name,
    ) -> io::Result<()> {
        self.stack.close_to(sink, time, 0)?;
        if tid.is_idle() {
            return Ok(());
        }
        let args = [arg("tid", u64::from(tid.0.cast_unsigned()))];
        let mark = Mark {
            args: &args,
            ..Mark::plain(name, Category::Task)
        };
        self.stack.begin(sink, time, TASK, &mark)
    }

    /// An interrupt, softirq, timer or function call begins or ends.
    pub(super) fn work(
        &mut self,
        sink: &mut Sink<'_>,
        time: u64,
        kind: &Kind,
        names: &dyn Names,
    ) -> io::Result<()> {
        let Some((begins, key)) = work_key(kind) else {
            return Ok(());
        };
        if !begins {
            return match self.stack.find(key) {
                Some(depth) => self.stack.close_to(sink, time, depth),
                // Its begin lies before the recording.
                None => Ok(()),
            };
        }
        if self.stack.depth() >= DEEPEST {
            return Ok(());
        }
        let name = sink.packets.name(&work_name(kind, names));
        self.stack
            .begin(sink, time, key, &Mark::plain(name, Category::Irq))
    }

    /// Events were lost: nothing is known from the last event until the loss shows.
    pub(super) fn lost(&mut self, sink: &mut Sink<'_>, loss: &Loss) -> io::Result<()> {
        let begin = match loss.since {
            0 => loss.time,
            since => since,
        };
        self.stack.close_to(sink, begin, 0)?;
        let begin = self.stack.clamp(begin);
        let end = self.stack.clamp(loss.time);
        lost_slice(sink, Period { begin, end }, &self.stack, loss.count)
    }

    /// The end of the window or of the trace.
    pub(super) fn finish(&mut self, sink: &mut Sink<'_>, time: u64) -> io::Result<()> {
        self.stack.close_to(sink, time, 0)
    }

    /// Whether its track is written.
    pub(super) fn is_shown(&self) -> bool {
        self.stack.is_shown()
    }

    /// The beginning of the window.
    pub(super) fn reopen(&mut self, sink: &mut Sink<'_>) -> io::Result<()> {
        self.stack.reopen(sink)
    }
}

/// A slice over a gap in what is known; `count` is 0 where the number of events is unknown.
pub(super) fn lost_slice(
    sink: &mut Sink<'_>,
    gap: Period,
    stack: &Stack,
    count: u64,
) -> io::Result<()> {
    let name = sink.packets.name("events lost");
    let args = [arg("lost", count)];
    let mark = Mark {
        args: if count > 0 { &args } else { &[] },
        ..Mark::plain(name, Category::Lost)
    };
    stack.slice(sink, gap, &mark)
}

/// Whether the work begins, and a key that its begin and end share.
fn work_key(kind: &Kind) -> Option<(bool, u64)> {
    let key = |class: u64, number: u64| (class << 56) | (number & ((1 << 56) - 1));
    Some(match *kind {
        Kind::VectorEntry { class, vector } => {
            (true, key(1, (class as u64) << 8 | u64::from(vector)))
        }
        Kind::VectorExit { class, vector } => {
            (false, key(1, (class as u64) << 8 | u64::from(vector)))
        }
        Kind::IrqHandlerEntry { irq } => (true, key(2, irq.into())),
        Kind::IrqHandlerExit { irq } => (false, key(2, irq.into())),
        Kind::SoftirqEntry { vec } => (true, key(3, vec.into())),
        Kind::SoftirqExit { vec } => (false, key(3, vec.into())),
        Kind::CsdFunctionEntry { func } => (true, key(4, func.0.into())),
        Kind::CsdFunctionExit { func } => (false, key(4, func.0.into())),
        Kind::HrtimerExpireEntry { hrtimer, .. } => (true, key(5, hrtimer)),
        Kind::HrtimerExpireExit { hrtimer } => (false, key(5, hrtimer)),
        _ => return None,
    })
}

fn work_name(kind: &Kind, names: &dyn Names) -> String {
    let function = |prefix: &str, name: &str| {
        if name.is_empty() {
            prefix.to_owned()
        } else {
            format!("{prefix} {name}")
        }
    };
    match *kind {
        Kind::VectorEntry { class, .. } => class.stem().to_owned(),
        Kind::IrqHandlerEntry { irq } => format!("irq {irq}"),
        Kind::SoftirqEntry { vec } => words::softirq(vec),
        Kind::CsdFunctionEntry { func } => function("call", names.name(func)),
        Kind::HrtimerExpireEntry { function: id, .. } => function("hrtimer", names.name(id)),
        _ => String::new(),
    }
}

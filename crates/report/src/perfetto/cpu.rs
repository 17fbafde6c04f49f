//! A host CPU's track: the task that runs, and within it the interrupts that it takes.

use std::io::{self, Write};

use stealtime_events::{Kind, Names, Tid};

use super::packet::{Category, Mark, Name, arg};
use super::track::{Sink, Stack, Track};
use super::words;

/// Interrupts nested deeper than this are not shown.
const DEEPEST: usize = 16;
/// The key of a task's slice.
const TASK: u64 = 0;

/// A host CPU.
#[derive(Debug)]
pub(super) struct Cpu {
    stack: Stack,
    /// What runs; `None` where that is not known.
    running: Option<Tid>,
    /// What went in the latest switch, until the next task has had an event.
    leaving: Option<Tid>,
    /// Time of the last event on this CPU.
    last_ns: Option<u64>,
}

impl Cpu {
    /// A CPU of which nothing is known.
    pub(super) fn new(cpu: u16, shown: bool) -> Self {
        Self {
            stack: Stack::new(Track::Cpu(cpu), shown),
            running: None,
            leaving: None,
            last_ns: None,
        }
    }

    /// What runs, where that is known.
    pub(super) fn running(&self) -> Option<Tid> {
        self.running
    }

    /// Time of the last event.
    pub(super) fn last_ns(&self) -> Option<u64> {
        self.last_ns
    }

    /// An event of this task happened here.
    pub(super) fn seen(&mut self, time: u64, tid: Tid) {
        self.last_ns = self.last_ns.max(Some(time));
        if self.running == Some(tid) {
            self.leaving = None;
        }
    }

    /// This task goes: between `sched_switch` and the switch itself events still bear it.
    pub(super) fn leaves(&mut self, tid: Tid) {
        self.leaving = Some(tid);
    }

    /// Whether an event of this task says that it runs, whatever was known.
    pub(super) fn believes(&self, tid: Tid) -> bool {
        self.running != Some(tid) && self.leaving != Some(tid)
    }

    /// From now on this task runs. The idle task has no slice.
    pub(super) fn run<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        tid: Tid,
        name: Name,
    ) -> io::Result<()> {
        self.stack.close_to(sink, time, 0)?;
        self.running = Some(tid);
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
    pub(super) fn work<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
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

    /// Events were lost: nothing is known from the last event until now.
    pub(super) fn lost<W: Write>(
        &mut self,
        sink: &mut Sink<W>,
        time: u64,
        count: u64,
    ) -> io::Result<()> {
        let since = self.last_ns.unwrap_or(time).min(time);
        self.stack.close_to(sink, since, 0)?;
        self.running = None;
        self.leaving = None;
        let begin = self.stack.clamp(since);
        let end = self.stack.clamp(time);
        lost_slice(sink, (begin, end), &self.stack, count)
    }

    /// The end of the window or of the trace.
    pub(super) fn finish<W: Write>(&mut self, sink: &mut Sink<W>, time: u64) -> io::Result<()> {
        self.stack.close_to(sink, time, 0)
    }

    /// Whether the user wants to see it.
    pub(super) fn shown(&self) -> bool {
        self.stack.shown()
    }

    /// The beginning of the window.
    pub(super) fn reopen<W: Write>(&mut self, sink: &mut Sink<W>) -> io::Result<()> {
        self.stack.reopen(sink)
    }
}

/// A slice over a gap in what is known; `count` 0: nobody counted.
pub(super) fn lost_slice<W: Write>(
    sink: &mut Sink<W>,
    gap: (u64, u64),
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
    let key = |what: u64, which: u64| (what << 56) | (which & ((1 << 56) - 1));
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
    let function = |what: &str, name: &str| {
        if name.is_empty() {
            what.to_owned()
        } else {
            format!("{what} {name}")
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

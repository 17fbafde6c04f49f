//! ftrace text: the tracefs `trace` file, and what `trace-cmd report` prints.
//!
//! Events come in the order of the text, which is that of time. The table of tracepoints says where
//! a text has which field ([`bodies`]). Functions read the texts that differ between kernels and
//! between the kernel and trace-cmd ([`irregular`]). An unknown or unreadable event is counted by
//! name.

mod bodies;
mod clock;
mod context;
mod decoded;
mod fields;
mod irregular;
mod line;
mod lines;
mod print;
mod tasks;

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;

use stealtime_events::{Context, CpuId, Event, Kind, Tid};

use crate::input::{Damage, Progress, Stream};
use crate::options::{Options, note_unused_formats, note_unused_khz};
use crate::{ClockUnit, EventSource, Format, NameTable, ReadError, SourceInfo};
use bodies::{Bodies, Body};
use decoded::Decoded;
use line::{Line, Parsed, Stamp};
use lines::Lines;
use tasks::Tasks;

/// Bytes from the beginning from which the frequency of ticks is estimated.
const LOOK_AHEAD: usize = 4 << 20;

/// Bytes from the beginning in which the first event is looked for. A long comment may stand before it.
pub(crate) const HEAD: usize = 64 << 10;

/// Text that stands in for a byte order mark of UTF-8.
const BOM: &[u8] = b"\xef\xbb\xbf";

/// Whether these first bytes belong to a text of ftrace.
pub(crate) fn looks_like_text(head: &[u8]) -> bool {
    let head = head.strip_prefix(BOM).unwrap_or(head);
    head.split(|byte| *byte == b'\n').any(|text| {
        let text = text.trim_ascii();
        text.starts_with(b"# tracer:")
            || !matches!(line::parse(text), Parsed::Nothing | Parsed::Unknown)
    })
}

/// Events of a text.
pub(crate) struct TextSource {
    name: String,
    lines: Lines<Box<dyn Read + Send>>,
    stream: Monitor,
    names: NameTable,
    info: SourceInfo,
    tasks: Tasks,
    parser: Bodies,
    interrupts: context::Interrupts,
    queue: VecDeque<Event>,
    /// Losses that wait for the time of the event after them.
    lost: Vec<(CpuId, Option<u64>)>,
    khz: Option<u64>,
    last_ns: u64,
    counts: Counts,
    ended: bool,
}

/// Progress and damage of the input, while [`Lines`] owns its bytes.
struct Monitor {
    progress: Progress,
    damage: Damage,
}

/// Numbers of lines that cannot be decoded, and of the forms of times.
#[derive(Debug, Default)]
struct Counts {
    unknown_lines: u64,
    first_unknown: Option<(u64, String)>,
    bodies: BTreeMap<String, (u64, String)>,
    ticks: u64,
    seconds: u64,
}

impl TextSource {
    /// Reads a text.
    pub(crate) fn new(mut stream: Stream, options: &Options) -> Result<Self, ReadError> {
        let mut info = SourceInfo::new(Format::Text);
        info.compression = stream.compression;
        let khz = calibrate(&mut stream, options, &mut info)?;
        note_unused_formats(options, &mut info);
        let name = stream.name.clone();
        let monitor = Monitor {
            progress: stream.progress.clone(),
            damage: stream.damage.clone(),
        };
        let mut source = Self {
            name,
            lines: Lines::new(Box::new(stream)),
            stream: monitor,
            names: NameTable::default(),
            info,
            tasks: Tasks::default(),
            parser: Bodies::new(),
            interrupts: context::Interrupts::default(),
            queue: VecDeque::new(),
            lost: Vec::new(),
            khz,
            last_ns: 0,
            counts: Counts::default(),
            ended: false,
        };
        source.info.clock.tsc_khz = khz;
        Ok(source)
    }

    /// Reads one line and queues its events; `false` at the end.
    fn step(&mut self) -> Result<bool, ReadError> {
        let offset = self.lines.offset();
        let line = match self.lines.next() {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(false),
            Err(source) => {
                return Err(ReadError::Io {
                    input: self.name.clone(),
                    offset,
                    source,
                });
            }
        };
        let line = if offset == 0 {
            line.strip_prefix(BOM).unwrap_or(line)
        } else {
            line
        };
        match line::parse(line) {
            Parsed::Event(event) => {
                let time_ns = match (event.stamp, self.khz) {
                    (Stamp::Ns(ns), _) => ns,
                    (Stamp::Ticks(ticks), Some(khz)) => clock::ns(ticks, khz),
                    (Stamp::Ticks(ticks), None) => ticks,
                };
                match event.stamp {
                    Stamp::Ns(_) => self.counts.seconds += 1,
                    Stamp::Ticks(_) => self.counts.ticks += 1,
                }
                let mut emitter = Emitter {
                    names: &mut self.names,
                    tasks: &mut self.tasks,
                    parser: &mut self.parser,
                    interrupts: &mut self.interrupts,
                    queue: &mut self.queue,
                    bodies: &mut self.counts.bodies,
                    info: &mut self.info,
                };
                for (cpu, count) in self.lost.drain(..) {
                    emitter.interrupts.lost(cpu);
                    emitter.lost(cpu, count, time_ns);
                }
                emitter.event(&event, time_ns);
                if time_ns < self.last_ns {
                    self.info.out_of_order += 1;
                }
                self.last_ns = time_ns;
            }
            Parsed::Lost { cpu, count } => {
                match count {
                    Some(count) => {
                        self.info.lost.counted = self.info.lost.counted.saturating_add(count);
                    }
                    None => self.info.lost.uncounted_gaps += 1,
                }
                self.lost.push((cpu, count));
            }
            Parsed::Entries {
                in_buffer,
                written,
                cpus,
            } => {
                self.info.cpus = cpus.or(self.info.cpus);
                overwritten(&mut self.info, in_buffer, written);
            }
            Parsed::Cpus(cpus) => self.info.cpus = Some(cpus),
            Parsed::Nothing => {}
            Parsed::Unknown => {
                self.counts.unknown_lines += 1;
                self.counts
                    .first_unknown
                    .get_or_insert_with(|| (offset, excerpt(line)));
            }
        }
        Ok(true)
    }

    /// Adds the notes of the whole text.
    fn finish(&mut self) {
        self.ended = true;
        if self.interrupts.lines > 0 {
            let note = self.interrupts.note();
            self.info.note(false, note);
        }
        for (cpu, count) in std::mem::take(&mut self.lost) {
            let kind = Kind::Lost {
                count: count.unwrap_or(0),
            };
            self.queue.push_back(at(cpu, self.last_ns, kind));
        }
        if let Some(damage) = self.stream.damage.get() {
            self.info.note(
                true,
                format!("{damage}; what was unpacked until there is read"),
            );
        }
        let counts = &self.counts;
        if let Some((offset, text)) = &counts.first_unknown {
            let lines = counts.unknown_lines;
            self.info.note(
                true,
                format!("{lines} lines are no events; the first, at offset {offset}: {text}"),
            );
        }
        if self.lines.too_long > 0 {
            let (lines, max) = (self.lines.too_long, lines::MAX_LINE);
            self.info.note(
                true,
                format!("{lines} lines are longer than {max} bytes: left out"),
            );
        }
        for (event, (count, body)) in &counts.bodies {
            self.info.note(
                true,
                format!("the fields of {count} {event} could not be read; the first: {body}"),
            );
        }
        if counts.ticks > 0 && counts.seconds > 0 {
            let (ticks, seconds) = (counts.ticks, counts.seconds);
            self.info.note(
                true,
                format!("{seconds} times are seconds and {ticks} are bare ticks in one text"),
            );
        }
    }
}

impl EventSource for TextSource {
    fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.queue.pop_front() {
                return Ok(Some(event));
            }
            if self.ended {
                return Ok(None);
            }
            match self.step() {
                Ok(true) => {}
                Ok(false) => self.finish(),
                Err(error) => {
                    self.finish();
                    self.queue.clear();
                    return Err(error);
                }
            }
        }
    }

    fn names(&self) -> &NameTable {
        &self.names
    }

    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn progress(&self) -> (u64, Option<u64>) {
        self.stream.progress.get()
    }
}

/// Queues the events of a line. Borrows the parts of a [`TextSource`] other than its lines.
struct Emitter<'a> {
    names: &'a mut NameTable,
    tasks: &'a mut Tasks,
    parser: &'a mut Bodies,
    interrupts: &'a mut context::Interrupts,
    queue: &'a mut VecDeque<Event>,
    bodies: &'a mut BTreeMap<String, (u64, String)>,
    info: &'a mut SourceInfo,
}

impl Emitter<'_> {
    fn lost(&mut self, cpu: CpuId, count: Option<u64>, time_ns: u64) {
        self.queue.push_back(at(
            cpu,
            time_ns,
            Kind::Lost {
                count: count.unwrap_or(0),
            },
        ));
    }

    fn event(&mut self, line: &Line<'_>, time_ns: u64) {
        let Decoded { kind, tasks } = match self.parser.parse(line.event, line.body, self.names) {
            Body::Decoded(decoded) => decoded,
            Body::Unreadable => {
                self.note_unreadable(line);
                Decoded::without_tasks(self.named_only(line))
            }
            Body::Unknown => Decoded::without_tasks(self.named_only(line)),
        };
        if kind
            .tracepoint()
            .is_some_and(|name| name.as_bytes() != line.event)
        {
            self.info.note_name(&String::from_utf8_lossy(line.event));
        }
        let context = match line.context {
            Context::UNKNOWN => self.interrupts.context(line.cpu, kind),
            recorded => recorded,
        };
        let event = |kind| Event {
            time_ns,
            tid: line.tid,
            cpu: line.cpu,
            context,
            kind,
        };
        let name = self
            .tasks
            .guessed(self.names, line.tid, line.comm, line.tgid);
        self.queue.extend(name.map(event));
        for (tid, comm) in tasks.into_iter().flatten() {
            self.queue
                .extend(self.tasks.named(self.names, tid, comm).map(event));
        }
        self.queue.push_back(event(kind));
    }

    /// Counts an event of the table without readable fields.
    fn note_unreadable(&mut self, line: &Line<'_>) {
        /// Bounds memory on a text with ever new names; more tracepoints than a recording has.
        const MAX: usize = 100;
        let event = String::from_utf8_lossy(line.event).into_owned();
        if self.bodies.len() < MAX || self.bodies.contains_key(&event) {
            let first = || (0, excerpt(line.body));
            self.bodies.entry(event).or_insert_with(first).0 += 1;
        }
    }

    /// An event known by its name alone. Lines of the function tracer have none.
    fn named_only(&mut self, line: &Line<'_>) -> Kind {
        let name = match line.event {
            [] => b"function",
            event => event,
        };
        Kind::Other {
            name: self.names.intern_bytes(name),
        }
    }
}

/// An event without a task.
fn at(cpu: CpuId, time_ns: u64, kind: Kind) -> Event {
    Event {
        time_ns,
        tid: Tid::IDLE,
        cpu,
        context: Context::UNKNOWN,
        kind,
    }
}

/// Counts and notes the events that the kernel overwrote before the text was made.
fn overwritten(info: &mut SourceInfo, in_buffer: u64, written: u64) {
    let lost = written.saturating_sub(in_buffer);
    if lost == 0 {
        return;
    }
    info.lost.counted = info.lost.counted.saturating_add(lost);
    info.note(
        false,
        format!(
            "{lost} of {written} events were overwritten before the text was made (buffer_size_kb \
             was too small for the span): what is here begins late, on each CPU at its own time"
        ),
    );
}

/// The beginning of a text for a message.
fn excerpt(text: &[u8]) -> String {
    let part = text.trim_ascii();
    let part = part.get(..80).unwrap_or(part);
    format!("\"{}\"", part.escape_ascii())
}

/// The frequency of the text's clock in kHz. `None` where times are no ticks, or no estimate is possible.
fn calibrate(
    stream: &mut Stream,
    options: &Options,
    info: &mut SourceInfo,
) -> Result<Option<u64>, ReadError> {
    let head = stream.peek(HEAD)?;
    let first = events(head).next();
    if !matches!(
        first,
        Some(Line {
            stamp: Stamp::Ticks(_),
            ..
        })
    ) {
        note_unused_khz(options, info);
        return Ok(None);
    }
    if let Some(khz) = options.tsc_khz.filter(|khz| *khz > 0) {
        return Ok(Some(khz));
    }
    let head = stream.peek(LOOK_AHEAD)?;
    let pairs = events(head).filter_map(|line| {
        let Stamp::Ticks(ticks) = line.stamp else {
            return None;
        };
        let now_ns = clock::expiry_now(line.event, line.body)?;
        Some(clock::Expiry { ticks, now_ns })
    });
    let Some(estimate) = clock::estimate(pairs.collect()) else {
        info.clock.unit = ClockUnit::Ticks;
        info.note(
            false,
            "times are ticks of a clock with a frequency that is not in the text (no \
             hrtimer_expire_entry to estimate it from, or no TSC): if it is the TSC, give \
             its frequency with --tsc-khz",
        );
        return Ok(None);
    };
    let clock::Estimate {
        khz,
        error_khz,
        pairs,
    } = estimate;
    info.clock.name = "x86-tsc".to_owned();
    info.note(
        false,
        format!(
            "times are ticks, converted with {khz} kHz +- {error_khz} kHz as {pairs} \
             hrtimer_expire_entry tell; --tsc-khz sets it exactly"
        ),
    );
    Ok(Some(khz))
}

/// The events among the whole lines of a beginning.
fn events(head: &[u8]) -> impl Iterator<Item = Line<'_>> {
    let head = head.strip_prefix(BOM).unwrap_or(head);
    let end = memchr::memrchr(b'\n', head).unwrap_or(head.len());
    let whole = head.get(..end).unwrap_or(head);
    whole
        .split(|byte| *byte == b'\n')
        .filter_map(|text| match line::parse(text) {
            Parsed::Event(line) => Some(line),
            _ => None,
        })
}

/// Reading never fails: for tests on bytes in memory.
#[cfg(test)]
pub(crate) fn from_bytes(text: &[u8], options: &Options) -> Result<TextSource, ReadError> {
    let input: Box<dyn Read + Send> = Box::new(std::io::Cursor::new(text.to_vec()));
    TextSource::new(Stream::new("text".to_owned(), input, None, None)?, options)
}

#[cfg(test)]
mod tests;

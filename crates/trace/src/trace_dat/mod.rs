//! trace-cmd's `trace.dat`, versions 6 and 7 (trace-cmd.dat.v6(5), trace-cmd.dat.v7(5)).
//!
//! Memory does not grow with the file: it holds one run of pages, or one compressed chunk, of each CPU.
//! CPUs are merged by time. Damage costs the damaged part alone: a broken page is skipped, cut data are
//! read up to their end, and both are noted.

mod compression;
mod cpu;
mod input;
pub(crate) mod layout;
mod meta;
mod open;
mod options;
mod page;
mod pages;
mod shift;
mod unpacker;

use std::cmp::Reverse;
use std::collections::binary_heap::PeekMut;
use std::collections::{BinaryHeap, HashMap};
use std::fs::File;
use std::path::PathBuf;

use stealtime_events::{Event, Kind, Tid};

use crate::tracefs::{Decoder, Endian, EventQueue, EventSink, Formats, Stamp};
use crate::{EventSource, Format, NameTable, ReadAt, ReadError, SourceInfo};
use cpu::{CpuStream, Feed, Ticks};
use input::Source;
use open::{Opened, Preface};
use unpacker::Unpacker;

pub use pages::Pages;

/// A trace.dat file being read.
///
/// Events come in the order of `trace-cmd report`: by time; at equal times by the buffer's and the
/// CPU's place in the file.
pub struct TraceDat {
    feed: Feed,
    info: SourceInfo,
    names: NameTable,
    decoder: Decoder,
    streams: Vec<CpuStream>,
    /// Streams but the current one, by the time of their current record.
    waiting: BinaryHeap<Reverse<(u64, usize)>>,
    current: Option<usize>,
    queue: EventQueue,
    /// Tasks that the file names outside of events, until its first event.
    preface: Option<Preface>,
    /// Name and clock of each buffer, in the order of the file.
    buffers: Vec<(String, String)>,
    last_time: u64,
    /// An error, until the events before it are read.
    failed: Option<ReadError>,
}

/// The event formats of a file and their byte order, for a recording that lacks its own.
pub(crate) fn formats(
    input: Box<dyn ReadAt>,
    name: &str,
    len: u64,
) -> Result<(Formats, Endian), ReadError> {
    let mut source = Source::new(input, name.to_owned(), len);
    let mut info = SourceInfo::new(Format::TraceDat(7));
    let meta = meta::Meta::read(&mut source, &mut info)?;
    Ok((meta.formats, meta.endian))
}

impl TraceDat {
    /// How many of a file's first bytes [`Self::recognise`] needs.
    pub const HEAD: usize = layout::MAGIC.len();

    /// Whether a file that starts like this is a trace.dat.
    #[must_use]
    pub fn recognise(first_bytes: &[u8]) -> bool {
        first_bytes.starts_with(layout::MAGIC)
    }

    /// Opens a file. `name` is what messages call it.
    ///
    /// # Errors
    /// The file is empty, is no trace.dat of version 6 or 7, or is damaged where nothing can be read
    /// without it.
    pub fn open(file: File, name: &str) -> Result<Self, ReadError> {
        let len = file
            .metadata()
            .map(|metadata| metadata.len())
            .map_err(|source| ReadError::Open {
                path: PathBuf::from(name),
                source,
            })?;
        Self::new(Box::new(file), name, len)
    }

    /// Reads from anything that has positions; `len` is its length in bytes.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn new(input: Box<dyn ReadAt>, name: &str, len: u64) -> Result<Self, ReadError> {
        let mut source = Source::new(input, name.to_owned(), len);
        let mut info = SourceInfo::new(Format::TraceDat(7));
        let meta = meta::Meta::read(&mut source, &mut info)?;
        Ok(Self::from_parts(open::open(source, meta, info)))
    }

    fn from_parts(parts: Opened) -> Self {
        Self {
            feed: parts.feed,
            info: parts.info,
            names: parts.names,
            decoder: parts.decoder,
            streams: parts.streams,
            waiting: BinaryHeap::new(),
            current: None,
            queue: EventQueue::default(),
            preface: Some(parts.preface),
            buffers: parts.buffers,
            last_time: 0,
            failed: None,
        }
    }

    /// Converts times that are ticks of the TSC, if the file has no conversion. `khz` is the TSC's
    /// frequency. Returns whether it applies. To be called before the first event.
    pub fn set_tsc_khz(&mut self, khz: u64) -> bool {
        use crate::ClockUnit;
        let clock = &mut self.info.clock;
        if khz == 0 || clock.unit != ClockUnit::Ticks || clock.name != "x86-tsc" {
            return false;
        }
        clock.unit = ClockUnit::Ns;
        clock.tsc_khz = Some(khz);
        for stream in &mut self.streams {
            stream.plan.scale.ticks = Ticks::Khz(khz);
        }
        true
    }

    /// Unpacks compressed trace data by a thread of its own, ahead of the reader. The events are the same.
    /// Without effect where data are not compressed, or are of more than 512 CPUs. An input needs a second
    /// handle, and the operating system has to give a thread. To be called before the first event.
    pub fn unpack_ahead(&mut self) {
        let Feed {
            source,
            compression,
            ..
        } = &self.feed;
        let plans = self.streams.iter().map(|stream| &stream.plan);
        if plans.clone().any(|plan| plan.compressed)
            && let (Some(source), Some(compression)) = (source.another(), compression.another())
        {
            self.feed.unpacker = Unpacker::new(plans, source, compression);
        }
    }

    /// What is known of the recording, for a caller that knows more (the compression around the file).
    pub fn info_mut(&mut self) -> &mut SourceInfo {
        &mut self.info
    }

    /// Advances to the first record of each CPU, and emits the preface.
    fn start(&mut self, preface: &Preface) -> Result<(), ReadError> {
        for (index, stream) in self.streams.iter_mut().enumerate() {
            if stream.advance(&mut self.feed, &mut self.info)? {
                self.waiting.push(Reverse((stream.time, index)));
            }
        }
        self.note_buffers();
        self.current = self.waiting.pop().map(|Reverse((_, index))| index);
        let Some(first) = self.current.and_then(|index| self.streams.get(index)) else {
            self.info
                .note(false, "the file has no events: was anything recorded?");
            return Ok(());
        };
        let stamp = Stamp {
            time_ns: first.time,
            cpu: first.plan.cpu,
        };
        self.last_time = first.time;
        for &(vm, vcpu, tid) in &preface.vcpus {
            self.queue
                .push(stamp.event(Kind::VcpuThread { tid, vm, vcpu }));
        }
        let tgids: HashMap<Tid, Tid> = lines(&preface.tgids).filter_map(tgid).collect();
        for (tid, comm) in lines(&preface.cmdlines).filter_map(cmdline) {
            let process = tgids.get(&tid).copied();
            self.decoder
                .task_named(tid, process, comm, stamp, &mut self.names, &mut self.queue);
        }
        Ok(())
    }

    /// Notes the tracing instances with events, and clocks that differ.
    fn note_buffers(&mut self) {
        let mut with_events: Vec<usize> = self
            .waiting
            .iter()
            .filter_map(|Reverse((_, index))| {
                self.streams.get(*index).map(|stream| stream.plan.buffer)
            })
            .collect();
        with_events.sort_unstable();
        with_events.dedup();
        let used: Vec<_> = with_events
            .iter()
            .filter_map(|buffer| self.buffers.get(*buffer))
            .collect();
        let named: Vec<String> = used
            .iter()
            .filter(|(name, _)| !name.is_empty())
            .map(|(name, _)| format!("\"{}\"", name.escape_debug()))
            .collect();
        if !named.is_empty() {
            let named = named.join(", ");
            self.info.note(
                false,
                format!("events of the tracing instances {named} are merged in by time"),
            );
        }
        if let Some((_, first)) = used.first()
            && let Some((name, clock)) = used.iter().find(|(_, clock)| clock != first)
        {
            let text = format!(
                "instance \"{}\" has clock {clock}, others have {first}: the order of their events \
                 is not known",
                name.escape_debug()
            );
            self.info.note(false, text);
        }
    }

    /// Decodes the current record and advances to the next one in time.
    fn step(&mut self, current: usize) -> Result<(), ReadError> {
        let Some(stream) = self.streams.get_mut(current) else {
            debug_assert!(false, "no stream {current}");
            self.current = None;
            return Ok(());
        };
        let stamp = Stamp {
            time_ns: stream.time,
            cpu: stream.plan.cpu,
        };
        if stamp.time_ns < self.last_time {
            self.info.out_of_order += 1;
        }
        self.last_time = stamp.time_ns;
        if let Some(count) = stream.lost.take() {
            self.queue.push(stamp.event(Kind::Lost { count }));
        }
        self.decoder.decode(
            stream.record(),
            stamp,
            &mut self.names,
            &mut self.info,
            &mut self.queue,
        );
        if let Some((offset, source)) = self.decoder.take_failure() {
            let input = self.feed.source.name.clone();
            return Err(ReadError::Io {
                input,
                offset,
                source,
            });
        }
        if !stream.advance(&mut self.feed, &mut self.info)? {
            self.current = self.waiting.pop().map(|Reverse((_, index))| index);
        } else if let Some(mut first) = self.waiting.peek_mut()
            && first.0 < (stream.time, current)
        {
            self.current = Some(first.0.1);
            *first = Reverse((stream.time, current));
            drop::<PeekMut<'_, _>>(first);
        }
        Ok(())
    }

    /// Decodes the next record into the queue; `false` where there is none.
    #[inline]
    fn decode_one(&mut self) -> bool {
        let result = match (self.preface.take(), self.current) {
            (Some(preface), _) => self.start(&preface),
            (None, Some(current)) => self.step(current),
            (None, None) => return false,
        };
        if let Err(error) = result {
            self.current = None;
            self.failed = Some(error);
        }
        true
    }
}

impl EventSource for TraceDat {
    fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.queue.pop() {
                return Ok(Some(event));
            }
            if !self.decode_one() {
                return self.failed.take().map_or(Ok(None), Err);
            }
        }
    }

    fn next_events(&mut self, limit: usize, batch: &mut Vec<Event>) -> Result<bool, ReadError> {
        let wanted = batch.len() + limit;
        self.queue.pop_into(batch, wanted);
        if batch.len() < wanted {
            // Nothing waits, and records are decoded behind the events of the batch.
            self.queue.swap(batch);
            while self.queue.len() < wanted && self.decode_one() {}
            self.queue.swap(batch);
            // The last record may give several.
            for event in batch.drain(wanted.min(batch.len())..) {
                self.queue.push(event);
            }
        }
        if batch.len() == wanted {
            return Ok(true);
        }
        self.failed.take().map_or(Ok(false), Err)
    }

    fn names(&self) -> &NameTable {
        &self.names
    }

    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn progress(&self) -> (u64, Option<u64>) {
        // A few headers are read twice: they must not make it more than all.
        let len = self.feed.source.len;
        (self.feed.source.read.min(len), Some(len))
    }
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// A line of `saved_tgids`: the ids of a thread and of its process.
fn tgid(line: &[u8]) -> Option<(Tid, Tid)> {
    let (tid, tgid) = std::str::from_utf8(line).ok()?.trim().split_once(' ')?;
    let process = tgid.trim().parse().ok().filter(|process| *process > 0)?;
    Some((Tid(tid.parse().ok()?), Tid(process)))
}

/// A line of `saved_cmdlines`: tid, space, name (which may have spaces).
fn cmdline(line: &[u8]) -> Option<(Tid, &[u8])> {
    let line = line.trim_ascii_start();
    let space = memchr::memchr(b' ', line)?;
    let tid = std::str::from_utf8(line.get(..space)?).ok()?.parse().ok()?;
    let comm = line.get(space + 1..)?;
    // `trace_find_cmdline` (kernel/trace/trace_sched_switch.c) has this for an unknown name.
    (comm != b"<...>").then_some((Tid(tid), comm))
}

#[cfg(test)]
mod tests;

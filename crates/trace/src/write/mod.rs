//! Events to trace-cmd's `trace.dat`, versions 6 and 7.
//!
//! What is written reads like a recording of a real host: [`crate::open`], `trace-cmd report` and
//! KernelShark find descriptions of every tracepoint, pages of the ring buffer, symbols, and names of
//! tasks. Memory does not grow with the number of events: pages wait in a temporary file until the
//! last event is known.
//!
//! ```
//! use stealtime_events::{Context, CpuId, Event, Kind, Tid, VcpuId};
//! use stealtime_trace::write::{Options, TraceDatWriter};
//! use stealtime_trace::{EventSource, NameTable, TraceDat};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let names = NameTable::default();
//! let mut file = Vec::new();
//! let mut writer = TraceDatWriter::new(&mut file, Options::default())?;
//! let event = Event {
//!     time_ns: 1_000,
//!     tid: Tid(77),
//!     cpu: CpuId(3),
//!     context: Context::default(),
//!     kind: Kind::KvmEntry { vcpu: VcpuId(0) },
//! };
//! writer.push(&event, &names)?;
//! assert_eq!(writer.finish()?.events, 1);
//!
//! let len = file.len() as u64;
//! let mut source = TraceDat::new(Box::new(file), "made", len)?;
//! assert_eq!(source.next_event()?, Some(event));
//! # Ok(())
//! # }
//! ```

mod container;
mod error;
mod layout;
mod page;
mod reason;
mod spool;
mod symbols;
mod tasks;
mod undecoded;

use std::io::Write;

use stealtime_events::{CpuId, Event, Kind, Names};

use crate::tracepoint::{self, Tracepoint, Values};
use crate::{Clock, SourceInfo};
use container::Meta;
pub use error::WriteError;
use layout::{COMM, COMMON, Layout, MAX_RECORD};
use page::{PAGE, Pages};
use spool::{Extent, Spool};
use symbols::Symbols;
use tasks::Tasks;
use undecoded::Undecoded;

/// ID of the first tracepoint. Those of a kernel's own trace entries are below.
const FIRST_ID: u16 = 300;
/// Most pages that are spooled at once: one compressed chunk, which readers unpack as a whole.
const RUN: usize = 16;
/// Pages that the CPUs hold in memory together, in bytes, as long as one each is less.
const HELD: usize = 32 << 20;

/// Version of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Version {
    /// Read by every trace-cmd and KernelShark.
    #[default]
    V6,
    /// Read by trace-cmd 3.0 and KernelShark 2.2, and later ones.
    V7,
}

/// Compression of the trace data.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// zstd, in version 7 only; a reader without zstd cannot read it.
    Zstd,
}

/// What a recording is made with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Version of the file.
    pub version: Version,
    /// Compression of the trace data.
    pub compression: Compression,
    /// The clock of the events' times, [`crate::SourceInfo::clock`] of a recording that is re-written.
    /// An empty name: it is not known.
    pub clock: Clock,
    /// How many CPUs the host has, if that is known; CPUs with events are there in any case.
    pub cpus: u32,
    /// `uname` of the host.
    pub uname: Option<String>,
    /// Tracepoints that are switched on: those that never happen are described all the same, and so
    /// known to have been recorded.
    pub recorded: Vec<String>,
}

/// What was written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events of the host ([`Kind::is_host_event`]).
    pub events: u64,
    /// Of these, events that are known by name only.
    pub named_only: u64,
    /// Of the others, those of which it is not known whether they happened in an interrupt. The file says
    /// that they did not: its flags cannot be unknown.
    pub unknown_contexts: u64,
    /// Losses ([`Kind::Lost`]) that were noted.
    pub losses: u64,
    /// Events whose time was before that of the one before them on the same CPU. They were written
    /// all the same.
    pub out_of_order: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A trace.dat being written.
///
/// The file is there once [`Self::finish`] has returned; nothing is written before.
pub struct TraceDatWriter<W> {
    out: W,
    options: Options,
    points: Vec<Tracepoint>,
    layouts: Vec<Layout>,
    /// Which of `points` were written.
    used: Vec<bool>,
    undecoded: Undecoded,
    symbols: Symbols,
    tasks: Tasks,
    cpus: Vec<Option<Box<Cpu>>>,
    /// How many of `cpus` there are.
    seen: usize,
    /// How many whole pages of a CPU are spooled at once.
    run: usize,
    spool: Spool,
    stats: Stats,
}

/// One CPU's events.
#[derive(Default)]
struct Cpu {
    pages: Pages,
    extents: Vec<Extent>,
    last_ns: u64,
}

impl<W: Write> TraceDatWriter<W> {
    /// Begins a recording.
    ///
    /// # Errors
    /// Options that contradict each other; zstd cannot be set up.
    pub fn new(out: W, options: Options) -> Result<Self, WriteError> {
        if options.version == Version::V6 && options.compression != Compression::None {
            return Err(WriteError::Version6Compressed);
        }
        check(&options.clock)?;
        let written = tracepoint::all().filter(|point| !point.is_read_only());
        let points: Vec<Tracepoint> = written.collect();
        let undecoded = Undecoded::new(FIRST_ID + points.len() as u16);
        Ok(Self {
            out,
            layouts: points.iter().map(Layout::of).collect(),
            used: vec![false; points.len()],
            points,
            undecoded,
            symbols: Symbols::default(),
            tasks: Tasks::default(),
            cpus: Vec::new(),
            seen: 0,
            run: RUN,
            spool: Spool::new(options.compression)?,
            stats: Stats::default(),
            options,
        })
    }

    /// Adds an event; `names` is the table that its names are in. Events come in the order of time;
    /// those of one CPU are read back in the order in which they came here whatever their times.
    ///
    /// Names of tasks ([`Kind::Task`]) are carried by the events of the scheduler that follow and by
    /// the list of saved command lines, losses ([`Kind::Lost`]) by the page that follows. A field that
    /// the kernel's tracepoint has not is left out: `intr_vector` on SVM, `vcpu` and `info1` on arm64
    /// and RISC-V.
    ///
    /// # Errors
    /// The temporary file cannot be written, or there are too many events known by name only.
    pub fn push(&mut self, event: &Event, names: &dyn Names) -> Result<(), WriteError> {
        match event.kind {
            Kind::Task { tid, process, name } => self.tasks.named(tid, process, names.name(name)),
            Kind::VcpuThread { tid, vm, vcpu } => self.tasks.vcpu(tid, vm, vcpu, names),
            Kind::Lost { count } => self.lost(event.cpu, count),
            _ => return self.record(event, names),
        }
        Ok(())
    }

    /// Events of this CPU were lost before the next one: so many, or 0 where that is not known.
    pub fn lost(&mut self, cpu: CpuId, count: u64) {
        self.stats.losses += 1;
        self.cpu(cpu).pages.lose(count);
    }

    /// Takes what is known of a recording that is re-written: its clock, CPUs, `uname` and tracepoints
    /// in place of those of the [`Options`]. Some of it is known only once all was read.
    pub fn describe(&mut self, info: &SourceInfo) {
        let options = &mut self.options;
        options.clock.clone_from(&info.clock);
        options.cpus = info.cpus.unwrap_or(0);
        options.uname.clone_from(&info.uname);
        options.recorded.clone_from(&info.recorded);
    }

    /// What was written so far; no bytes before [`Self::finish`].
    pub const fn stats(&self) -> Stats {
        self.stats
    }

    fn record(&mut self, event: &Event, names: &dyn Names) -> Result<(), WriteError> {
        let mut record = [0; MAX_RECORD];
        let symbols = &mut self.symbols;
        let values = tracepoint::write(event.kind, &mut |id| symbols.address(id, names));
        let (id, len) = match values {
            Some(values) => {
                let context = event.context;
                self.stats.unknown_contexts +=
                    u64::from(!context.in_task() && !context.in_interrupt());
                let len = self.fill(&mut record, &values, event.cpu);
                (FIRST_ID + values.point.number(), len)
            }
            None => {
                self.stats.named_only += 1;
                (self.undecoded.id(event.kind, names)?, COMMON)
            }
        };
        let [low, high] = id.to_le_bytes();
        let [a, b, c, d] = event.tid.0.to_le_bytes();
        let common = [low, high, event.context.bits(), 0, a, b, c, d];
        if let Some(to) = record.first_chunk_mut() {
            *to = common;
        }
        self.stats.events += 1;
        let time = event.time_ns;
        let cpu = self.cpu(event.cpu);
        let back = time < cpu.last_ns;
        cpu.last_ns = time;
        cpu.pages.push(time, record.get(..len).unwrap_or(&record));
        self.stats.out_of_order += u64::from(back);
        self.spool(event.cpu)
    }

    /// Puts the fields at their places; gives the record's length.
    #[inline]
    fn fill(&mut self, record: &mut [u8; MAX_RECORD], values: &Values, cpu: CpuId) -> usize {
        let at = usize::from(values.point.number());
        if let Some(used) = self.used.get_mut(at) {
            *used = true;
        }
        let Some(layout) = self.layouts.get(at) else {
            return COMMON;
        };
        let count = usize::from(layout.count);
        for (place, value) in layout.fields.iter().zip(values.fields).take(count) {
            let offset = usize::from(place.offset);
            let bytes = value.to_le_bytes();
            if place.size == COMM {
                let comm = self.tasks.comm(value as i32, cpu.0);
                if let Some(to) = record.get_mut(offset..offset + comm.len()) {
                    to.copy_from_slice(&comm);
                }
            } else if let Some(to) = record.get_mut(offset..offset + usize::from(place.size))
                && let Some(from) = bytes.get(..to.len())
            {
                to.copy_from_slice(from);
            }
        }
        usize::from(layout.len)
    }

    fn cpu(&mut self, cpu: CpuId) -> &mut Cpu {
        let at = usize::from(cpu.0);
        if self.cpus.len() <= at {
            self.cpus.resize_with(at + 1, || None);
        }
        if self.cpus.get(at).is_some_and(Option::is_none) {
            self.seen += 1;
            self.run = (HELD / PAGE / self.seen).clamp(1, RUN);
        }
        // The entry is there: the table has just been made large enough.
        self.cpus[at].get_or_insert_default()
    }

    /// Spools the whole pages of a CPU if they are enough.
    #[inline]
    fn spool(&mut self, cpu: CpuId) -> Result<(), WriteError> {
        let run = self.run;
        match self.cpus.get_mut(usize::from(cpu.0)) {
            Some(Some(cpu)) if cpu.pages.full(run) => keep(cpu, &mut self.spool),
            _ => Ok(()),
        }
    }

    /// Writes the file.
    ///
    /// # Errors
    /// The output cannot be written, the temporary file cannot be read, or the clock's name (of
    /// [`Self::describe`]) is none.
    pub fn finish(mut self) -> Result<Stats, WriteError> {
        check(&self.options.clock)?;
        for cpu in self.cpus.iter_mut().flatten() {
            cpu.pages.finish();
            keep(cpu, &mut self.spool)?;
        }
        let meta = self.meta();
        let head = meta.head(&self.options);
        let mut out = Counted {
            out: &mut self.out,
            bytes: 0,
        };
        out.write_all(&head.bytes).map_err(WriteError::Io)?;
        let cpus = self.cpus.iter().flatten();
        for (cpu, start) in cpus.zip(head.starts) {
            let gap = start.saturating_sub(out.bytes) as usize;
            let zeros = [0; PAGE];
            out.write_all(zeros.get(..gap).unwrap_or(&zeros))
                .map_err(WriteError::Io)?;
            if self.options.compression != Compression::None {
                let chunks = cpu.extents.len() as u32;
                out.write_all(&chunks.to_le_bytes())
                    .map_err(WriteError::Io)?;
            }
            self.spool.copy(&cpu.extents, &mut out)?;
        }
        self.stats.bytes = out.bytes;
        self.out.flush().map_err(WriteError::Io)?;
        Ok(self.stats)
    }

    /// Everything but the events.
    fn meta(&self) -> Meta {
        let mut options = container::options(&self.options);
        for (name, vcpus) in self.tasks.guests() {
            let vcpus = vcpus.iter().map(|(vcpu, tid)| (vcpu.0, tid.0));
            options.push(container::guest(name, vcpus));
        }
        let tgids = self.tasks.tgids();
        if !tgids.is_empty() {
            options.push((container::SAVED_TGIDS, tgids.into_bytes()));
        }
        let chunked = self.options.compression != Compression::None;
        let cpus = (0..=u16::MAX).zip(&self.cpus);
        let data = cpus.filter_map(|(number, cpu)| {
            let extents = &cpu.as_ref()?.extents;
            let len: u64 = extents.iter().map(|extent| extent.len()).sum();
            Some((number, len + if chunked { 4 } else { 0 }))
        });
        // A CPU's number has 16 bits.
        let cpus = self.options.cpus.min(1 << 16).max(self.cpus.len() as u32);
        Meta {
            systems: self.systems(),
            kallsyms: self.symbols.kallsyms().to_owned(),
            cmdlines: self.tasks.cmdlines(),
            options,
            cpus,
            data: data.collect(),
        }
    }

    /// Descriptions of what was written or switched on; of all where that would be none.
    fn systems(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut systems: Vec<(&'static str, Vec<String>)> = Vec::new();
        let recorded = &self.options.recorded;
        let all = self.stats.events == 0 && recorded.is_empty();
        let points = (FIRST_ID..).zip(self.points.iter().zip(&self.used));
        for (id, (point, used)) in points {
            // Of `kvm_exit` the first description is that of x86.
            let first = !systems.iter().any(|(_, events)| {
                let name = format!("name: {}\n", point.name);
                events.iter().any(|event| event.starts_with(&name))
            });
            let on = recorded.iter().any(|name| name == point.name);
            if !*used && !(first && (all || on)) {
                continue;
            }
            let text = layout::description(point, id);
            match systems.iter_mut().find(|(name, _)| *name == point.system) {
                Some((_, events)) => events.push(text),
                None => systems.push((point.system, vec![text])),
            }
        }
        let known = |name: &str| self.points.iter().any(|point| point.name == name);
        let on = recorded.iter().filter(|name| !known(name));
        let named = self.undecoded.descriptions(on);
        if !named.is_empty() {
            systems.push((undecoded::SYSTEM, named));
        }
        systems
    }
}

/// Whether a file gives a clock's name back.
fn check(clock: &Clock) -> Result<(), WriteError> {
    let is_part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    match clock.name.bytes().all(is_part) {
        true => Ok(()),
        false => Err(WriteError::Clock(clock.name.clone())),
    }
}

/// Spools the whole pages of a CPU.
fn keep(cpu: &mut Cpu, spool: &mut Spool) -> Result<(), WriteError> {
    let pages = cpu.pages.whole();
    for run in pages.chunks(RUN * PAGE) {
        cpu.extents.push(spool.keep(run)?);
    }
    cpu.pages.forget();
    Ok(())
}

/// Counts what is written.
struct Counted<W> {
    out: W,
    bytes: u64,
}

impl<W: Write> Write for Counted<W> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let count = self.out.write(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.out.flush()
    }
}

#[cfg(test)]
mod tests;

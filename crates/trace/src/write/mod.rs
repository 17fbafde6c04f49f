//! Events to trace-cmd's `trace.dat`, versions 6 and 7.
//!
//! A file reads like a recording of a real host. [`crate::open`], `trace-cmd report` and KernelShark
//! find descriptions of every tracepoint, pages of the ring buffer, symbols, and names of tasks.
//! Memory does not grow with the number of events: pages wait in a temporary file until the last one.
//!
//! ```
//! use stealtime_events::{Context, CpuId, Event, Kind, Tid, VcpuId};
//! use stealtime_trace::write::{Options, TraceDatWriter};
//! use stealtime_trace::{EventSource, NameTable, TraceDat};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let names = NameTable::default();
//! let mut file = Vec::new();
//! let mut writer = TraceDatWriter::new(Options::default())?;
//! let event = Event {
//!     time_ns: 1_000,
//!     tid: Tid(77),
//!     cpu: CpuId(3),
//!     context: Context::default(),
//!     kind: Kind::KvmEntry { vcpu: VcpuId(0) },
//! };
//! writer.push(&event, &names)?;
//! assert_eq!(writer.finish(&mut file)?.events, 1);
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
mod options;
mod page;
pub mod raw;
mod reason;
mod spool;
mod symbols;
mod tasks;
mod undecoded;

use std::io::Write;

use stealtime_events::{CpuId, Event, Kind, Names};

use crate::trace_dat::layout::option;
use crate::tracepoint::{self, Tracepoint, Values};
use crate::{Clock, SourceInfo};
use container::Meta;
pub use error::WriteError;
use layout::{COMM, COMMON, Layout, MAX_RECORD};
pub use options::{Compression, Options, Version};
use page::{PAGE, Pages};
use spool::{Extent, Spool};
use symbols::Symbols;
use tasks::Tasks;
use undecoded::Undecoded;

/// ID of the first tracepoint. Trace entries of the kernel itself (`enum trace_type`) have smaller ones.
const FIRST_ID: u16 = 300;
/// Pages that are spooled at once, at most: one compressed chunk, which readers unpack as a whole.
const RUN: usize = 16;
/// Bytes of the pages that the CPUs hold in memory together. Each holds one page in any case.
const HELD: usize = 32 << 20;

/// Numbers of a written file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Stats {
    /// Events of the host ([`Kind::is_host_event`]).
    pub events: u64,
    /// Of these, events that are known by name only.
    pub named_only: u64,
    /// Of the others, those with an unknown context. The file has them outside of interrupts, because its
    /// flags cannot be unknown.
    pub unknown_contexts: u64,
    /// Losses ([`Kind::Lost`]) that were noted.
    pub losses: u64,
    /// Events with a time before that of the previous one on the same CPU. They are written with it.
    pub out_of_order: u64,
    /// Bytes of the file.
    pub bytes: u64,
}

/// A trace.dat being written.
///
/// [`Self::finish`] writes the file; no byte of it is written before.
pub struct TraceDatWriter {
    options: Options,
    points: Vec<Tracepoint>,
    layouts: Vec<Layout>,
    /// By number of `points`: whether it has events.
    used: Vec<bool>,
    undecoded: Undecoded,
    symbols: Symbols,
    tasks: Tasks,
    cpus: Vec<Option<Box<Cpu>>>,
    /// Number of CPUs with events.
    active: usize,
    /// Whole pages of a CPU that are spooled at once.
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

impl TraceDatWriter {
    /// Begins a recording.
    ///
    /// # Errors
    /// Options that contradict each other; zstd cannot be set up.
    pub fn new(options: Options) -> Result<Self, WriteError> {
        if options.version == Version::V6 && options.compression != Compression::None {
            return Err(WriteError::Version6Compressed);
        }
        check(&options.clock)?;
        let written = tracepoint::all().filter(|point| !point.is_read_only());
        let points: Vec<Tracepoint> = written.collect();
        let undecoded = Undecoded::new(FIRST_ID + points.len() as u16);
        Ok(Self {
            layouts: points.iter().map(Layout::new).collect(),
            used: vec![false; points.len()],
            points,
            undecoded,
            symbols: Symbols::default(),
            tasks: Tasks::default(),
            cpus: Vec::new(),
            active: 0,
            run: RUN,
            spool: Spool::new(options.compression)?,
            stats: Stats::default(),
            options,
        })
    }

    /// Adds an event; `names` is the table of its names. Events come in the order of time. Those of one
    /// CPU are read back in the order of the calls, whatever their times.
    ///
    /// Names of tasks ([`Kind::Task`]) go into the next events of the scheduler and the list of saved
    /// command lines; losses ([`Kind::Lost`]) into the next page. A field that the kernel's tracepoint
    /// lacks is left out: `intr_vector` on SVM, `vcpu` and `info1` on arm64 and RISC-V.
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

    /// Counts events of a CPU that were lost before its next one; 0: their number is not known.
    pub fn lost(&mut self, cpu: CpuId, count: u64) {
        self.stats.losses += 1;
        self.cpu(cpu).pages.lose(count);
    }

    /// Takes over the clock, CPUs, `uname` and tracepoints of a recording that is re-written, in place of
    /// those of the [`Options`]. Some are known only once all of it is read.
    pub fn describe(&mut self, info: &SourceInfo) {
        let options = &mut self.options;
        options.clock.clone_from(&info.clock);
        options.cpus = info.cpus.unwrap_or(0);
        options.uname.clone_from(&info.uname);
        options.recorded.clone_from(&info.recorded);
        options.snapshot.clone_from(&info.snapshot);
    }

    /// Sets the host's snapshot, JSON, which may be known only at the end.
    pub fn set_snapshot(&mut self, snapshot: String) {
        self.options.snapshot = Some(snapshot);
    }

    /// Numbers so far; 0 bytes before [`Self::finish`].
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
        // `struct trace_entry`: type, flags, preempt_count, pid.
        let common = [low, high, event.context.bits(), 0, a, b, c, d];
        if let Some(header) = record.first_chunk_mut() {
            *header = common;
        }
        self.stats.events += 1;
        let time = event.time_ns;
        let cpu = self.cpu(event.cpu);
        let is_late = time < cpu.last_ns;
        cpu.last_ns = time;
        cpu.pages.push(time, record.get(..len).unwrap_or(&record));
        self.stats.out_of_order += u64::from(is_late);
        self.spool(event.cpu)
    }

    /// Writes the fields at their offsets; returns the record's length.
    #[inline]
    fn fill(&mut self, record: &mut [u8; MAX_RECORD], values: &Values, cpu: CpuId) -> usize {
        let number = usize::from(values.point.number());
        if let Some(used) = self.used.get_mut(number) {
            *used = true;
        }
        let Some(layout) = self.layouts.get(number) else {
            debug_assert!(false, "no layout for {number}");
            return COMMON;
        };
        let count = usize::from(layout.count);
        for (place, value) in layout.fields.iter().zip(values.fields).take(count) {
            let offset = usize::from(place.offset);
            let bytes = value.to_le_bytes();
            if place.size == COMM {
                let comm = self.tasks.comm(value as i32, cpu.0);
                if let Some(target) = record.get_mut(offset..offset + comm.len()) {
                    target.copy_from_slice(&comm);
                }
            } else if let Some(target) = record.get_mut(offset..offset + usize::from(place.size))
                && let Some(source) = bytes.get(..target.len())
            {
                target.copy_from_slice(source);
            }
        }
        usize::from(layout.len)
    }

    fn cpu(&mut self, cpu: CpuId) -> &mut Cpu {
        let number = usize::from(cpu.0);
        if self.cpus.len() <= number {
            self.cpus.resize_with(number + 1, || None);
        }
        if self.cpus.get(number).is_some_and(Option::is_none) {
            self.active += 1;
            self.run = (HELD / PAGE / self.active).clamp(1, RUN);
        }
        // The entry is there: the table has just been made large enough.
        self.cpus[number].get_or_insert_default()
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

    /// Writes the file to `sink`.
    ///
    /// # Errors
    /// The output cannot be written, the temporary file cannot be read, or the clock's name (of
    /// [`Self::describe`]) is none.
    pub fn finish(mut self, sink: &mut dyn Write) -> Result<Stats, WriteError> {
        check(&self.options.clock)?;
        for cpu in self.cpus.iter_mut().flatten() {
            cpu.pages.finish();
            keep(cpu, &mut self.spool)?;
        }
        let meta = self.meta();
        let head = meta.head(&self.options);
        let mut output = Counted {
            output: sink,
            bytes: 0,
        };
        output.write_all(&head.bytes).map_err(WriteError::Io)?;
        let cpus = self.cpus.iter().flatten();
        for (cpu, start) in cpus.zip(head.starts) {
            let gap = start.saturating_sub(output.bytes) as usize;
            let zeros = [0; PAGE];
            output
                .write_all(zeros.get(..gap).unwrap_or(&zeros))
                .map_err(WriteError::Io)?;
            if self.options.compression != Compression::None {
                let chunks = cpu.extents.len() as u32;
                output
                    .write_all(&chunks.to_le_bytes())
                    .map_err(WriteError::Io)?;
            }
            self.spool.copy(&cpu.extents, &mut output)?;
        }
        self.stats.bytes = output.bytes;
        sink.flush().map_err(WriteError::Io)?;
        Ok(self.stats)
    }

    /// The description of the file.
    fn meta(&self) -> Meta {
        let mut options = container::options(&self.options);
        for (name, vcpus) in self.tasks.guests() {
            let vcpus = vcpus.iter().map(|(vcpu, tid)| container::GuestVcpu {
                vcpu: vcpu.0,
                tid: tid.0,
            });
            options.push(container::guest(name, vcpus));
        }
        let tgids = self.tasks.tgids();
        if !tgids.is_empty() {
            options.push((option::SAVED_TGIDS, tgids.into_bytes()));
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

    /// Descriptions of the tracepoints with events or switched on; of all where there is none.
    fn systems(&self) -> Vec<(&'static str, Vec<String>)> {
        let mut systems: Vec<(&'static str, Vec<String>)> = Vec::new();
        let recorded = &self.options.recorded;
        let describe_all = self.stats.events == 0 && recorded.is_empty();
        let points = (FIRST_ID..).zip(self.points.iter().zip(&self.used));
        for (id, (point, used)) in points {
            // Of `kvm_exit` the first description is that of x86.
            let first = !systems.iter().any(|(_, events)| {
                let name = format!("name: {}\n", point.name);
                events.iter().any(|event| event.starts_with(&name))
            });
            let is_recorded = recorded.iter().any(|name| name == point.name);
            if !*used && !(first && (describe_all || is_recorded)) {
                continue;
            }
            let text = layout::description(point, id);
            match systems.iter_mut().find(|(name, _)| *name == point.system) {
                Some((_, events)) => events.push(text),
                None => systems.push((point.system, vec![text])),
            }
        }
        let known = |name: &str| self.points.iter().any(|point| point.name == name);
        let unknown = recorded.iter().filter(|name| !known(name));
        let named = self.undecoded.descriptions(unknown);
        if !named.is_empty() {
            systems.push((undecoded::SYSTEM, named));
        }
        systems
    }
}

/// Checks that a clock's name survives a file: `trace_clock` has it in brackets, among others.
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
struct Counted<'o> {
    output: &'o mut dyn Write,
    bytes: u64,
}

impl Write for Counted<'_> {
    fn write(&mut self, buffer: &[u8]) -> std::io::Result<usize> {
        let count = self.output.write(buffer)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.output.flush()
    }
}

#[cfg(test)]
mod tests;

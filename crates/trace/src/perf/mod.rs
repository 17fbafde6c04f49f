//! perf.data, as a file and as it comes through a pipe.
//!
//! The container is read by this module's own walk over the records: it gives what a damaged file
//! still has, needs no memory that grows with the file, and costs some ten nanoseconds a record. What
//! the samples of tracepoints hold is decoded as in trace.dat, by the formats in the file.
//!
//! Every sample counts, also those that perf marks with the cpumode of a guest: an event of the host
//! in an interrupt that was taken out of a guest bears that mark, and `perf script` leaves it out.
//!
//! Of lost events, `PERF_RECORD_LOST` says where and `PERF_RECORD_LOST_SAMPLES` (at the end, one an
//! event and CPU) how many in all. Both count the same losses, but for those after the last
//! `PERF_RECORD_LOST` of a buffer: the larger sum of the two is what was lost.

mod attr;
mod attrs;
mod decode;
mod features;
mod header;
mod records;
mod sort;
mod tracing_data;
mod twins;

use std::io::{Read, Seek, SeekFrom};

use stealtime_events::{Context, Event, Kind, Tid};

use crate::input::{Options, Progress, Stored, Stream};
use crate::tracefs::{Endian, EventQueue, Stamp};
use crate::{EventSource, Format, NameTable, ReadError, SourceInfo};
use attr::Attr;
use attrs::Attrs;
use decode::{Raw, Samples};
use features::Features;
use records::{Record, Records, Stop};
use sort::{Held, Sorter};
use twins::Twins;

/// Kinds of records (`enum perf_event_type` and `enum perf_user_event_type`).
mod kind {
    pub(super) const LOST: u32 = 2;
    pub(super) const COMM: u32 = 3;
    pub(super) const FORK: u32 = 7;
    pub(super) const SAMPLE: u32 = 9;
    pub(super) const LOST_SAMPLES: u32 = 13;
    pub(super) const HEADER_ATTR: u32 = 64;
    pub(super) const TRACING_DATA: u32 = 66;
    pub(super) const FINISHED_ROUND: u32 = 68;
    pub(super) const ID_INDEX: u32 = 69;
    pub(super) const THREAD_MAP: u32 = 73;
    pub(super) const EVENT_UPDATE: u32 = 78;
    pub(super) const HEADER_FEATURE: u32 = 80;
}

/// The largest tracing data that a pipe may carry.
const MAX_TRACING: u32 = 96 << 20;

/// Events of a perf.data file.
pub(crate) struct PerfSource {
    name: String,
    endian: Endian,
    records: Records<Box<dyn Read + Send>>,
    progress: Sources,
    attrs: Attrs,
    features: Features,
    samples: Option<Samples>,
    foreign: bool,
    twins: Option<Twins>,
    sorter: Sorter,
    queue: EventQueue,
    names: NameTable,
    info: SourceInfo,
    tally: Tally,
    last_ns: u64,
    ended: bool,
    finished: bool,
}

/// Where progress is seen.
enum Sources {
    File {
        len: u64,
    },
    Pipe {
        progress: Progress,
        damage: crate::input::Damage,
    },
}

/// Sums that become notes.
#[derive(Debug, Default)]
struct Tally {
    samples: u64,
    guest: u64,
    lost: u64,
    lost_samples: u64,
    broken: u64,
}

impl PerfSource {
    /// Reads a file with header and sections.
    pub(crate) fn file(mut file: Stored, options: &Options) -> Result<Self, ReadError> {
        let header = header::read(&mut file)?;
        let mut info = SourceInfo::new(Format::PerfData);
        info.compression = file.compression;
        let damaged = file.damage.take();
        for text in damaged.into_iter().chain(header.damage) {
            info.note(true, text);
        }
        let (name, len, data) = (file.name.clone(), file.len, header.data);
        file.seek(SeekFrom::Start(data.offset))
            .map_err(|source| ReadError::Io {
                input: name.clone(),
                offset: data.offset,
                source,
            })?;
        let input: Box<dyn Read + Send> = Box::new(file.take(data.size));
        let records = Records::new(input, header.endian, data.offset);
        let mut source = Self::new(name, header.endian, records, Sources::File { len }, info);
        source.attrs = header.attrs;
        source.features = header.features;
        source.borrow_formats(options)?;
        if source.features.tracing.is_some() {
            source.open_decoder();
        }
        Ok(source)
    }

    /// Reads what `perf record -o -` writes.
    pub(crate) fn pipe(mut stream: Stream, options: &Options) -> Result<Self, ReadError> {
        let mut info = SourceInfo::new(Format::PerfPipe);
        info.compression = stream.compression;
        let name = stream.name.clone();
        let mut head = [0; 16];
        stream
            .read_exact(&mut head)
            .map_err(|source| ReadError::Io {
                input: name.clone(),
                offset: 0,
                source,
            })?;
        let endian = header::endian(&head);
        let sources = Sources::Pipe {
            progress: stream.progress.clone(),
            damage: stream.damage.clone(),
        };
        let input: Box<dyn Read + Send> = Box::new(stream);
        let records = Records::new(input, endian, 16);
        let mut source = Self::new(name, endian, records, sources, info);
        source.borrow_formats(options)?;
        Ok(source)
    }

    fn new(
        name: String,
        endian: Endian,
        records: Records<Box<dyn Read + Send>>,
        progress: Sources,
        info: SourceInfo,
    ) -> Self {
        Self {
            name,
            endian,
            records,
            progress,
            attrs: Attrs::default(),
            features: Features::default(),
            samples: None,
            foreign: false,
            twins: None,
            sorter: Sorter::default(),
            queue: EventQueue::default(),
            names: NameTable::default(),
            info,
            tally: Tally::default(),
            last_ns: 0,
            ended: false,
            finished: false,
        }
    }

    /// Takes formats from another recording, if this one has none.
    fn borrow_formats(&mut self, options: &Options) -> Result<(), ReadError> {
        let Some(path) = &options.formats_from else {
            return Ok(());
        };
        let pipe = matches!(self.progress, Sources::Pipe { .. });
        if self.features.tracing.is_some() || pipe {
            self.info.note(
                false,
                format!(
                    "{}: not needed: the recording brings its event formats",
                    path.display()
                ),
            );
            return Ok(());
        }
        self.features.tracing = Some(super::input::formats_of(path)?);
        self.foreign = true;
        self.info.note(
            false,
            format!(
                "event formats are taken from {}; every record's length and task were checked \
                 against them",
                path.display()
            ),
        );
        Ok(())
    }

    /// Makes the decoder of what is known of the events.
    fn open_decoder(&mut self) {
        let tracing = self.features.tracing.take();
        let mut recorded: Vec<String> = self
            .attrs
            .all()
            .iter()
            .filter_map(|attr| {
                let format = tracing
                    .as_ref()
                    .and_then(|it| it.formats.by_id(attr.tracepoint()?));
                let named = attr.name.as_deref().filter(|_| attr.tracepoint().is_some());
                let named = named.map(|name| name.rsplit(':').next().unwrap_or(name));
                format
                    .map(|format| &*format.name)
                    .or(named)
                    .map(str::to_owned)
            })
            .collect();
        recorded.sort_unstable();
        recorded.dedup();
        self.info.recorded = recorded;
        let cmdlines = tracing
            .as_ref()
            .map(|it| it.cmdlines.clone())
            .unwrap_or_default();
        let mut samples = Samples::new(tracing, self.foreign, self.endian, &mut self.names);
        let at = Stamp {
            time_ns: self.last_ns.max(self.sorter.origin_ns),
            cpu: decode::cpu(None),
        };
        for (tid, comm) in cmdlines.split(|byte| *byte == b'\n').filter_map(saved_name) {
            let decoder = samples.decoder();
            decoder.task_named(tid, None, comm, at, &mut self.names, &mut self.queue);
        }
        self.samples = Some(samples);
    }

    /// Reads one record.
    fn step(&mut self) -> Result<(), ReadError> {
        let record = match self.records.next() {
            Ok(record) => record,
            Err(stop) => return self.stop(stop),
        };
        match record.kind {
            kind::SAMPLE => self.hold_sample(record),
            kind::LOST | kind::COMM | kind::FORK => self.hold(record),
            kind::LOST_SAMPLES => {
                /// Samples that a BPF filter did not want.
                const BPF: u16 = 1 << 15;
                let lost = self.endian.u64(self.records.bytes(record), 8).unwrap_or(0);
                if record.misc & BPF == 0 {
                    self.tally.lost_samples = self.tally.lost_samples.saturating_add(lost);
                }
            }
            kind::FINISHED_ROUND => self.sorter.round(),
            kind::TRACING_DATA => return self.tracing_data(record),
            _ => self.describe(record),
        }
        Ok(())
    }

    fn stop(&mut self, stop: Stop) -> Result<(), ReadError> {
        match stop {
            Stop::End => {}
            Stop::Damaged(text) => self.info.note(true, text),
            Stop::Io(source) => {
                self.ended = true;
                let (input, offset) = (self.name.clone(), self.records.offset());
                return Err(ReadError::Io {
                    input,
                    offset,
                    source,
                });
            }
        }
        self.ended = true;
        self.sorter.end();
        Ok(())
    }

    fn hold_sample(&mut self, record: Record) {
        /// `PERF_RECORD_MISC_CPUMODE_MASK`, and the guest's kernel and user among its values.
        const CPUMODE: u16 = 7;
        const GUEST: std::ops::RangeInclusive<u16> = 4..=5;
        let bytes = self.records.bytes(record);
        let found = self.attrs.of_sample(bytes, self.endian);
        let sample =
            found.and_then(|(index, attr)| Some((index, attr::sample(bytes, attr, self.endian)?)));
        let Some((index, sample)) = sample else {
            self.tally.broken += 1;
            return;
        };
        self.tally.samples += 1;
        self.tally.guest += u64::from(GUEST.contains(&(record.misc & CPUMODE)));
        if !self.sorter.push(bytes, sample.time.unwrap_or(0), index) {
            self.sorter.window();
        }
    }

    fn hold(&mut self, record: Record) {
        let bytes = self.records.bytes(record);
        match self.attrs.sample_id(bytes, self.endian) {
            Some(sample) => {
                if !self.sorter.push(bytes, sample.time.unwrap_or(0), None) {
                    self.sorter.window();
                }
            }
            None => self.tally.broken += 1,
        }
    }

    /// Records that say something of the recording.
    fn describe(&mut self, record: Record) {
        let (bytes, endian) = (self.records.bytes(record), self.endian);
        match record.kind {
            kind::HEADER_ATTR => {
                let size = endian.u32(bytes, 12).map_or(0, |size| size as usize);
                let size = if size == 0 { 64 } else { size };
                let end = size.saturating_add(8);
                let attr = bytes
                    .get(8..end)
                    .and_then(|bytes| Attr::parse(bytes, endian));
                let Some(attr) = attr else {
                    self.info.note(
                        true,
                        format!("the attribute at offset {} is cut", record.offset),
                    );
                    return;
                };
                let ids = bytes.get(end..).unwrap_or_default();
                let ids = (0..ids.len() / 8).filter_map(|id| endian.u64(ids, 8 * id));
                self.attrs.add(attr, ids);
                self.twins = None;
            }
            kind::ID_INDEX => {
                let count = endian.u64(bytes, 8).unwrap_or(0);
                let there = bytes.len().saturating_sub(16) / 32;
                for entry in 0..there.min(usize::try_from(count).unwrap_or(usize::MAX)) {
                    let word = |at| endian.u64(bytes, 16 + 32 * entry + at).unwrap_or(0);
                    self.attrs.set_cpu(word(0), word(16));
                }
            }
            kind::EVENT_UPDATE => {
                /// `PERF_EVENT_UPDATE__NAME`.
                const NAME: u64 = 2;
                if let (Some(NAME), Some(id)) = (endian.u64(bytes, 8), endian.u64(bytes, 16)) {
                    let name = until_zero(bytes.get(24..).unwrap_or_default());
                    self.attrs.name(id, &String::from_utf8_lossy(name));
                }
            }
            kind::HEADER_FEATURE => {
                let feature = endian.u64(bytes, 8).and_then(|it| usize::try_from(it).ok());
                let data = bytes.get(16..).unwrap_or_default();
                if let Some(feature) = feature {
                    let damage = self.features.read(feature, data, endian, &mut self.attrs);
                    if let Some(text) = damage {
                        self.info.note(true, text);
                    }
                }
            }
            kind::THREAD_MAP => self.hold(record),
            _ => {}
        }
    }

    /// `PERF_RECORD_HEADER_TRACING_DATA`: what it announces stands behind it.
    fn tracing_data(&mut self, record: Record) -> Result<(), ReadError> {
        let size = self.endian.u32(self.records.bytes(record), 8).unwrap_or(0);
        if size > MAX_TRACING {
            let text = format!(
                "the event formats at offset {} are said to have {size} bytes: nothing behind can \
                 be read",
                record.offset
            );
            return self.stop(Stop::Damaged(text));
        }
        let padded = (size as usize).next_multiple_of(8);
        let data = match self.records.behind(padded) {
            Ok(data) => data,
            Err(stop) => return self.stop(stop),
        };
        let data = data.get(..size as usize).unwrap_or_default();
        if let Some(damage) = self.features.tracing(data) {
            self.info.note(true, damage);
        }
        self.open_decoder();
        Ok(())
    }

    /// Makes events of a record whose time has come.
    fn give(&mut self, held: Held) {
        if self.samples.is_none() {
            self.open_decoder();
        }
        if self.twins.is_none() {
            let tracepoints: Vec<_> = self.attrs.all().iter().map(Attr::tracepoint).collect();
            self.twins = Some(Twins::new(&tracepoints));
        }
        let bytes = self.sorter.bytes(held);
        let time_ns = if held.time_ns == 0 {
            self.sorter.origin_ns.max(self.last_ns)
        } else {
            held.time_ns
        };
        let (Some(samples), Some(twins)) = (&mut self.samples, &mut self.twins) else {
            return;
        };
        let mut giver = Giver {
            endian: self.endian,
            attrs: &mut self.attrs,
            samples,
            twins,
            queue: &mut self.queue,
            names: &mut self.names,
            info: &mut self.info,
            tally: &mut self.tally,
        };
        let counted = giver.record(bytes, held.attr(), time_ns);
        if counted && time_ns < self.last_ns {
            self.info.out_of_order += 1;
        }
        if counted {
            self.last_ns = time_ns;
        }
        self.sorter.release(held);
    }
}

/// What it takes to make events of a record.
struct Giver<'a> {
    endian: Endian,
    attrs: &'a mut Attrs,
    samples: &'a mut Samples,
    twins: &'a mut Twins,
    queue: &'a mut EventQueue,
    names: &'a mut NameTable,
    info: &'a mut SourceInfo,
    tally: &'a mut Tally,
}

impl Giver<'_> {
    /// Whether the record was an event of the host.
    fn record(&mut self, bytes: &[u8], attr: Option<usize>, time_ns: u64) -> bool {
        match self.endian.u32(bytes, 0) {
            Some(kind::SAMPLE) => return self.sample(bytes, attr, time_ns).is_some(),
            Some(kind::LOST) => self.lost(bytes, time_ns),
            Some(kind::COMM) => self.task(bytes, time_ns).unwrap_or(()),
            Some(kind::THREAD_MAP) => self.threads(bytes, time_ns),
            _ => {}
        }
        false
    }

    fn sample(&mut self, bytes: &[u8], index: Option<usize>, time_ns: u64) -> Option<()> {
        let all = self.attrs.all();
        let attr = index.map_or_else(|| all.first(), |index| all.get(index))?;
        let sample = attr::sample(bytes, attr, self.endian)?;
        let raw = sample
            .raw
            .and_then(|(start, len)| bytes.get(start..)?.get(..len));
        let cpu = sample.cpu.or_else(|| self.attrs.cpu_of(sample.id));
        if let (Some(index), Some(raw)) = (index, raw)
            && self.twins.repeats(index, cpu.unwrap_or(0), raw)
        {
            return None;
        }
        let raw = Raw {
            at: Stamp {
                time_ns,
                cpu: decode::cpu(cpu),
            },
            tid: sample.tid,
            bytes: raw,
        };
        let attr = index.and_then(|index| all.get(index));
        self.samples
            .event(attr, raw, self.names, self.info, self.queue);
        Some(())
    }

    fn lost(&mut self, bytes: &[u8], time_ns: u64) {
        let Some(count) = self.endian.u64(bytes, 16) else {
            return;
        };
        let sample = self.attrs.sample_id(bytes, self.endian).unwrap_or_default();
        let cpu = sample
            .cpu
            .or_else(|| self.attrs.cpu_of(self.endian.u64(bytes, 8)));
        self.tally.lost = self.tally.lost.saturating_add(count);
        self.info.lost.counted = self.tally.lost;
        self.queue.push(Event {
            time_ns,
            tid: Tid(sample.tid),
            cpu: decode::cpu(cpu),
            context: Context::default(),
            kind: Kind::Lost { count },
        });
    }

    /// `PERF_RECORD_COMM`: process, thread, name.
    fn task(&mut self, bytes: &[u8], time_ns: u64) -> Option<()> {
        let process = Tid(self.endian.u32(bytes, 8)?.cast_signed());
        let tid = Tid(self.endian.u32(bytes, 12)?.cast_signed());
        let comm = until_zero(bytes.get(16..)?);
        let cpu = self
            .attrs
            .sample_id(bytes, self.endian)
            .and_then(|sample| sample.cpu);
        let at = Stamp {
            time_ns,
            cpu: decode::cpu(cpu),
        };
        let decoder = self.samples.decoder();
        decoder.task_named(tid, Some(process), comm, at, self.names, self.queue);
        Some(())
    }

    /// `PERF_RECORD_THREAD_MAP`: names of the threads that were asked for.
    fn threads(&mut self, bytes: &[u8], time_ns: u64) {
        const ENTRY: usize = 24;
        let at = Stamp {
            time_ns,
            cpu: decode::cpu(None),
        };
        for entry in bytes.get(16..).unwrap_or_default().chunks_exact(ENTRY) {
            let tid = self
                .endian
                .u64(entry, 0)
                .and_then(|tid| i32::try_from(tid).ok());
            if let (Some(tid), Some(comm)) = (tid.filter(|tid| *tid > 0), entry.get(8..)) {
                let (comm, decoder) = (until_zero(comm), self.samples.decoder());
                decoder.task_named(Tid(tid), None, comm, at, self.names, self.queue);
            }
        }
    }
}

impl PerfSource {
    /// Says what is known only once all was read.
    fn finish(&mut self) {
        let Tally {
            samples,
            guest,
            lost,
            lost_samples,
            broken,
        } = self.tally;
        let info = &mut self.info;
        info.uname = self.features.uname();
        info.cpus = self.features.cpus;
        if let Sources::Pipe { damage, .. } = &self.progress
            && let Some(damage) = damage.get()
        {
            info.note(
                true,
                format!("{damage}; what was unpacked until there is read"),
            );
        }
        if guest > 0 {
            info.note(
                false,
                format!(
                    "{guest} of {samples} samples bear a guest's cpumode (interrupts taken out of a \
                     guest); they are events of the host and are counted; perf script and perf \
                     sched leave them out"
                ),
            );
        }
        info.lost.counted = lost.max(lost_samples);
        if lost_samples > lost {
            let late = lost_samples - lost;
            info.note(
                false,
                format!(
                    "{lost_samples} samples were lost; where {late} of them were lost the file does \
                     not say"
                ),
            );
        }
        if broken > 0 {
            info.note(
                true,
                format!("{broken} records are of no known event or too short for it: left out"),
            );
        }
        self.note_twins();
        self.note_without();
    }

    fn note_twins(&mut self) {
        let Some(twins) = self.twins.as_ref().filter(|twins| twins.repeated > 0) else {
            return;
        };
        use stealtime_events::Names;
        let mut known = self.samples.as_mut();
        let names: Vec<String> = twins
            .tracepoints()
            .into_iter()
            .map(
                |id| match known.as_mut().and_then(|it| it.decoder().event_name(id)) {
                    Some(name) => self.names.name(name).to_owned(),
                    None => format!("tracepoint {id}"),
                },
            )
            .collect();
        let (names, repeated) = (names.join(", "), twins.repeated);
        self.info.note(
            false,
            format!(
                "{names}: recorded by two events of one perf record; {repeated} samples that repeat \
                 another are left out"
            ),
        );
    }

    fn note_without(&mut self) {
        let Some(samples) = self.samples.as_ref().filter(|it| !it.without.is_empty()) else {
            return;
        };
        let sum: u64 = samples.without.values().sum();
        let kinds = samples.without.len();
        self.info.note(
            true,
            format!(
                "the formats of {kinds} tracepoints are missing: their {sum} samples are counted as \
                 unknown-ID and their fields are not read; with --formats-from give a perf.data or \
                 trace.dat of the same boot of the same kernel"
            ),
        );
    }
}

impl EventSource for PerfSource {
    fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        loop {
            if let Some(event) = self.queue.pop() {
                return Ok(Some(event));
            }
            if let Some(held) = self.sorter.pop() {
                self.give(held);
            } else if !self.ended {
                self.step()?;
            } else {
                if !std::mem::replace(&mut self.finished, true) {
                    self.finish();
                }
                return Ok(None);
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
        match &self.progress {
            Sources::File { len } => (self.records.offset(), Some(*len)),
            Sources::Pipe { progress, .. } => progress.get(),
        }
    }
}

/// A line of `saved_cmdlines`: the tid, a space, the name.
fn saved_name(line: &[u8]) -> Option<(Tid, &[u8])> {
    let space = memchr::memchr(b' ', line)?;
    let tid = std::str::from_utf8(line.get(..space)?).ok()?.parse().ok()?;
    Some((Tid(tid), line.get(space + 1..)?))
}

/// What stands before the first zero.
fn until_zero(bytes: &[u8]) -> &[u8] {
    let end = memchr::memchr(0, bytes).unwrap_or(bytes.len());
    bytes.get(..end).unwrap_or_default()
}

/// The event formats that a perf.data file has.
pub(crate) fn formats(mut file: Stored) -> Result<tracing_data::TracingData, ReadError> {
    let header = header::read(&mut file)?;
    header
        .features
        .tracing
        .ok_or_else(|| ReadError::Unsupported {
            input: file.name,
            what: "has no event formats; give a file of the same kernel that is complete"
                .to_owned(),
        })
}

pub(crate) use tracing_data::TracingData;

#[cfg(test)]
mod tests;

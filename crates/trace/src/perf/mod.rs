//! perf.data, as a file and as a pipe.
//!
//! This module walks over the records itself. So it reads all that a damaged file still has, its
//! memory does not grow with the file, and a record costs some ten nanoseconds. The samples of
//! tracepoints are decoded as in trace.dat, by the formats in the file.
//!
//! Every sample counts, also one with the cpumode of a guest. An event of the host bears that mark
//! if its interrupt was taken out of a guest; `perf script` leaves it out.
//!
//! `PERF_RECORD_LOST` says where events were lost. `PERF_RECORD_LOST_SAMPLES` (at the end, one for
//! each event and CPU) says how many in all. Both count the same losses, but the former lacks those
//! after the last `PERF_RECORD_LOST` of a buffer. The larger of the two sums is the loss.

mod attr;
mod attrs;
mod borrowed;
mod counted;
mod decode;
mod emit;
mod fast_path;
mod features;
mod header;
mod kind;
mod records;
mod sort;
mod tally;
mod tracing_data;
mod twins;

use std::io::Read;
use std::path::Path;

use stealtime_events::{Event, Tid};

use crate::input::{Damage, Progress, Stored, Stream};
use crate::options::{Options, note_unused_khz};
use crate::tracefs::{Endian, EventSink, Stamp};
use crate::{EventSource, Format, NameTable, ReadError, SourceInfo};
use attr::Attr;
use attrs::Attrs;
use counted::Unwanted;
use decode::Samples;
use emit::Emitter;
use fast_path::FastPath;
use features::Features;
use header::Section;
use records::{Record, Records, Stop, until_zero};
use sort::Sorter;
use tally::Tally;
use twins::Twins;

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
    twins: Option<Twins>,
    /// Whether `samples` and `fast_path` know all attributes.
    prepared: bool,
    fast_path: Option<FastPath>,
    sorter: Sorter,
    names: NameTable,
    info: SourceInfo,
    /// See [`Options::only`].
    only: Option<Vec<&'static str>>,
    unwanted: Option<Unwanted>,
    tally: Tally,
    /// The time of the last event, in ns.
    last_ns: u64,
    ended: bool,
    finished: bool,
}

/// Where progress is seen.
enum Sources {
    File { len: u64 },
    Pipe { progress: Progress, damage: Damage },
}

impl PerfSource {
    /// Reads a file with header and sections.
    ///
    /// `formats_of` reads the event formats of another recording ([`Options::formats_from`]). It is
    /// called if this one has none. It is a parameter because opening recordings is the layer above.
    pub(crate) fn file(
        mut file: Stored,
        options: &Options,
        formats_of: impl FnOnce(&Path) -> Result<TracingData, ReadError>,
    ) -> Result<Self, ReadError> {
        let header = header::read(&mut file)?;
        let mut info = SourceInfo::new(Format::PerfData);
        info.compression = file.compression;
        note_unused_khz(options, &mut info);
        let damaged = file.damage.take();
        for text in damaged.into_iter().chain(header.damage) {
            info.note(true, text);
        }
        let (name, len, data) = (file.name.clone(), file.len, header.data);
        let endian = header.endian;
        let mut source = Self::new(
            name,
            endian,
            Records::none(endian),
            Sources::File { len },
            info,
        );
        source.only.clone_from(&options.only);
        source.attrs = header.attrs;
        source.features = header.features;
        if let Some(path) = &options.formats_from {
            source.borrow_formats(&mut file, data, path, formats_of)?;
        }
        source.records =
            Records::section(file, &source.name, data.offset, data.size, endian)?.boxed();
        if source.features.tracing.is_some() {
            source.samples = Some(source.open_decoder());
        }
        Ok(source)
    }

    /// Reads what `perf record -o -` writes.
    pub(crate) fn pipe(mut stream: Stream, options: &Options) -> Result<Self, ReadError> {
        let mut info = SourceInfo::new(Format::PerfPipe);
        info.compression = stream.compression;
        note_unused_khz(options, &mut info);
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
        if options.formats_from.is_some() {
            info.note_unused("--formats-from is not used for perf's pipe mode");
        }
        let mut source = Self::new(name, endian, records, sources, info);
        source.only.clone_from(&options.only);
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
            twins: None,
            prepared: false,
            fast_path: None,
            sorter: Sorter::default(),
            names: NameTable::default(),
            info,
            only: None,
            unwanted: None,
            tally: Tally::default(),
            last_ns: 0,
            ended: false,
            finished: false,
        }
    }

    /// Takes formats from another recording, if this one has none.
    fn borrow_formats(
        &mut self,
        file: &mut Stored,
        data: Section,
        path: &Path,
        formats_of: impl FnOnce(&Path) -> Result<TracingData, ReadError>,
    ) -> Result<(), ReadError> {
        if self.features.tracing.is_some() {
            self.info.note_unused(format!(
                "--formats-from {} is not used: the recording brings its event formats",
                path.display()
            ));
            return Ok(());
        }
        let lent = formats_of(path)?;
        // Addresses of functions and names of tasks stay out: they are of another time, perhaps of
        // another boot.
        let tracing = TracingData::from_formats(lent.formats, lent.endian);
        let checked = borrowed::check(file, data, self.endian, &self.attrs, &tracing)?;
        self.info.note(
            false,
            format!(
                "event formats are taken from {}: the length and the task of {checked} records fit",
                path.display()
            ),
        );
        self.features.tracing = Some(tracing);
        Ok(())
    }

    /// Makes the decoder from the event formats and attributes so far.
    fn open_decoder(&mut self) -> Samples {
        let tracing = self.features.tracing.take();
        let mut recorded: Vec<String> = self
            .attrs
            .all()
            .iter()
            .filter_map(|attr| {
                let format = tracing
                    .as_ref()
                    .and_then(|tracing| tracing.formats.by_id(attr.tracepoint()?));
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
        if let Some(attr) = self.attrs.all().first() {
            self.info.clock.name = attr.clock().to_owned();
        }
        for format in tracing.iter().flat_map(|tracing| tracing.formats.events()) {
            self.info.note_name(&format.name);
        }
        let cmdlines = tracing
            .as_ref()
            .map(|tracing| tracing.cmdlines.clone())
            .unwrap_or_default();
        let mut samples = Samples::new(tracing, self.endian, &mut self.names);
        if let Some(wanted) = &self.only {
            let attrs = self.attrs.all();
            self.unwanted = Some(Unwanted::new(attrs, wanted, &mut samples, &self.names));
        }
        let stamp = Stamp {
            time_ns: 0,
            cpu: decode::cpu(None),
        };
        for (tid, comm) in cmdlines.split(|byte| *byte == b'\n').filter_map(saved_name) {
            let decoder = samples.decoder();
            decoder.task_named(tid, None, comm, stamp, &mut self.names, &mut self.sorter);
        }
        self.prepared = false;
        samples
    }

    /// Reads records up to the first that is no sample, or until events are ready.
    fn step(&mut self) -> Result<(), ReadError> {
        if self.samples.is_some() {
            self.take_samples();
        }
        if self.sorter.is_full() {
            self.sorter.window();
            return Ok(());
        }
        let record = match self.records.next() {
            Ok(record) => record,
            Err(stop) => return self.stop(stop),
        };
        match record.kind {
            kind::SAMPLE | kind::LOST | kind::COMM | kind::THREAD_MAP => self.take(record),
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
                self.finished = true;
                self.finish();
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

    /// Adds the events of the next samples to the sorter, as far as the samples were read already.
    fn take_samples(&mut self) {
        self.with_emitter(|records, emitter| {
            loop {
                let passed = emitter.fast_samples(records.held());
                records.pass(passed);
                if emitter.sink.is_full() {
                    return;
                }
                match records.next_of(kind::SAMPLE) {
                    Some(record) => emitter.sample(records.bytes(record), record.misc),
                    None => return,
                }
            }
        });
    }

    /// Adds the events of a record to the sorter.
    fn take(&mut self, record: Record) {
        self.with_emitter(|records, emitter| {
            let bytes = records.bytes(record);
            match record.kind {
                kind::SAMPLE => emitter.sample(bytes, record.misc),
                kind => emitter.record(kind, bytes),
            }
        });
    }

    /// Calls with the records and their emitter.
    fn with_emitter(
        &mut self,
        call: impl FnOnce(&mut Records<Box<dyn Read + Send>>, &mut Emitter<'_>),
    ) {
        let samples = match &mut self.samples {
            Some(samples) => samples,
            None => {
                let samples = self.open_decoder();
                self.samples.insert(samples)
            }
        };
        let attrs = self.attrs.all();
        if !std::mem::replace(&mut self.prepared, true) {
            samples.set_attrs(attrs);
            self.fast_path = FastPath::new(&self.attrs, self.unwanted.as_ref(), self.endian);
        }
        let twins = self.twins.get_or_insert_with(|| {
            let tracepoints: Vec<_> = attrs.iter().map(Attr::tracepoint).collect();
            Twins::new(&tracepoints)
        });
        let mut emitter = Emitter {
            endian: self.endian,
            attrs: &self.attrs,
            samples,
            twins,
            sink: &mut self.sorter,
            names: &mut self.names,
            info: &mut self.info,
            tally: &mut self.tally,
            unwanted: self.unwanted.as_mut(),
            fast_path: self.fast_path.as_ref(),
        };
        call(&mut self.records, &mut emitter);
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
                self.prepared = false;
            }
            kind::ID_INDEX => {
                let count = endian.u64(bytes, 8).unwrap_or(0);
                let held = bytes.len().saturating_sub(16) / 32;
                for entry in 0..held.min(usize::try_from(count).unwrap_or(usize::MAX)) {
                    let word = |offset| endian.u64(bytes, 16 + 32 * entry + offset).unwrap_or(0);
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
                let feature = endian.u64(bytes, 8);
                let feature = feature.and_then(|number| usize::try_from(number).ok());
                let data = bytes.get(16..).unwrap_or_default();
                if let Some(feature) = feature {
                    let damage = self.features.read(feature, data, endian, &mut self.attrs);
                    if let Some(text) = damage {
                        self.info.note(true, text);
                    }
                }
            }
            _ => {}
        }
    }

    /// `PERF_RECORD_HEADER_TRACING_DATA`: the data stand behind the record.
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
        let data = self.records.behind(padded);
        let data = match data {
            Ok(data) => data,
            Err(stop) => return self.stop(stop),
        };
        let data = data.get(..size as usize).unwrap_or_default();
        if let Some(damage) = self.features.tracing(data) {
            self.info.note(true, damage);
        }
        self.samples = Some(self.open_decoder());
        Ok(())
    }
}

impl PerfSource {
    /// Completes the [`SourceInfo`], once all records are read.
    fn finish(&mut self) {
        let info = &mut self.info;
        info.counted = self.unwanted.iter().flat_map(Unwanted::counted).collect();
        info.late = self.unwanted.as_ref().and_then(Unwanted::late);
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
        self.tally.finish(info);
        if let Some(samples) = &self.samples {
            if let Some(twins) = &self.twins {
                samples.note_twins(twins, &self.names, info);
            }
            samples.note_without(info);
        }
    }

    /// Calls `emit` with the next events and their times in ns, at least one and at most `limit`.
    /// Returns whether there was one.
    #[inline]
    fn next(&mut self, limit: usize, mut emit: impl FnMut(&Event, u64)) -> Result<bool, ReadError> {
        while self.sorter.ready().is_empty() {
            if self.ended {
                if !std::mem::replace(&mut self.finished, true) {
                    self.finish();
                }
                return Ok(false);
            }
            self.step()?;
        }
        let mut count = 0;
        for event in self.sorter.ready().iter().take(limit) {
            let time_ns = self.sorter.time_of(event, self.last_ns);
            if event.kind.is_host_event() {
                self.info.out_of_order += u64::from(time_ns < self.last_ns);
                self.last_ns = time_ns;
            }
            emit(event, time_ns);
            count += 1;
        }
        self.sorter.consume(count);
        Ok(true)
    }
}

impl EventSource for PerfSource {
    fn next_event(&mut self) -> Result<Option<Event>, ReadError> {
        let mut next = None;
        self.next(1, |event, time_ns| next = Some(Event { time_ns, ..*event }))?;
        Ok(next)
    }

    fn next_events(&mut self, limit: usize, batch: &mut Vec<Event>) -> Result<bool, ReadError> {
        let wanted = batch.len() + limit;
        while batch.len() < wanted {
            // The event is copied whole, and its time is set behind it: by fields it is several times as
            // many moves.
            let is_more = self.next(wanted - batch.len(), |event, time_ns| {
                EventSink::push(batch, *event).time_ns = time_ns;
            })?;
            if !is_more {
                return Ok(false);
            }
        }
        Ok(true)
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

/// The event formats that a perf.data file has.
pub(crate) fn formats(mut file: Stored) -> Result<tracing_data::TracingData, ReadError> {
    let header = header::read(&mut file)?;
    header
        .features
        .tracing
        .ok_or_else(|| ReadError::Unsupported {
            input: file.name,
            problem: "has no event formats; give a file of the same kernel that is complete"
                .to_owned(),
        })
}

pub(crate) use tracing_data::TracingData;

#[cfg(test)]
mod tests;

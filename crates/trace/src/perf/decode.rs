//! Samples to events: with formats or without.

use std::collections::BTreeMap;

use stealtime_events::{Context, CpuId, Event, Kind, Names, Tid};

use super::attr::Attr;
use super::tracing_data::TracingData;
use super::twins::Twins;
use crate::tracefs::{Decoder, Endian, EventFormat, EventSink, Formats, PlanId, Stamp};
use crate::tracepoint::{self, Point};
use crate::{NameTable, SourceInfo};

/// A sample's stamp, task and record.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) stamp: Stamp,
    pub(super) pid: i32,
    pub(super) tid: i32,
    /// The tracepoint's record, where the sample has one.
    pub(super) bytes: Option<&'a [u8]>,
}

/// Decodes samples, by event formats or without.
pub(super) struct Samples {
    decoder: Decoder,
    has_formats: bool,
    endian: Endian,
    /// The ID of `kvm_entry`.
    entry: Option<u16>,
    /// For each attribute its tracepoint and how the records of that are read, where it has a format.
    plans: Vec<Option<(u16, PlanId)>>,
    /// Samples of tracepoints without a format, by tracepoint.
    without: BTreeMap<u16, u64>,
}

impl Samples {
    /// `data` is what the recording says of its events, if it does.
    pub(super) fn new(data: Option<TracingData>, endian: Endian, names: &mut NameTable) -> Self {
        let has_formats = data.is_some();
        let (formats, symbols, endian) = match data {
            Some(data) => (data.formats, data.symbols, data.endian),
            None => (Formats::default(), Default::default(), endian),
        };
        let entry = tracepoint::name(Point::KvmEntry);
        let is_entry = |format: &&EventFormat| &*format.name == entry;
        Self {
            entry: formats
                .events()
                .iter()
                .find(is_entry)
                .map(|format| format.id),
            decoder: Decoder::new(&formats, endian, symbols, names),
            has_formats,
            endian,
            plans: Vec::new(),
            without: BTreeMap::new(),
        }
    }

    /// The decoder, which knows the names of the tasks.
    pub(super) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Sets the attributes. To be called again when there are more.
    pub(super) fn set_attrs(&mut self, attrs: &[Attr]) {
        let plan = |attr: &Attr| {
            let id = attr.tracepoint().filter(|_| self.has_formats)?;
            Some((id, self.decoder.plan(id)?))
        };
        self.plans = attrs.iter().map(plan).collect();
    }

    /// Emits the event of a sample of the attribute with this index.
    #[inline(always)]
    pub(super) fn event(
        &mut self,
        index: Option<usize>,
        attrs: &[Attr],
        raw: Raw<'_>,
        names: &mut NameTable,
        info: &mut SourceInfo,
        sink: &mut impl EventSink,
    ) {
        let plan = index.and_then(|index| self.plans.get(index).copied().flatten());
        if let (Some(bytes), Some((tracepoint, plan))) = (raw.bytes, plan)
            && self.endian.u16(bytes, 0) == Some(tracepoint)
        {
            if self.entry == Some(tracepoint) {
                self.emit_process(raw, names, sink);
            }
            self.decoder
                .decode_as(plan, bytes, raw.stamp, names, info, sink);
            return;
        }
        let attr = index.and_then(|index| attrs.get(index));
        self.without_plan(attr, raw, names, info, sink);
    }

    /// Emits the process of a sample's thread, if it is new. It tells the VMs of vCPUs apart.
    #[inline]
    fn emit_process(&mut self, raw: Raw<'_>, names: &mut NameTable, sink: &mut impl EventSink) {
        let (tid, process) = (Tid(raw.tid), Tid(raw.pid));
        self.decoder.task_of(tid, process, raw.stamp, names, sink);
    }

    /// Emits the event of a sample without an attribute, a record or a format.
    #[cold]
    fn without_plan(
        &mut self,
        attr: Option<&Attr>,
        raw: Raw<'_>,
        names: &mut NameTable,
        info: &mut SourceInfo,
        sink: &mut impl EventSink,
    ) {
        let id = raw.bytes.and_then(|bytes| self.endian.u16(bytes, 0));
        let tracepoint = attr.and_then(Attr::tracepoint).or(id);
        let (Some(bytes), Some(tracepoint)) = (raw.bytes, tracepoint) else {
            let name = attr
                .and_then(|attr| attr.name.as_deref())
                .unwrap_or("perf-sample");
            let name = names.intern(name);
            sink.push(name_only(raw, Kind::Other { name }));
            return;
        };
        let known = self.has_formats && self.decoder.event_name(tracepoint).is_some();
        if known && id == Some(tracepoint) {
            if self.entry == id {
                self.emit_process(raw, names, sink);
            }
            self.decoder.decode(bytes, raw.stamp, names, info, sink);
            return;
        }
        *self.without.entry(tracepoint).or_default() += 1;
        let name = match attr.and_then(|attr| attr.name.as_deref()) {
            Some(name) => names.intern(name.rsplit(':').next().unwrap_or(name)),
            None => names.intern(&format!("unknown-{tracepoint}")),
        };
        sink.push(name_only(raw, Kind::Other { name }));
    }

    /// Notes the tracepoints that two attributes have recorded.
    pub(super) fn note_twins(&self, twins: &Twins, names: &NameTable, info: &mut SourceInfo) {
        let repeated = twins.repeated;
        if repeated == 0 {
            return;
        }
        let tracepoints: Vec<String> = twins
            .tracepoints()
            .into_iter()
            .map(|id| match self.decoder.event_name(id) {
                Some(name) => names.name(name).to_owned(),
                None => format!("tracepoint {id}"),
            })
            .collect();
        let tracepoints = tracepoints.join(", ");
        info.note(
            false,
            format!(
                "{tracepoints}: recorded by two events of one perf record; {repeated} samples \
                 repeat another: they are counted, and tell nothing else"
            ),
        );
    }

    /// Notes the tracepoints without a format.
    pub(super) fn note_without(&self, info: &mut SourceInfo) {
        let (kinds, sum) = (self.without.len(), self.without.values().sum::<u64>());
        if kinds == 0 {
            return;
        }
        info.note(
            true,
            format!(
                "the formats of {kinds} tracepoints are missing: their {sum} samples are counted \
                 as unknown-ID and their fields are not read; with --formats-from give a perf.data \
                 or trace.dat of the same boot of the same kernel"
            ),
        );
    }
}

/// An event known by its name and the sample's own fields.
fn name_only(raw: Raw<'_>, kind: Kind) -> Event {
    Event {
        time_ns: raw.stamp.time_ns,
        tid: Tid(raw.tid),
        cpu: raw.stamp.cpu,
        context: Context::UNKNOWN,
        kind,
    }
}

/// The CPU of a sample as events have it: 0 where the sample has none.
pub(super) fn cpu(number: Option<u32>) -> CpuId {
    CpuId(number.map_or(0, |number| u16::try_from(number).unwrap_or(u16::MAX)))
}

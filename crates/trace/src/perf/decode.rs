//! Samples to events: with formats or without.

use std::collections::BTreeMap;

use stealtime_events::{Context, CpuId, Event, Kind, Tid};

use super::attr::Attr;
use super::tracing_data::TracingData;
use crate::tracefs::{Decoder, Endian, EventFormat, EventSink, Formats, PlanId, Stamp};
use crate::{NameTable, SourceInfo};

/// A sample's place and bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) at: Stamp,
    pub(super) pid: i32,
    pub(super) tid: i32,
    /// The tracepoint's record, where the sample has one.
    pub(super) bytes: Option<&'a [u8]>,
}

/// What makes events of samples.
pub(super) struct Samples {
    decoder: Decoder,
    has_formats: bool,
    endian: Endian,
    /// The tracepoint `kvm_entry`.
    entry: Option<u16>,
    /// For each attribute its tracepoint and how the records of that are read, where it has a format.
    plans: Vec<Option<(u16, PlanId)>>,
    /// Samples of tracepoints without a format, by tracepoint.
    pub(super) without: BTreeMap<u16, u64>,
}

impl Samples {
    /// With what the recording says of its events, if it does.
    pub(super) fn new(data: Option<TracingData>, endian: Endian, names: &mut NameTable) -> Self {
        let has_formats = data.is_some();
        let (formats, symbols, endian) = match data {
            Some(data) => (data.formats, data.symbols, data.endian),
            None => (Formats::default(), Default::default(), endian),
        };
        let is_entry = |it: &&EventFormat| &*it.name == "kvm_entry";
        Self {
            entry: formats.events().iter().find(is_entry).map(|it| it.id),
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

    /// Takes up the attributes; to be called again when there are more.
    pub(super) fn set_attrs(&mut self, attrs: &[Attr]) {
        let plan = |attr: &Attr| {
            let id = attr.tracepoint().filter(|_| self.has_formats)?;
            Some((id, self.decoder.plan(id)?))
        };
        self.plans = attrs.iter().map(plan).collect();
    }

    /// Makes an event of a sample of the attribute with this index.
    #[inline(always)]
    pub(super) fn event(
        &mut self,
        (index, attrs): (Option<usize>, &[Attr]),
        raw: Raw<'_>,
        (names, info): (&mut NameTable, &mut SourceInfo),
        out: &mut impl EventSink,
    ) {
        let plan = index.and_then(|index| self.plans.get(index).copied().flatten());
        if let (Some(bytes), Some((tracepoint, plan))) = (raw.bytes, plan)
            && self.endian.u16(bytes, 0) == Some(tracepoint)
        {
            if self.entry == Some(tracepoint) {
                self.tell_process(raw, names, out);
            }
            self.decoder
                .decode_as(plan, bytes, raw.at, (names, info), out);
            return;
        }
        let attr = index.and_then(|index| attrs.get(index));
        self.seldom(attr, raw, names, info, out);
    }

    /// Every sample names the process of its thread: for vCPUs that tells VMs apart.
    #[inline]
    fn tell_process(&mut self, raw: Raw<'_>, names: &mut NameTable, out: &mut impl EventSink) {
        let (tid, process) = (Tid(raw.tid), Tid(raw.pid));
        self.decoder.task_of(tid, process, raw.at, names, out);
    }

    /// Makes an event of a sample that is none of a tracepoint with a format.
    #[cold]
    fn seldom(
        &mut self,
        attr: Option<&Attr>,
        raw: Raw<'_>,
        names: &mut NameTable,
        info: &mut SourceInfo,
        out: &mut impl EventSink,
    ) {
        let id = raw.bytes.and_then(|bytes| self.endian.u16(bytes, 0));
        let tracepoint = attr.and_then(Attr::tracepoint).or(id);
        let (Some(bytes), Some(tracepoint)) = (raw.bytes, tracepoint) else {
            let name = attr
                .and_then(|attr| attr.name.as_deref())
                .unwrap_or("perf-sample");
            let name = names.intern(name);
            out.push(other(raw, Kind::Other { name }));
            return;
        };
        let known = self.has_formats && self.decoder.event_name(tracepoint).is_some();
        if known && id == Some(tracepoint) {
            if self.entry == id {
                self.tell_process(raw, names, out);
            }
            self.decoder.decode(bytes, raw.at, names, info, out);
            return;
        }
        *self.without.entry(tracepoint).or_default() += 1;
        let name = match attr.and_then(|attr| attr.name.as_deref()) {
            Some(name) => names.intern(name.rsplit(':').next().unwrap_or(name)),
            None => names.intern(&format!("unknown-{tracepoint}")),
        };
        out.push(other(raw, Kind::Other { name }));
    }
}

/// An event of which nothing but the sample's own fields is known.
fn other(raw: Raw<'_>, kind: Kind) -> Event {
    Event {
        time_ns: raw.at.time_ns,
        tid: Tid(raw.tid),
        cpu: raw.at.cpu,
        context: Context::UNKNOWN,
        kind,
    }
}

/// What a CPU's number is as an event has it.
pub(super) fn cpu(number: Option<u32>) -> CpuId {
    CpuId(number.map_or(0, |number| u16::try_from(number).unwrap_or(u16::MAX)))
}

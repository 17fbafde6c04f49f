//! Samples to events: with formats or without.

use std::collections::BTreeMap;

use stealtime_events::{Context, CpuId, Event, Kind, Tid};

use super::attr::Attr;
use super::tracing_data::TracingData;
use crate::tracefs::{Decoder, Endian, EventFormat, EventSink, Formats, Stamp};
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
            without: BTreeMap::new(),
        }
    }

    /// The decoder, which knows the names of the tasks.
    pub(super) fn decoder(&mut self) -> &mut Decoder {
        &mut self.decoder
    }

    /// Makes an event of a sample.
    pub(super) fn event(
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
                // Every sample names the process of its thread: for vCPUs that tells VMs apart.
                let (tid, process) = (Tid(raw.tid), Tid(raw.pid));
                self.decoder.task_of(tid, process, raw.at, names, out);
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
        context: Context::default(),
        kind,
    }
}

/// What a CPU's number is as an event has it.
pub(super) fn cpu(number: Option<u32>) -> CpuId {
    CpuId(number.map_or(0, |number| u16::try_from(number).unwrap_or(u16::MAX)))
}

//! Samples to events: with the formats of the recording, with those of another, or without any.

use std::collections::BTreeMap;

use stealtime_events::{Context, CpuId, Event, Kind, Tid};

use super::attr::Attr;
use super::tracing_data::TracingData;
use crate::tracefs::{Decoder, Endian, EventQueue, Formats, Location, Stamp};
use crate::{NameTable, SourceInfo};

/// A sample's place and bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw<'a> {
    pub(super) at: Stamp,
    pub(super) tid: i32,
    /// The tracepoint's record, where the sample has one.
    pub(super) bytes: Option<&'a [u8]>,
}

/// What makes events of samples.
pub(super) struct Samples {
    decoder: Decoder,
    /// Lengths that another recording's formats lead one to expect, by tracepoint.
    foreign: Option<BTreeMap<u16, Expected>>,
    has_formats: bool,
    endian: Endian,
    /// Samples of tracepoints without a format, by tracepoint.
    pub(super) without: BTreeMap<u16, u64>,
}

/// How long a record should be.
#[derive(Debug, Clone)]
struct Expected {
    name: Box<str>,
    fixed: usize,
    dynamic: bool,
    /// Where `common_pid` stands.
    refused: bool,
}

impl Samples {
    /// `foreign`: the formats are of another recording, and every record is checked against them.
    pub(super) fn new(
        data: Option<TracingData>,
        foreign: bool,
        endian: Endian,
        names: &mut NameTable,
    ) -> Self {
        let has_formats = data.is_some();
        let (formats, symbols, endian) = match data {
            Some(data) => (data.formats, data.symbols, data.endian),
            None => (Formats::default(), Default::default(), endian),
        };
        Self {
            foreign: foreign.then(|| expected(&formats)),
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
        out: &mut EventQueue,
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
        if known && id == Some(tracepoint) && self.fits(tracepoint, bytes, raw.tid, info) {
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

    /// Whether a record looks as the formats of another recording say. The header that all events
    /// share must name the sample's own task, and the length must be right.
    fn fits(&mut self, tracepoint: u16, bytes: &[u8], tid: i32, info: &mut SourceInfo) -> bool {
        let Some(foreign) = &mut self.foreign else {
            return true;
        };
        let Some(expected) = foreign.get_mut(&tracepoint) else {
            return false;
        };
        // perf pads the record so that its length word and it fill words of 8 bytes.
        let padded = |len: usize| (len + 4).next_multiple_of(8) - 4;
        let (least, most) = (
            padded(expected.fixed),
            padded(expected.fixed.next_multiple_of(8)),
        );
        let long = if expected.dynamic {
            bytes.len() >= least
        } else {
            (least..=most).contains(&bytes.len())
        };
        let pid = self.endian.u32(bytes, 4).map(u32::cast_signed);
        if long && pid == Some(tid) && !expected.refused {
            return true;
        }
        if !expected.refused {
            expected.refused = true;
            let (name, len) = (&expected.name, bytes.len());
            info.note(
                true,
                format!(
                    "tracepoint {tracepoint}: the format given for it ({name}, {least} bytes) does \
                     not fit its records ({len} bytes): it is not used; take a recording of the \
                     same boot of the same kernel"
                ),
            );
        }
        false
    }
}

/// The lengths of the records of each format.
fn expected(formats: &Formats) -> BTreeMap<u16, Expected> {
    let of = |event: &crate::tracefs::EventFormat| {
        let ends = event
            .fields
            .iter()
            .map(|field| field.offset as usize + field.size as usize);
        let dynamic = event
            .fields
            .iter()
            .any(|field| field.location != Location::Here);
        let fixed = ends.max().unwrap_or(0).min(1 << 16);
        (
            event.id,
            Expected {
                name: event.name.clone(),
                fixed,
                dynamic,
                refused: false,
            },
        )
    };
    formats.events().iter().map(of).collect()
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

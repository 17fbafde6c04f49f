//! Whether the event formats of another recording are those of this one.
//!
//! A tracepoint's ID is given at boot and when a module is loaded, so the same ID may be another
//! event in another boot. Every record of the file is looked at before any is decoded: the header
//! that all events share must name the task that the sample itself names, the record must have the
//! length that its format says, and a `sched_switch` must leave the task that is current. One that
//! does not fit speaks against all the formats: IDs shift together.

use std::collections::BTreeMap;

use super::attr::{self, Attr};
use super::attrs::Attrs;
use super::header::Section;
use super::records_of;
use super::tracing_data::TracingData;
use crate::ReadError;
use crate::input::Stored;
use crate::tracefs::{Endian, EventFormat, Location};

/// `PERF_RECORD_SAMPLE`.
const SAMPLE: u32 = 9;

/// How many samples are checked; IDs do not change in the middle of a recording.
const MAX_CHECKED: u64 = 1 << 20;

/// What a record should look like.
struct Expected {
    name: Box<str>,
    least: usize,
    most: usize,
    /// Where a field stands that must be the task's id.
    prev_pid: Option<usize>,
}

impl Expected {
    fn of(format: &EventFormat) -> Self {
        // perf pads the record so that its length word and it fill words of 8 bytes. The kernel's
        // structure may itself end in padding.
        let padded = |len: usize| (len + 4).next_multiple_of(8) - 4;
        let ends = format
            .fields
            .iter()
            .map(|field| field.offset.saturating_add(field.size));
        let end = ends.max().unwrap_or(0).min(1 << 16) as usize;
        let dynamic = format
            .fields
            .iter()
            .any(|field| field.location != Location::Here);
        let prev_pid = format
            .field("prev_pid")
            .filter(|_| &*format.name == "sched_switch");
        Self {
            name: format.name.clone(),
            least: padded(end),
            most: if dynamic {
                usize::MAX
            } else {
                padded(end.next_multiple_of(8))
            },
            prev_pid: prev_pid.map(|field| field.offset as usize),
        }
    }
}

/// Checks the records against the formats; gives how many were checked.
pub(super) fn check(
    file: &mut Stored,
    data: Section,
    endian: Endian,
    attrs: &Attrs,
    tracing: &TracingData,
) -> Result<u64, ReadError> {
    let all: BTreeMap<u16, Expected> = tracing
        .formats
        .events()
        .iter()
        .map(|format| (format.id, Expected::of(format)))
        .collect();
    let name = file.name.clone();
    let mut records = records_of(file, &name, data, endian)?;
    let mut checked = 0;
    // Where the records cannot be read any further the reader itself says so.
    while let Ok(record) = records.next() {
        if record.kind != SAMPLE || checked >= MAX_CHECKED {
            continue;
        }
        let bytes = records.bytes(record);
        let Some((_, attr)) = attrs.of_sample(bytes, endian) else {
            continue;
        };
        let Some(sample) = attr::sample(bytes, attr, endian) else {
            continue;
        };
        let raw = sample
            .raw
            .and_then(|(start, len)| bytes.get(start..)?.get(..len));
        let id = raw.and_then(|raw| endian.u16(raw, 0));
        let id = Attr::tracepoint(attr).filter(|_| raw.is_some()).or(id);
        let (Some(raw), Some((id, expected))) = (raw, id.and_then(|id| all.get_key_value(&id)))
        else {
            continue;
        };
        let pid = |at| endian.u32(raw, at).map(u32::cast_signed) == Some(sample.tid);
        let fits = endian.u16(raw, 0) == Some(*id)
            && (expected.least..=expected.most).contains(&raw.len())
            && pid(4)
            && expected.prev_pid.is_none_or(pid);
        if !fits {
            let (event, least, len) = (&expected.name, expected.least, raw.len());
            let offset = record.offset;
            return Err(ReadError::Unsupported {
                input: name,
                what: format!(
                    "the formats given are of another kernel or boot: by them tracepoint {id} is \
                     {event} with records of {least} bytes for the task that is current; the one \
                     at offset {offset} has {len} bytes or another task"
                ),
            });
        }
        checked += 1;
    }
    Ok(checked)
}

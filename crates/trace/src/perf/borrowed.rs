//! Whether the event formats of another recording are those of this one.
//!
//! A tracepoint gets its ID at boot, or when its module is loaded. So one ID may be another event in
//! another boot. Every record is checked before any is decoded:
//!
//! - the header that all events share must name the sample's task;
//! - the record must have the length of its format;
//! - a `sched_switch` must leave the sample's task.
//!
//! One record that does not fit speaks against all formats, because IDs shift together.

use std::collections::BTreeMap;

use super::attr::{self, Attr};
use super::attrs::Attrs;
use super::header::Section;
use super::kind;
use super::records::Records;
use super::tracing_data::TracingData;
use crate::ReadError;
use crate::input::Stored;
use crate::tracefs::{Endian, EventFormat, Location};
use crate::tracepoint::{self, Point};

/// Samples that are checked, at most. IDs do not change within a recording, so more add nothing.
const MAX_CHECKED: u64 = 1 << 20;

/// Offset of `common_pid`, behind `common_type`, `common_flags` and `common_preempt_count`.
const COMMON_PID: usize = 4;

/// The shape of an event's records.
struct Expected {
    name: Box<str>,
    /// Shortest and longest record, in bytes.
    min_len: usize,
    max_len: usize,
    /// Offset of a field that must be the task's id.
    prev_pid: Option<usize>,
}

impl Expected {
    fn new(format: &EventFormat) -> Self {
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
            .filter(|_| &*format.name == tracepoint::name(Point::SchedSwitch));
        Self {
            name: format.name.clone(),
            min_len: padded(end),
            max_len: if dynamic {
                usize::MAX
            } else {
                padded(end.next_multiple_of(8))
            },
            prev_pid: prev_pid.map(|field| field.offset as usize),
        }
    }
}

/// Checks the records against the formats; returns the number of checked records.
///
/// # Errors
/// A record does not fit, or the file cannot be read.
pub(super) fn check(
    file: &mut Stored,
    data: Section,
    endian: Endian,
    attrs: &Attrs,
    tracing: &TracingData,
) -> Result<u64, ReadError> {
    let expected: BTreeMap<u16, Expected> = tracing
        .formats
        .events()
        .iter()
        .map(|format| (format.id, Expected::new(format)))
        .collect();
    let name = file.name.clone();
    let mut records = Records::section(file, &name, data.offset, data.size, endian)?;
    let mut checked = 0;
    // Where the records cannot be read any further the reader itself says so.
    while let Ok(record) = records.next() {
        if record.kind != kind::SAMPLE || checked >= MAX_CHECKED {
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
        let (Some(raw), Some((id, expected))) =
            (raw, id.and_then(|id| expected.get_key_value(&id)))
        else {
            continue;
        };
        let is_task = |offset| endian.u32(raw, offset).map(u32::cast_signed) == Some(sample.tid);
        let fits = endian.u16(raw, 0) == Some(*id)
            && (expected.min_len..=expected.max_len).contains(&raw.len())
            && is_task(COMMON_PID)
            && expected.prev_pid.is_none_or(is_task);
        if !fits {
            let (event, min_len, len) = (&expected.name, expected.min_len, raw.len());
            let offset = record.offset;
            return Err(ReadError::Unsupported {
                input: name,
                problem: format!(
                    "the formats given are of another kernel or boot: by them tracepoint {id} is \
                     {event} with records of {min_len} bytes for the task that is current; the one \
                     at offset {offset} has {len} bytes or another task"
                ),
            });
        }
        checked += 1;
    }
    Ok(checked)
}

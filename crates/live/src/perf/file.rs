//! perf.data around the records (tools/perf/Documentation/perf.data-file-format.txt).

use stealtime_trace::write::raw::System;

use super::attributes::{Attributes, SIZE};

/// Bytes of the header.
const HEADER: u64 = 104;
/// Features: `HEADER_TRACING_DATA` and the following ones (tools/perf/util/header.h).
const TRACING_DATA: u32 = 1;
const HOSTNAME: u32 = 3;
const OSRELEASE: u32 = 4;
const ARCH: u32 = 6;
const NRCPUS: u32 = 7;
const EVENT_DESC: u32 = 12;
/// PERF_RECORD_COMM, and `PERF_RECORD_FINISHED_ROUND` of perf itself.
const COMM: u32 = 3;
const FINISHED_ROUND: u32 = 68;

/// A recorded event with its number on each CPU.
#[derive(Debug, Clone)]
pub(crate) struct Event {
    /// `system:name`.
    pub(crate) name: String,
    pub(crate) attributes: Attributes,
    pub(crate) ids: Vec<u64>,
}

/// What the file says of the host.
#[derive(Debug, Clone, Default)]
pub(crate) struct Host {
    pub(crate) name: String,
    pub(crate) release: String,
    pub(crate) machine: String,
    /// CPUs that the host may have, and those online.
    pub(crate) cpus: [u32; 2],
    /// Descriptions of the events.
    pub(crate) header_page: Vec<u8>,
    pub(crate) header_event: Vec<u8>,
    pub(crate) systems: Vec<System>,
    pub(crate) kallsyms: Vec<u8>,
    pub(crate) printk_formats: Vec<u8>,
    pub(crate) cmdlines: Vec<u8>,
}

/// The bytes in front of the records, for so many bytes of records.
pub(crate) fn head(events: &[Event], records: u64) -> Vec<u8> {
    let attributes = (SIZE + 16) as u64;
    let ids_start = HEADER + attributes * events.len() as u64;
    let ids: usize = events.iter().map(|event| event.ids.len()).sum();
    let data = ids_start + 8 * ids as u64;
    let features = [TRACING_DATA, HOSTNAME, OSRELEASE, ARCH, NRCPUS, EVENT_DESC];
    let bits = features.iter().fold(0_u64, |bits, bit| bits | 1 << bit);
    let mut bytes = b"PERFILE2".to_vec();
    let header = [
        HEADER,
        attributes,
        HEADER,
        attributes * events.len() as u64,
        data,
        records,
        0,
        0,
        bits,
        0,
        0,
        0,
    ];
    header.iter().for_each(|word| put(&mut bytes, *word));
    let mut place = ids_start;
    for event in events {
        bytes.extend_from_slice(&event.attributes.bytes());
        let len = 8 * event.ids.len() as u64;
        put(&mut bytes, place);
        put(&mut bytes, len);
        place += len;
    }
    for id in events.iter().flat_map(|event| &event.ids) {
        put(&mut bytes, *id);
    }
    bytes
}

/// The sections behind the records, which end at `position`: a table, and the content.
pub(crate) fn features(events: &[Event], host: &Host, position: u64) -> Vec<u8> {
    let sections = [
        tracing_data(host),
        string(&host.name),
        string(&host.release),
        string(&host.machine),
        host.cpus
            .iter()
            .flat_map(|count| count.to_ne_bytes())
            .collect(),
        descriptions(events),
    ];
    let mut place = position + 16 * sections.len() as u64;
    let mut bytes = Vec::new();
    for section in &sections {
        put(&mut bytes, place);
        put(&mut bytes, section.len() as u64);
        place += section.len() as u64;
    }
    bytes.extend(sections.into_iter().flatten());
    bytes
}

/// The start of a trace.dat of version 6, as tools/perf/util/trace-event-info.c writes it.
fn tracing_data(host: &Host) -> Vec<u8> {
    let mut bytes = b"\x17\x08\x44tracing0.6\0".to_vec();
    bytes.extend_from_slice(&[u8::from(cfg!(target_endian = "big")), 8]);
    bytes.extend_from_slice(&(rustix::param::page_size() as u32).to_ne_bytes());
    for (name, content) in [
        ("header_page", &host.header_page),
        ("header_event", &host.header_event),
    ] {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        put(&mut bytes, content.len() as u64);
        bytes.extend_from_slice(content);
    }
    // Formats of ftrace's own events: none is recorded.
    bytes.extend_from_slice(&0_u32.to_ne_bytes());
    bytes.extend_from_slice(&(host.systems.len() as u32).to_ne_bytes());
    for system in &host.systems {
        bytes.extend_from_slice(system.name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&(system.formats.len() as u32).to_ne_bytes());
        for format in &system.formats {
            put(&mut bytes, format.len() as u64);
            bytes.extend_from_slice(format);
        }
    }
    for content in [&host.kallsyms, &host.printk_formats] {
        bytes.extend_from_slice(&(content.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(content);
    }
    put(&mut bytes, host.cmdlines.len() as u64);
    bytes.extend_from_slice(&host.cmdlines);
    bytes
}

/// `struct perf_header_string`: the padded length, the text, zeros.
fn string(text: &str) -> Vec<u8> {
    let len = (text.len() + 1).next_multiple_of(64);
    let mut bytes = (len as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    bytes.resize(4 + len, 0);
    bytes
}

/// Names of the events.
fn descriptions(events: &[Event]) -> Vec<u8> {
    let mut bytes = (events.len() as u32).to_ne_bytes().to_vec();
    bytes.extend_from_slice(&(SIZE as u32).to_ne_bytes());
    for event in events {
        bytes.extend_from_slice(&event.attributes.bytes());
        bytes.extend_from_slice(&(event.ids.len() as u32).to_ne_bytes());
        bytes.extend_from_slice(&string(&event.name));
        event.ids.iter().for_each(|id| put(&mut bytes, *id));
    }
    bytes
}

/// The name of a thread, as before the first event.
pub(crate) fn comm(process: i32, tid: i32, name: &[u8], id: u64) -> Vec<u8> {
    // At least one zero ends the name, and the next record begins at a multiple of eight.
    let padded = (name.len() + 1).next_multiple_of(8);
    let size = 16 + padded + 32;
    let mut bytes = record(COMM, size);
    let ids: Vec<u8> = [process, tid]
        .into_iter()
        .flat_map(i32::to_ne_bytes)
        .collect();
    bytes.extend_from_slice(&ids);
    bytes.extend_from_slice(name);
    bytes.resize(16 + padded, 0);
    // Behind it, as `sample_id_all` asks for: thread, time, CPU, event.
    bytes.extend_from_slice(&ids);
    put(&mut bytes, 0);
    put(&mut bytes, 0);
    put(&mut bytes, id);
    bytes
}

/// Ends a round: all rings were drained, so that events of the round before can be sorted.
pub(crate) fn finished_round() -> Vec<u8> {
    record(FINISHED_ROUND, 8)
}

/// `struct perf_event_header`.
fn record(kind: u32, size: usize) -> Vec<u8> {
    let mut bytes = kind.to_ne_bytes().to_vec();
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&(size as u16).to_ne_bytes());
    bytes
}

fn put(bytes: &mut Vec<u8>, word: u64) {
    bytes.extend_from_slice(&word.to_ne_bytes());
}

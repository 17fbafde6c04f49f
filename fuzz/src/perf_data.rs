//! perf.data with sound headers, attributes and formats, and hostile records.

use super::choices::Choices;
use super::head::{HEADS, Head, Point};
use super::record;

/// Bits of `sample_type` that samples have in any case: TID, TIME, CPU, RAW, IDENTIFIER.
const SAMPLE_TYPE: u64 = 0x1_0486;
/// Others that move the record: IP, ADDR, READ, CALLCHAIN, PERIOD.
const OTHERS: [u64; 5] = [1 << 0, 1 << 3, 1 << 4, 1 << 5, 1 << 8];
const CALLCHAIN: u64 = 1 << 5;
const READ: u64 = 1 << 4;
/// `sample_id_all`.
const FLAGS: u64 = 1 << 18;
const ATTR: usize = 136;
const ID: u64 = 11;
/// Records (`enum perf_event_type`, `enum perf_user_event_type`).
const LOST: u32 = 2;
const COMM: u32 = 3;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
const HEADER_ATTR: u32 = 64;
const TRACING_DATA: u32 = 66;
const FINISHED_ROUND: u32 = 68;
const COMPRESSED: u32 = 81;
/// Records of an input, at most.
const RECORDS: usize = 200;

/// A file, or a pipe's data, of these choices.
#[must_use]
pub fn file(data: &[u8]) -> Vec<u8> {
    let mut choices = Choices::new(data);
    // The description of version 6 is that of perf's tracing data.
    let heads: Vec<&Head> = HEADS.iter().filter(|head| head.is_v6()).collect();
    let head = choices.one_of(&heads);
    let bits = choices.byte();
    let chosen = OTHERS
        .iter()
        .zip(0..)
        .filter(|(_, place)| bits >> place & 1 == 1);
    let sample_type = SAMPLE_TYPE | chosen.map(|(bit, _)| bit).sum::<u64>();
    let is_pipe = bits & 0x80 != 0;
    let stream = Stream {
        points: &head.points,
        sample_type,
    };
    let mut time = 1 << 20;
    let mut records = Vec::new();
    for _ in 0..RECORDS {
        if choices.is_over() {
            break;
        }
        stream.record(&mut choices, &mut time, &mut records);
    }
    let tracing = tracing(head);
    if is_pipe {
        pipe(sample_type, &tracing, &records)
    } else {
        plain(sample_type, &tracing, &records)
    }
}

fn words(values: &[u64], bytes: &mut Vec<u8>) {
    bytes.extend(values.iter().flat_map(|value| value.to_le_bytes()));
}

fn attr(sample_type: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    // PERF_TYPE_TRACEPOINT, and the structure's size.
    words(
        &[2 | (ATTR as u64) << 32, 300, 1, sample_type, 0, FLAGS],
        &mut bytes,
    );
    bytes.resize(ATTR, 0);
    bytes
}

/// Formats as `perf record` keeps them.
fn tracing(head: &Head) -> Vec<u8> {
    let mut bytes = b"\x17\x08\x44tracing0.6\0".to_vec();
    bytes.extend(head.description());
    bytes
}

fn plain(sample_type: u64, tracing: &[u8], records: &[u8]) -> Vec<u8> {
    let (attrs, attr_len) = (104, ATTR as u64 + 16);
    let ids = attrs + attr_len;
    let (data, len) = (ids + 8, records.len() as u64);
    let table = data + len;
    let mut bytes = b"PERFILE2".to_vec();
    // Sizes, sections of attributes, data and event types; the feature HEADER_TRACING_DATA.
    words(
        &[
            104,
            attr_len,
            attrs,
            attr_len,
            data,
            len,
            0,
            0,
            1 << 1,
            0,
            0,
            0,
        ],
        &mut bytes,
    );
    bytes.extend(attr(sample_type));
    words(&[ids, 8, ID], &mut bytes);
    bytes.extend(records);
    words(&[table + 16, tracing.len() as u64], &mut bytes);
    bytes.extend(tracing);
    bytes
}

fn pipe(sample_type: u64, tracing: &[u8], records: &[u8]) -> Vec<u8> {
    let mut bytes = b"PERFILE2".to_vec();
    words(&[16], &mut bytes);
    let mut body = attr(sample_type);
    words(&[ID], &mut body);
    push(HEADER_ATTR, 0, &body, &mut bytes);
    push(
        TRACING_DATA,
        0,
        &(tracing.len() as u32).to_le_bytes(),
        &mut bytes,
    );
    bytes.extend(tracing);
    bytes.resize(
        bytes.len() + tracing.len().next_multiple_of(8) - tracing.len(),
        0,
    );
    bytes.extend(records);
    bytes
}

/// Appends a record with the length that it has.
fn push(kind: u32, misc: u16, body: &[u8], bytes: &mut Vec<u8>) {
    bytes.extend(kind.to_le_bytes());
    bytes.extend(misc.to_le_bytes());
    bytes.extend(((8 + body.len()) as u16).to_le_bytes());
    bytes.extend(body);
}

struct Stream<'a> {
    points: &'a [Point],
    sample_type: u64,
}

impl Stream<'_> {
    fn record(&self, choices: &mut Choices<'_>, time: &mut u64, bytes: &mut Vec<u8>) {
        let kind = choices.byte();
        let mut body = Vec::new();
        let start = bytes.len();
        match kind {
            ..160 => {
                self.sample(choices, time, &mut body);
                // perf prints no samples of a guest's modes (4 and 5) without its symbols.
                push(SAMPLE, u16::from(kind & 3), &body, bytes);
            }
            160..180 => {
                words(&[choices.number()], &mut body);
                body.extend(choices.bytes(16));
                self.identity(choices, time, &mut body);
                push(COMM, 0, &body, bytes);
            }
            180..190 => {
                words(&[ID, choices.number()], &mut body);
                self.identity(choices, time, &mut body);
                push(LOST, 0, &body, bytes);
            }
            190..200 => {
                words(&[choices.number()], &mut body);
                self.identity(choices, time, &mut body);
                push(LOST_SAMPLES, 0, &body, bytes);
            }
            200..220 => push(FINISHED_ROUND, 0, &[], bytes),
            220..235 => {
                let mut records = Vec::new();
                for _ in 0..choices.below(4) {
                    self.sample(choices, time, &mut body);
                    push(SAMPLE, 0, &body, &mut records);
                    body.clear();
                }
                packed(&records, bytes);
            }
            235..250 => {
                let any = choices.number() as u32;
                let len = choices.below(64);
                push(any % 96, 0, choices.bytes(len), bytes);
            }
            250.. => bytes.extend((choices.number() as u32).to_le_bytes()),
        }
        // Now and then a length that is not the record's.
        if choices.one_in(64)
            && let Some(place) = bytes.get_mut(start + 6..start + 8)
        {
            place.copy_from_slice(&(choices.number() as u16).to_le_bytes());
        }
    }

    fn sample(&self, choices: &mut Choices<'_>, time: &mut u64, body: &mut Vec<u8>) {
        let has = |bit| self.sample_type & bit != 0;
        *time = time.wrapping_add(choices.number());
        words(&[ID], body);
        let tid = choices.number();
        let before = [
            (OTHERS[0], 5),
            (0x2, tid | tid << 32),
            (0x4, *time),
            (OTHERS[1], 6),
        ];
        let behind = [(0x80, choices.below(4) as u64), (OTHERS[4], 1)];
        for (bit, value) in before.into_iter().chain(behind) {
            if has(bit) {
                words(&[value], body);
            }
        }
        if has(READ) {
            words(&[1], body);
        }
        if has(CALLCHAIN) {
            let frames = if choices.one_in(32) {
                choices.number()
            } else {
                1
            };
            words(&[frames, 0xaaaa], body);
        }
        let start = body.len();
        body.extend([0; 4]);
        record::push(choices, self.points, body);
        let len = if choices.one_in(64) {
            choices.number()
        } else {
            (body.len() - start - 4) as u64
        };
        body[start..start + 4].copy_from_slice(&(len as u32).to_le_bytes());
        body.resize(body.len().next_multiple_of(8), 0);
    }

    /// `sample_id`: TID, TIME, CPU, IDENTIFIER.
    fn identity(&self, choices: &mut Choices<'_>, time: &mut u64, body: &mut Vec<u8>) {
        *time = time.wrapping_add(choices.number());
        words(
            &[choices.number(), *time, choices.below(4) as u64, ID],
            body,
        );
    }
}

/// A frame of zstd with one raw block, which costs no packing.
fn packed(records: &[u8], bytes: &mut Vec<u8>) {
    let block = 1 | (records.len() as u32) << 3;
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0xa0];
    frame.extend((records.len() as u32).to_le_bytes());
    frame.extend(&block.to_le_bytes()[..3]);
    frame.extend(records);
    push(COMPRESSED, 0, &frame, bytes);
}

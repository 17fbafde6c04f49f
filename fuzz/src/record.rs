//! Hostile records of tracepoints that are described soundly.

use super::choices::Choices;
use super::head::{Point, VCPUS};

/// Bytes of `struct trace_entry`.
const COMMON: usize = 8;
/// Threads that events name: idle, the vCPUs, a thread without a name, and none.
const TIDS: [i32; 6] = [0, VCPUS[0], VCPUS[1], 300, -1, i32::MAX];

/// Appends a record: a sound header, and any values in its fields.
pub fn push(choices: &mut Choices<'_>, points: &[Point], bytes: &mut Vec<u8>) {
    let point = choices.one_of(points);
    // The lowest bits: the task, interrupts, flags that no kernel has.
    let [tid, flags] = [choices.byte(), choices.byte()];
    let start = bytes.len();
    bytes.extend(point.id.to_le_bytes());
    bytes.extend([flags, 0]);
    bytes.extend(TIDS[usize::from(tid) % TIDS.len()].to_le_bytes());
    let len = if flags == 0xff {
        // Too short for its fields, or longer.
        COMMON + choices.below(point.len + 9)
    } else {
        point.len.max(COMMON)
    };
    while bytes.len() - start < len {
        field(choices, bytes);
    }
    bytes.truncate(start + len);
}

/// Four or eight bytes of a field.
fn field(choices: &mut Choices<'_>, bytes: &mut Vec<u8>) {
    match choices.byte() {
        small @ ..128 => bytes.extend(u32::from(small).to_le_bytes()),
        tid @ 128..192 => bytes.extend(TIDS[usize::from(tid) % TIDS.len()].to_le_bytes()),
        192..240 => bytes.extend((choices.number() as u32).to_le_bytes()),
        240.. => bytes.extend(choices.number().to_le_bytes()),
    }
}

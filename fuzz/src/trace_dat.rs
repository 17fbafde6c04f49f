//! trace.dat files with sound beginnings and hostile pages of the ring buffer.

use super::choices::Choices;
use super::head::{CPUS, HEADS, Head, PAGE, Point};
use super::record;

/// Pages of a CPU, at most.
const PAGES: usize = 6;
/// Bytes before a page's entries: its time and its commit.
const PAGE_HEAD: usize = 16;
/// `RB_MISSED_EVENTS` and `RB_MISSED_STORED` of a page's commit.
const MISSED: u64 = 1 << 31;
const STORED: u64 = 1 << 30;
/// Entries of the ring buffer that are no records.
const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;
const DELTA_BITS: u32 = 27;
const DELTA: u64 = (1 << DELTA_BITS) - 1;

/// A file of these choices.
#[must_use]
pub fn file(data: &[u8]) -> Vec<u8> {
    let mut choices = Choices::new(data);
    let head = &HEADS[choices.below(HEADS.len())];
    let mut bytes = head.bytes.clone();
    let last = CPUS - 1;
    for (cpu, place) in head.places.into_iter().enumerate() {
        let start = bytes.len();
        // The last CPU has what is left.
        let count = if cpu == last {
            PAGES
        } else {
            choices.below(PAGES)
        };
        cpu_data(&mut choices, head, count, &mut bytes);
        let len = bytes.len() - start;
        for (offset, value) in [(0, start), (8, len)] {
            let value = (value as u64).to_le_bytes();
            bytes[place + offset..place + offset + 8].copy_from_slice(&value);
        }
    }
    // Some files are cut short.
    let cut = choices.below(256).saturating_sub(200) * 16;
    bytes.truncate(bytes.len().saturating_sub(cut).max(head.bytes.len()));
    bytes
}

fn cpu_data(choices: &mut Choices<'_>, head: &Head, count: usize, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    if head.packed {
        bytes.extend([0; 4]);
    }
    let mut time = 1 << 20;
    let mut pages = 0_u32;
    while (pages as usize) < count && !choices.is_over() {
        let page = page(choices, &head.points, &mut time);
        if head.packed {
            chunk(&page, choices.one_in(64), bytes);
        } else {
            bytes.extend(page);
        }
        pages += 1;
    }
    if head.packed {
        bytes[start..start + 4].copy_from_slice(&pages.to_le_bytes());
    }
}

/// A chunk of zstd with one raw block, which costs no packing; or with a block of a reserved type.
fn chunk(page: &[u8; PAGE], is_broken: bool, bytes: &mut Vec<u8>) {
    let block = 1 | if is_broken { 6 } else { 0 } | (PAGE as u32) << 3;
    // Magic, descriptor of a single segment with two bytes for its size, which counts from 256.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x60];
    frame.extend(((PAGE - 256) as u16).to_le_bytes());
    frame.extend(&block.to_le_bytes()[..3]);
    frame.extend(page);
    bytes.extend((frame.len() as u32).to_le_bytes());
    bytes.extend((PAGE as u32).to_le_bytes());
    bytes.extend(frame);
}

/// A page with any entries behind a sound header, or one that says too much.
fn page(choices: &mut Choices<'_>, points: &[Point], time: &mut u64) -> [u8; PAGE] {
    let flags = choices.byte();
    // Pages go on where the last one ended, or anywhere.
    *time = match flags & 7 {
        7 => choices.number(),
        _ => time.wrapping_add(choices.number()),
    };
    let start = *time;
    let mut entries = Vec::with_capacity(PAGE);
    while entries.len() < PAGE - PAGE_HEAD && !choices.is_over() {
        let before = entries.len();
        let ends = !entry(choices, points, time, &mut entries);
        // Most pages end with a whole entry.
        if entries.len() > PAGE - PAGE_HEAD && flags < 0xe0 {
            entries.truncate(before);
            break;
        }
        if ends {
            break;
        }
    }
    let mut used = entries.len().min(PAGE - PAGE_HEAD) as u64;
    match flags >> 3 {
        1 => used |= MISSED,
        2 => used |= MISSED | STORED,
        // A length that the page cannot have, or that ends within an entry.
        3 => used = choices.number(),
        _ => {}
    }
    let mut page = [0; PAGE];
    page[..8].copy_from_slice(&start.to_le_bytes());
    page[8..PAGE_HEAD].copy_from_slice(&used.to_le_bytes());
    for (target, byte) in page[PAGE_HEAD..].iter_mut().zip(entries) {
        *target = byte;
    }
    page
}

/// Appends an entry; `false` ends the page.
fn entry(choices: &mut Choices<'_>, points: &[Point], time: &mut u64, bytes: &mut Vec<u8>) -> bool {
    let kind = choices.byte();
    let delta = choices.number();
    let head = |kind: u32, delta: u64| (kind | ((delta & DELTA) as u32) << 5).to_le_bytes();
    match kind {
        ..200 => {
            *time = time.wrapping_add(delta & DELTA);
            let start = bytes.len();
            bytes.extend([0; 4]);
            let is_long = kind < 8;
            if is_long {
                bytes.extend([0; 4]);
            }
            record::push(choices, points, bytes);
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            let len = bytes.len() - start - 4;
            let words = if is_long { 0 } else { (len / 4).min(28) as u32 };
            bytes[start..start + 4].copy_from_slice(&head(words, delta));
            if is_long {
                bytes[start + 4..start + 8].copy_from_slice(&(len as u32).to_le_bytes());
            }
        }
        200..215 => {
            *time = time.wrapping_add(delta);
            bytes.extend(head(TIME_EXTEND, delta));
            bytes.extend(((delta >> DELTA_BITS) as u32).to_le_bytes());
        }
        215..225 => {
            *time = delta;
            bytes.extend(head(TIME_STAMP, delta));
            bytes.extend(((delta >> DELTA_BITS) as u32).to_le_bytes());
        }
        225..235 => {
            // A discarded event, or the end of the page.
            let len = 4 * choices.below(8);
            bytes.extend(head(PADDING, delta));
            bytes.extend((len as u32).to_le_bytes());
            bytes.resize(bytes.len() + len.saturating_sub(4), 0xaa);
        }
        235..245 => bytes.extend(head(u32::from(kind) & 31, delta)),
        245..253 => bytes.extend((choices.number() as u32).to_le_bytes()),
        253.. => return false,
    }
    true
}

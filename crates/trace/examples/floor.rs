//! The least that reading a recording takes: the file read in pieces of 256 KiB, and of a perf.data
//! the header of each record and the first word behind it looked at. Nothing is decoded or kept.
//!
//! `scripts/bench-readers` compares the time of this with those of the readers:
//! `cargo run --release -p stealtime-trace --example floor FILE`.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// As much as the readers read at once.
const PIECE: usize = 256 << 10;

/// What was seen, so that no look is left out.
#[derive(Default)]
struct Seen {
    bytes: u64,
    records: u64,
    samples: u64,
    ids: u64,
}

impl Seen {
    /// Walks over the records that are there as a whole; gives how many bytes they have.
    fn walk(&mut self, bytes: &[u8]) -> usize {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..)
            && let Some(head) = rest.first_chunk::<16>()
        {
            let [start, id] = words(head);
            let len = (start >> 48) as usize;
            if len < 8 || len > rest.len() {
                break;
            }
            self.records += 1;
            if start as u32 == 9 {
                self.samples += 1;
                self.ids = self.ids.wrapping_add(id);
            }
            at += len;
        }
        at
    }
}

/// The two words of 8 bytes.
fn words(head: &[u8; 16]) -> [u64; 2] {
    let both = u128::from_le_bytes(*head);
    [both as u64, (both >> 64) as u64]
}

fn main() -> io::Result<()> {
    let Some(path) = std::env::args_os().nth(1) else {
        eprintln!("usage: floor FILE");
        std::process::exit(2);
    };
    let mut file = File::open(path)?;
    let mut head = Vec::new();
    file.by_ref().take(104).read_to_end(&mut head)?;
    let is_perf = head.starts_with(b"PERFILE2") && head.len() == 104;
    // Where the records of a perf.data are; of anything else, all.
    let [offset, size] = match head.get(40..56).and_then(<[u8]>::first_chunk) {
        Some(section) if is_perf => words(section),
        _ => [0, u64::MAX],
    };
    file.seek(SeekFrom::Start(offset))?;
    let mut input = file.take(size);
    let (mut buffer, mut held, mut seen) = (vec![0; PIECE], 0, Seen::default());
    loop {
        let read = input.read(buffer.get_mut(held..).unwrap_or_default())?;
        if read == 0 {
            break;
        }
        seen.bytes += read as u64;
        if is_perf {
            held += read;
            let taken = seen.walk(buffer.get(..held).unwrap_or_default());
            buffer.copy_within(taken..held, 0);
            held -= taken;
        }
    }
    let Seen {
        bytes,
        records,
        samples,
        ids,
    } = seen;
    println!("{bytes} bytes, {records} records, {samples} samples, sum of ids {ids}");
    Ok(())
}

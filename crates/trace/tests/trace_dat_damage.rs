//! Damaged files: cut at any place, changed at any place. Never a panic, never without end, and
//! never fewer events without saying so.

use stealtime_trace::{EventSource, ReadError, SourceInfo, TraceDat};

use crate::common;

/// Reads to the end, or to an error; gives the host's events and what is known.
fn read(mut source: TraceDat, limit: u64) -> (u64, SourceInfo, Option<ReadError>) {
    let mut events = 0;
    loop {
        match source.next_event() {
            Ok(Some(event)) => events += u64::from(event.kind.is_host_event()),
            Ok(None) => return (events, source.info().clone(), None),
            Err(error) => {
                assert!(
                    matches!(source.next_event(), Ok(None)),
                    "more after {error}"
                );
                return (events, source.info().clone(), Some(error));
            }
        }
        assert!(events <= limit, "more events than the file can hold");
    }
}

/// Small files of both versions: version 6 with its first pages, version 7 in chunks.
fn files() -> [Vec<u8>; 2] {
    let path = |name: &str| format!("{}/{name}", common::SMALL);
    let mut v6 = common::bytes(path("svm-hackbench-cyclictest-hog/trace.dat.zst").as_ref());
    let v7 = common::bytes(path("pvmhost-lost-events-ring/trace.dat").as_ref());
    // Enough of the first CPU's pages to be of interest.
    v6.truncate(v6.len().min(160 << 10));
    [v6, v7]
}

/// How many changes are tried; `STEALTIME_FLIPS` for more.
fn flips() -> usize {
    let flips = std::env::var("STEALTIME_FLIPS")
        .ok()
        .and_then(|flips| flips.parse().ok());
    flips.unwrap_or(150)
}

/// Positions all over a file, denser at its start, the same in each run.
fn positions(len: usize, count: usize, mut seed: u64) -> impl Iterator<Item = (usize, u8)> {
    (0..count).map(move |_| {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let random = (seed >> 33) as usize;
        let within = if random & 1 == 0 { len } else { len.min(1024) };
        ((random >> 1) % within, (seed >> 24) as u8 | 1)
    })
}

#[test]
fn cut_at_any_place() {
    for whole in files() {
        let complete = read(common::open(whole.clone()).expect("a good file"), u64::MAX).0;
        let places = (0..64).chain((64..whole.len()).step_by(whole.len() / 250));
        for len in places.chain(whole.len() - 20..whole.len()) {
            match common::open(whole[..len].to_vec()) {
                Ok(source) => {
                    let (events, info, _) = read(source, complete);
                    assert!(
                        events == complete || info.is_partial(),
                        "cut at {len}: {events}"
                    );
                }
                Err(ReadError::Empty { .. }) => assert_eq!(len, 0),
                Err(error) => {
                    assert!(
                        error.to_string().contains("cut short"),
                        "cut at {len}: {error}"
                    );
                }
            }
        }
    }
}

#[test]
fn changed_at_any_place() {
    for whole in files() {
        // A changed length may show padding as events, but an event takes 4 bytes at the least.
        let limit = 64 * whole.len() as u64;
        let mut changed = whole.clone();
        for (at, with) in positions(whole.len(), flips(), 7) {
            changed[at] ^= with;
            if let Ok(source) = common::open(changed.clone()) {
                read(source, limit);
            }
            changed[at] = whole[at];
        }
    }
}

#[test]
fn numbers_set_to_extremes() {
    for whole in files() {
        let limit = 64 * whole.len() as u64;
        for (at, with) in positions(whole.len() - 8, flips(), 11) {
            let mut changed = whole.clone();
            let value: u64 = match with % 8 {
                1 => u64::MAX,
                3 => u64::from(u32::MAX),
                5 => i64::MAX as u64,
                _ => whole.len() as u64 - 1,
            };
            changed[at..at + 8].copy_from_slice(&value.to_le_bytes());
            if let Ok(source) = common::open(changed) {
                read(source, limit);
            }
        }
    }
}

#[test]
fn what_is_no_trace() {
    for (bytes, what) in [
        (&b""[..], "empty"),
        (b"\x17\x08\x44tracing", "cut short"),
        (b"\x17\x08\x44tracing5\0\0\x08\0\x10\0\0", "version \"5\""),
        (b"\x17\x08\x44tracing6\0\x02\x08\0\x10\0\0", "byte order 2"),
        (
            b"\x17\x08\x44tracing6\0\0\x07\0\x10\0\0",
            "a long of 7 bytes",
        ),
        (b"PERFILE2........", "expected"),
    ] {
        let error = match common::open(bytes.to_vec()) {
            Ok(_) => panic!("{what}: opened"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(what), "{what}: {error}");
    }
}

//! Damaged perf.data files and texts, made of the small recordings.

use std::fs;
use std::path::{Path, PathBuf};

use stealtime_events::Kind;
use stealtime_trace::open;

use crate::common;

/// A small generator of numbers, so that a failure comes again.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).expect("it is below")
    }
}

/// Reads what can be read: events of the host, and whether all were.
fn read(path: &Path) -> Option<(usize, bool)> {
    let mut source = open(path).ok()?;
    let mut events = 0;
    loop {
        match source.next_event() {
            Ok(Some(event)) => events += usize::from(event.kind.is_host_event()),
            Ok(None) => return Some((events, !source.info().is_partial())),
            Err(_) => return Some((events, false)),
        }
        assert!(events < 20_000);
    }
}

fn with_bytes<T>(bytes: &[u8], use_it: impl FnOnce(&Path) -> T) -> T {
    let dir = tempfile::tempdir().expect("a folder");
    let path: PathBuf = dir.path().join("damaged");
    fs::write(&path, bytes).expect("a file");
    use_it(&path)
}

fn small(recording: &str, name: &str) -> Vec<u8> {
    let dir = Path::new(common::SMALL).join(recording);
    common::bytes(&common::file(&dir, name).expect("a recording of the repository"))
}

#[test]
fn a_perf_data_cut_anywhere_is_partial() {
    let bytes = small("svm-lost-events-hackbench-hog-timer", "perf.data");
    let mut numbers = Numbers(0x5eed);
    for _ in 0..60 {
        let at = numbers.below(bytes.len());
        if let Some((events, whole)) = with_bytes(&bytes[..at], read) {
            // Nothing behind the formats is needed.
            assert!(
                !whole || at > bytes.len() - 8192,
                "cut at {at}: {events} events"
            );
        }
    }
}

#[test]
fn flipped_bits_are_survived() {
    let text = small("pvmhost-ticketlock-idle-text", "trace.txt");
    let perf = small("svm-perf-kvm-stat-hackbench-tlb-burst", "perf.data");
    let mut numbers = Numbers(0xf11b);
    for original in [text, perf] {
        for round in 0..80 {
            let mut bytes = original.clone();
            for _ in 0..=round % 20 {
                // Half of them where a file says how it is laid out.
                let end = if round % 2 == 0 { bytes.len() } else { 6000 };
                let at = numbers.below(end);
                bytes[at] ^= 1 << numbers.below(8);
            }
            with_bytes(&bytes, read);
        }
    }
}

#[test]
fn a_lost_stretch_of_records_is_noted() {
    let mut bytes = small("svm-lost-events-hackbench-hog-timer", "perf.data");
    let half = bytes.len() / 2;
    bytes[half..half + 100_000].fill(0);
    let (events, whole) = with_bytes(&bytes, read).expect("half of it");
    assert!((3000..9000).contains(&events) && !whole, "{events}");
}

#[test]
fn a_text_without_its_middle_says_nothing_wrong() {
    let bytes = small("pvmhost-ticketlock-idle-text", "trace.txt");
    let third = bytes.len() / 3;
    let cut = [&bytes[..third], &bytes[2 * third..]].concat();
    with_bytes(&cut, |path| {
        let mut source = open(path).expect("a text");
        let mut last = 0;
        while let Some(event) = source.next_event().expect("a readable text") {
            assert!(event.time_ns >= last || matches!(event.kind, Kind::Other { .. }));
            last = event.time_ns;
        }
        // One line may be made of two halves.
        assert!(source.info().notes.len() <= 3, "{:?}", source.info().notes);
    });
}

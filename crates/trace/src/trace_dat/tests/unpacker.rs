//! A thread that unpacks ahead changes nothing.

use super::*;
use crate::trace_dat::unpacker::WAITING;

/// Events and notes of a file, or why it cannot be read.
fn outcome(file: &[u8], unpacks_ahead: bool) -> (Vec<Event>, Vec<crate::Note>, Option<String>) {
    let input = Arc::new(file.to_vec());
    let mut source = match TraceDat::new(Box::new(input), "made", file.len() as u64) {
        Ok(source) => source,
        Err(error) => return (Vec::new(), Vec::new(), Some(error.to_string())),
    };
    if unpacks_ahead {
        source.unpack_ahead();
        let is_packed = source.streams.iter().any(|stream| stream.plan.compressed);
        assert_eq!(source.feed.unpacker.is_some(), is_packed);
    }
    let mut events = Vec::new();
    let end = loop {
        match source.next_events(3, &mut events) {
            Ok(true) => {}
            Ok(false) => break None,
            Err(error) => break Some(error.to_string()),
        }
    };
    (events, source.info.notes, end)
}

/// Two CPUs of many pages, and one of few.
fn recipe() -> Recipe {
    let recipe = Recipe::new(Endian::Little, 8);
    let pages = |count: u64, cpu: u32| -> Vec<Vec<u8>> {
        let page = |at: u64| recipe.page(100 * at, &[(1, cpu), (2, at as u32)], 0);
        (0..count).map(page).collect()
    };
    let cpus = [pages(20, 1), pages(25, 2), pages(1, 3)];
    recipe.clone().buffer("", &cpus)
}

#[test]
fn the_events_of_sound_and_damaged_files_are_the_same() {
    for compression in ["none", "zlib", "zstd"] {
        let file = recipe().v7(compression);
        let sound = outcome(&file, true);
        assert_eq!(sound, outcome(&file, false));
        let counted = sound.0.iter().filter(|event| event.kind.is_host_event());
        assert_eq!((counted.count(), sound.2), (92, None));
        for position in (0..file.len()).step_by(3) {
            let mut damaged = file.clone();
            damaged[position] ^= 0x55;
            let alone = outcome(&damaged, false);
            assert_eq!(
                outcome(&damaged, true),
                alone,
                "{compression}: byte {position}"
            );
        }
        for len in (0..file.len()).step_by(97) {
            let (ahead, alone) = (outcome(&file[..len], true), outcome(&file[..len], false));
            assert_eq!(ahead, alone, "{compression}: {len} bytes");
        }
    }
}

#[test]
fn more_than_may_wait_is_unpacked_as_there_is_room() {
    let recipe = Recipe::new(Endian::Little, 8);
    // Chunks of a page, in more than the room of a lane.
    let count = (WAITING / PAGE + 1000) as u64;
    let pages: Vec<Vec<u8>> = (0..count)
        .map(|at| recipe.page(at, &[(0, at as u32)], 0))
        .collect();
    let file = recipe.clone().buffer("", &[pages]).v7("zstd");
    let (events, notes, end) = outcome(&file, true);
    let times = events.iter().filter(|event| event.kind.is_host_event());
    assert!(times.map(|event| event.time_ns).eq(0..count));
    assert_eq!((notes, end), (Vec::new(), None));
}

#[test]
fn a_reader_that_stops_early_stops_the_thread() {
    let file = Arc::new(recipe().v7("zstd"));
    let len = file.len() as u64;
    let mut source = TraceDat::new(Box::new(Arc::clone(&file)), "made", len).expect("a good file");
    source.unpack_ahead();
    assert!(source.next_event().expect("no error").is_some());
    drop(source);
    // The thread's handle goes with it.
    while Arc::strong_count(&file) > 1 {
        std::thread::yield_now();
    }
}

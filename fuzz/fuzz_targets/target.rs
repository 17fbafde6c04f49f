//! What each target has around its body.

/// Counters that stand for the coverage of a build without instruments. The fuzzer mutates those inputs
/// alone that bring a new count, so each input counts at a place of its own.
#[cfg(unguided)]
mod counters {
    use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
    use std::sync::atomic::{AtomicU8, Ordering};

    /// More than a corpus has inputs. The fuzzer reads all of them after each input.
    const COUNTERS: usize = 8192;

    // The compiler sees no reader.
    #[used]
    #[unsafe(link_section = "__libfuzzer_extra_counters")]
    static PLACES: [AtomicU8; COUNTERS] = [const { AtomicU8::new(0) }; COUNTERS];

    pub fn count(data: &[u8]) {
        let hash = BuildHasherDefault::<DefaultHasher>::default().hash_one(data);
        PLACES[hash as usize % COUNTERS].store(1, Ordering::Relaxed);
    }
}

/// Counts an input of a build without instruments.
pub fn count(_data: &[u8]) {
    #[cfg(unguided)]
    counters::count(_data);
}

/// A target of the fuzzer: a function of an input's bytes.
macro_rules! target {
    ($run:expr) => {
        libfuzzer_sys::fuzz_target!(|data: &[u8]| {
            target::count(data);
            $run(data);
        });
    };
}

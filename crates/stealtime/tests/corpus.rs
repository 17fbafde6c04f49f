//! The committed corpus of the fuzz targets that read recordings; `scripts/fuzz` looks for more.
//! Saved clocks are in `clock.rs`.

#[path = "../../../fuzz/src/lib.rs"]
mod fuzz;

use std::path::Path;

/// Reads each file of a target's corpus, whole and cut short at 16 places; how many there are.
fn read(target: &str, reader: fn(&[u8])) -> usize {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus");
    let files = corpus.join(target).read_dir().expect("a corpus");
    let files = files.map(|file| std::fs::read(file.expect("a file").path()).expect("a file"));
    let cut = |bytes: Vec<u8>| {
        for part in 0..=16 {
            reader(&bytes[..bytes.len() * part / 16]);
        }
    };
    files.map(cut).count()
}

#[test]
fn nothing_in_the_corpus_panics_or_fails_to_add_up() {
    let few = [
        read("fuzz_trace_dat", fuzz::read_trace_dat),
        read("fuzz_perf_data", fuzz::read_perf_data),
        read("fuzz_text", fuzz::read_text),
        read("fuzz_compressed", fuzz::read_all),
        read("fuzz_trace_dat_pages", fuzz::read_trace_dat_pages),
        read("fuzz_perf_records", fuzz::read_perf_records),
        read("fuzz_rewrite", fuzz::rewrite),
        read("fuzz_perfetto", fuzz::export),
    ];
    assert!(few.iter().all(|files| *files >= 3), "{few:?}");
}

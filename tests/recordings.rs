//! Finds the recordings of a directory. Tests of several packages include this file.

use std::path::{Path, PathBuf};

/// The recordings below a directory, one of each series, in the order of their paths.
///
/// # Panics
///
/// Where a directory is not readable.
pub fn one_of_each_series(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    search(directory, &mut found);
    found.sort();
    found
}

fn search(directory: &Path, found: &mut Vec<PathBuf>) {
    let entries = std::fs::read_dir(directory);
    let entries = entries.unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    for entry in entries {
        let path = entry.expect("readable").path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let stem = name.trim_end_matches(".zst");
        if path.is_dir() && !repeats(&path) {
            search(&path, found);
        } else if ["trace.dat", "perf.data", "trace.txt"].contains(&stem) {
            found.push(path);
        }
    }
}

/// Whether a folder is a later one of a series. Its recordings have the same kernel, events and clock as
/// the first, which stands for them.
pub fn repeats(folder: &Path) -> bool {
    let folder = &*folder.file_name().unwrap_or_default().to_string_lossy();
    let later = |series: &str, first: &str| folder.starts_with(series) && folder != first;
    later("step", "step1")
        || later("density-", "density-add")
        || later("pair-", "pair-halt-poll")
        || ["A2", "B1", "B2"].contains(&folder)
}

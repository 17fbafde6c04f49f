//! `whatif --self-test`: how close replays are, recording by recording.

use std::path::{Path, PathBuf};

use stealtime_whatif::SelfTestRow;

use super::WhatIf;
use crate::error::CliError;

/// Folders within folders that are looked into.
const DEPTH: u32 = 4;

/// A row for each recording below a folder, in the order of their names.
pub(super) fn rows(verb: &WhatIf, folder: &Path) -> Result<Vec<SelfTestRow>, CliError> {
    let mut found = Vec::new();
    find(folder, DEPTH, &mut found)?;
    found.sort();
    if found.is_empty() {
        return Err(CliError::WhatIf(format!(
            "{}: no recordings (trace.dat, perf.data or ftrace text, plain or compressed)",
            folder.display()
        )));
    }
    Ok(found.iter().map(|path| row(verb, folder, path)).collect())
}

fn row(verb: &WhatIf, folder: &Path, path: &Path) -> SelfTestRow {
    let shown = path.strip_prefix(folder).unwrap_or(path);
    let shown = shown.display().to_string();
    match verb.baseline(path) {
        Ok((base, _)) => SelfTestRow::replayed(shown, &base),
        Err(error) => SelfTestRow::failed(shown, error.shown()),
    }
}

fn find(folder: &Path, depth: u32, found: &mut Vec<PathBuf>) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::WhatIf(format!("{}: {error}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if depth > 0 && path.file_name().is_none_or(|name| name != "reference") {
                find(&path, depth - 1, found)?;
            }
        } else if is_recording(&path) {
            found.push(path);
        }
    }
    Ok(())
}

/// Whether a file is a recording, by its content. A file that cannot be read, or that is damaged at its
/// beginning, is judged by its name.
fn is_recording(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let plain = [".zst", ".gz", ".xz"]
        .iter()
        .find_map(|end| name.strip_suffix(end))
        .unwrap_or(&name);
    ["trace.dat", "perf.data", "trace.txt"]
        .iter()
        .any(|end| plain.ends_with(end))
        || stealtime_trace::is_recording(path).unwrap_or(false)
}

//! `whatif --self-test`: how close replays are, recording by recording.

use std::path::{Path, PathBuf};

use serde::Serialize;
use stealtime_replay::predict::Errors;

use super::WhatIf;
use super::result::{Error, Waits};
use crate::error::CliError;

/// Folders within folders that are looked into.
const DEPTH: u32 = 4;

/// A recording's row.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) path: String,
    pub(super) span_ns: u64,
    pub(super) vcpus: usize,
    /// Events that were lost, as far as is known, and gaps of unknown loss.
    pub(super) lost: u64,
    pub(super) waits: Option<Waits>,
    pub(super) error: Option<Error>,
    /// Why it cannot be replayed.
    pub(super) problem: Option<String>,
}

/// A row for each recording below a folder, in the order of their names.
pub(super) fn rows(verb: &WhatIf, folder: &Path) -> Result<Vec<Row>, CliError> {
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

fn row(verb: &WhatIf, folder: &Path, path: &Path) -> Row {
    let shown = path.strip_prefix(folder).unwrap_or(path);
    let path_shown = shown.display().to_string();
    match verb.base(path) {
        Ok(base) => {
            let span_ns = base.recording.span_ns;
            let errors = Errors::between(&base.recorded, &base.replayed, span_ns);
            Row {
                path: path_shown,
                span_ns,
                vcpus: base.recorded.vcpus.len(),
                lost: base.answers.source.lost + base.answers.source.lost_gaps,
                waits: Some(Waits::of(base.recording.resolved)),
                error: Some(Error::of(&errors)),
                problem: None,
            }
        }
        Err(error) => Row {
            path: path_shown,
            span_ns: 0,
            vcpus: 0,
            lost: 0,
            waits: None,
            error: None,
            problem: Some(error.shown()),
        },
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

/// Whether a file is a recording, by what it holds: one that cannot be read, or whose beginning is
/// damaged, by its name.
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

//! Output of the command for real recordings, compared with that of other tools.
//!
//! `STEALTIME_TRACES` names a directory of folders. Each has a recording (`trace.dat`, `perf.data` or
//! `trace.txt`, perhaps `.zst`) and a `reference/` made by trace-cmd or perf. The small ones under
//! `tests/data/traces` are always checked.

mod counts;
mod narrow;
mod perf_kvm;
mod schedule;

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// A recording with references.
pub struct Recording {
    /// The recording.
    pub file: PathBuf,
    /// The directory with what other tools say of it.
    pub reference: PathBuf,
}

impl Recording {
    /// A reference file's text, if that file is there.
    pub fn reference(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.reference.join(name)).ok()
    }

    /// `analyze --json`, with further arguments.
    pub fn analyze(&self, arguments: &[&str]) -> Value {
        let output = Command::new(env!("CARGO_BIN_EXE_stealtime"))
            .args(["analyze", "--json"])
            .args(arguments)
            .arg(&self.file)
            .output()
            .expect("the command runs");
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}: {errors}", self.file.display());
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|e| panic!("{}: {e}", self.file.display()))
    }
}

/// All recordings, in the order of their paths.
pub fn recordings() -> Vec<Recording> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/traces");
    let mut found = Vec::new();
    walk(&own, &mut found);
    assert!(!found.is_empty(), "{}: no recordings", own.display());
    if let Some(further) = std::env::var_os("STEALTIME_TRACES") {
        let before = found.len();
        walk(Path::new(&further), &mut found);
        assert!(
            found.len() > before,
            "STEALTIME_TRACES: no recordings in {further:?}"
        );
    }
    found
}

fn walk(dir: &Path, found: &mut Vec<Recording>) {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<_> = entries
        .map(|entry| entry.expect("readable").path())
        .collect();
    paths.sort();
    for path in paths {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let stem = name.trim_end_matches(".zst");
        let reference = dir.join("reference");
        if path.is_dir() {
            walk(&path, found);
        } else if ["trace.dat", "perf.data", "trace.txt"].contains(&stem) && reference.is_dir() {
            found.push(Recording {
                file: path,
                reference,
            });
        }
    }
}

/// An integer of the answer.
pub fn integer(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("not an unsigned integer: {value}"))
}

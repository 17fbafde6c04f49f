//! Finding and reading files of golden vectors.
#![allow(dead_code, reason = "each family uses what it needs of the header")]
#![allow(
    unreachable_pub,
    clippy::unwrap_used,
    reason = "of a test, which may fail"
)]

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;

/// One file of vectors: a header line and one sequence a line.
pub(crate) struct VectorFile {
    /// Where it was found.
    pub(crate) path: PathBuf,
    /// The header's `family`.
    pub(crate) family: String,
    /// The whole header line.
    pub(crate) header: Value,
}

impl VectorFile {
    /// Reads the sequences one after the other (files are large, sequences are not).
    pub(crate) fn sequences(&self) -> impl Iterator<Item = Value> + use<> {
        let path = self.path.clone();
        lines(&path).skip(1).enumerate().map(move |(n, line)| {
            serde_json::from_str(&line)
                .unwrap_or_else(|e| panic!("{}: line {}: {e}", path.display(), n + 2))
        })
    }
}

/// The directories with vectors: the crate's own small set, and `STEALTIME_GOLDEN` where set.
fn roots() -> Vec<PathBuf> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    let further = std::env::var_os("STEALTIME_GOLDEN").map(PathBuf::from);
    if let Some(dir) = &further {
        assert!(
            dir.is_dir(),
            "STEALTIME_GOLDEN={}: no such directory",
            dir.display()
        );
    }
    [Some(own), further].into_iter().flatten().collect()
}

/// Every file of vectors, in the order of their paths.
pub(crate) fn all() -> Vec<VectorFile> {
    let mut found = Vec::new();
    for root in roots() {
        walk(&root, &mut found);
    }
    found
}

/// The files of one family. At least one must exist: a test over nothing proves nothing.
pub(crate) fn of(family: &str) -> Vec<VectorFile> {
    let files: Vec<_> = all().into_iter().filter(|f| f.family == family).collect();
    assert!(!files.is_empty(), "no vectors of family {family:?} found");
    files
}

fn walk(dir: &Path, found: &mut Vec<VectorFile>) {
    let mut entries: Vec<_> = fs::read_dir(dir)
        .unwrap_or_else(|e| panic!("{}: {e}", dir.display()))
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    for path in entries {
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            walk(&path, found);
        } else if name.ends_with(".jsonl") || name.ends_with(".jsonl.zst") {
            found.push(open(path));
        }
    }
}

fn open(path: PathBuf) -> VectorFile {
    let first = lines(&path)
        .next()
        .unwrap_or_else(|| panic!("{}: empty", path.display()));
    let header: Value =
        serde_json::from_str(&first).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let family = header["family"]
        .as_str()
        .unwrap_or_else(|| panic!("{}: the header names no family", path.display()))
        .to_owned();
    VectorFile {
        path,
        family,
        header,
    }
}

fn lines(path: &Path) -> impl Iterator<Item = String> + use<> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let reader: Box<dyn Read> = if path.extension().is_some_and(|e| e == "zst") {
        Box::new(zstd::Decoder::new(file).unwrap_or_else(|e| panic!("{}: {e}", path.display())))
    } else {
        Box::new(file)
    };
    let shown = path.display().to_string();
    BufReader::new(reader)
        .lines()
        .map(move |l| l.unwrap_or_else(|e| panic!("{shown}: {e}")))
}

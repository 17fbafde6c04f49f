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

const ENDINGS: [&str; 3] = [".jsonl", ".jsonl.zst", ".jsonl.gz"];

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
    /// Whether it records the scheduler: those files say how their tuples are laid out.
    pub(crate) fn of_scheduler(&self) -> bool {
        self.header["entity"].is_array() && self.header["queue"].is_array()
    }

    /// Reads the sequences one after the other (files are large, sequences are not).
    pub(crate) fn sequences(&self) -> impl Iterator<Item = Value> + use<> {
        let path = self.path.clone();
        lines(&path).skip(1).enumerate().map(move |(n, line)| {
            serde_json::from_str(&line)
                .unwrap_or_else(|e| panic!("{}: line {}: {e}", path.display(), n + 2))
        })
    }
}

/// Every file of vectors: the crate's own small set, and what `STEALTIME_GOLDEN` names (a file or
/// a directory) where set, in the order of their paths.
pub(crate) fn all() -> Vec<VectorFile> {
    let mut found = Vec::new();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/golden");
    walk(&own, &mut found);
    if let Some(further) = std::env::var_os("STEALTIME_GOLDEN").map(PathBuf::from) {
        let own = found.len();
        if further.is_dir() {
            walk(&further, &mut found);
        } else {
            found.push(open(further.clone()));
        }
        // A path that is wrong must not pass for vectors that agree.
        assert!(
            found.len() > own,
            "STEALTIME_GOLDEN={}: no file *{} in it",
            further.display(),
            ENDINGS.join(", *")
        );
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
        } else if ENDINGS.iter().any(|e| name.ends_with(e)) {
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
    let named = header["family"].as_str().map(str::to_owned);
    let family = named.unwrap_or_else(|| stem(&path));
    VectorFile {
        path,
        family,
        header,
    }
}

/// The file's name up to the first dot.
fn stem(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.split('.').next().unwrap_or_default().to_owned()
}

fn lines(path: &Path) -> impl Iterator<Item = String> + use<> {
    let file = File::open(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let ending = path.extension().and_then(|e| e.to_str());
    let reader: Box<dyn Read> = match ending {
        Some("zst") => {
            let decoder = zstd::Decoder::new(file);
            Box::new(decoder.unwrap_or_else(|e| panic!("{}: {e}", path.display())))
        }
        Some("gz") => Box::new(flate2::read::MultiGzDecoder::new(file)),
        _ => Box::new(file),
    };
    let shown = path.display().to_string();
    BufReader::new(reader)
        .lines()
        .map(move |l| l.unwrap_or_else(|e| panic!("{shown}: {e}")))
}

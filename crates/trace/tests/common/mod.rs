//! Reads the small recordings of the repository.

pub(crate) mod taken;

use std::fs;
use std::path::{Path, PathBuf};

use stealtime_trace::TraceDat;

/// The recordings of the repository.
pub(crate) const SMALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/traces");

/// Recordings with snapshots of their hosts.
pub(crate) const LIVE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/live");

/// A file in a folder, as it is or in zstd.
pub(crate) fn file(dir: &Path, name: &str) -> Option<PathBuf> {
    let packed = format!("{name}.zst");
    [name, &packed]
        .map(|name| dir.join(name))
        .into_iter()
        .find(|path| path.exists())
}

/// A file's bytes, unpacked.
pub(crate) fn bytes(path: &Path) -> Vec<u8> {
    let bytes = fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    match path.extension() {
        Some(extension) if extension == "zst" => zstd::decode_all(&bytes[..])
            .unwrap_or_else(|error| panic!("{}: {error}", path.display())),
        _ => bytes,
    }
}

/// Opens bytes as a trace.dat.
pub(crate) fn open(bytes: Vec<u8>) -> Result<TraceDat, stealtime_trace::ReadError> {
    let len = bytes.len() as u64;
    TraceDat::new(Box::new(bytes), "test", len)
}

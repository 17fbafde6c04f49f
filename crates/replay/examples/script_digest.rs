//! A digest of what a replay has from each recording: `script_digest RECORDING...`.
//!
//! Equal digests of two builds show that a change of the extraction keeps every script and every fitted
//! input.

use std::error::Error;
use std::fmt::{self, Write as _};
use std::hash::{DefaultHasher, Hasher as _};
use std::path::Path;
use std::time::Instant;

use stealtime_analysis::{Analysis, Options};
use stealtime_replay::Extractor;

/// Hashes a text as it is written: the text of a recording has hundreds of MB.
struct Digest(DefaultHasher);

impl fmt::Write for Digest {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.write(text.as_bytes());
        Ok(())
    }
}

/// The digest, and how long the extraction takes, in ms.
fn digest(path: &Path) -> Result<(u64, u128), Box<dyn Error>> {
    let mut source = stealtime_trace::open(path)?;
    let mut analysis = Analysis::new(Options::default());
    while let Some(event) = source.next_event()? {
        analysis.event(&event, source.names());
    }
    let answers = analysis.finish(source.names());
    let start = Instant::now();
    let mut source = stealtime_trace::open(path)?;
    let mut extractor = Extractor::new(&answers);
    while let Some(event) = source.next_event()? {
        extractor.event(&event, source.names());
    }
    let recording = extractor.finish();
    let ms = start.elapsed().as_millis();
    let mut digest = Digest(DefaultHasher::new());
    write!(digest, "{recording:?}")?;
    Ok((digest.0.finish(), ms))
}

fn main() {
    for path in std::env::args().skip(1) {
        match digest(path.as_ref()) {
            Ok((digest, ms)) => {
                println!("{digest:016x} {path}");
                eprintln!("{ms} ms");
            }
            Err(error) => println!("{path}: {error}"),
        }
    }
}

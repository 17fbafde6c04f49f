//! Recordings that are replayed: read twice, for their answers and for the demand of their tasks.

use std::io::Read as _;
use std::path::Path;

use stealtime_analysis::{Selection, Skip};
use stealtime_host::Snapshot;
use stealtime_replay::Extractor;
use stealtime_whatif::{HostFacts, Recorded};

use crate::args::Recording;
use crate::error::CliError;
use crate::input::{self, Unwanted};

/// Most bytes of a file about the host: a larger one is a recording given by mistake.
const MOST_OF_HOST: u64 = 1 << 20;

/// A recording, and the snapshot of its host.
pub(crate) struct Replayable {
    pub(crate) recorded: Recorded,
    pub(crate) snapshot: Option<Snapshot>,
}

impl Replayable {
    /// What is known of the recorded host: by the file of `--host`, then by its snapshot.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or its first wrong line.
    pub(crate) fn facts(&self, file: Option<&Path>) -> Result<HostFacts, CliError> {
        let mut facts = match file {
            Some(file) => of_file(file, &self.recorded)?,
            None => HostFacts::default(),
        };
        if let Some(snapshot) = &self.snapshot {
            facts.add_snapshot(snapshot, &self.recorded);
        }
        Ok(facts)
    }
}

/// Reads twice: the analysis finds the threads of each VM, which the extractor needs. `is_quiet`: nothing is
/// said of options without use.
///
/// # Errors
///
/// What cannot be read or replayed.
pub(crate) fn read(
    path: &Path,
    opened: &Recording,
    is_quiet: bool,
) -> Result<Replayable, CliError> {
    let unwanted = Unwanted {
        skip: Skip {
            keys: true,
            ..Skip::default()
        },
        ..Unwanted::default()
    };
    let analyzed = input::analyze(path, opened, None, Selection::default(), unwanted)?;
    if !is_quiet {
        input::tell(&analyzed.unused);
    }
    let answers = analyzed.answers;
    stealtime_whatif::check_replayable(&answers)?;
    let mut extractor = Extractor::new(&answers);
    extractor.set_vmm_threads(analyzed.host.vmm_threads(&answers));
    let mut source = input::open(path, opened, None)?;
    input::drive("reading again", &mut *source, |events, source| {
        extractor.events(events, source.names());
        Ok(())
    })?;
    let recorded = Recorded::new(answers, extractor.finish());
    Ok(Replayable {
        recorded: recorded.with_snapshot(analyzed.host.snapshot.clone()),
        snapshot: analyzed.host.snapshot,
    })
}

/// Reads a file about the host.
fn of_file(path: &Path, recorded: &Recorded) -> Result<HostFacts, CliError> {
    let failed = |reason: String| CliError::WhatIf(format!("{}: {reason}", path.display()));
    let mut text = String::new();
    // One byte more than allowed is enough to refuse it.
    std::fs::File::open(path)
        .and_then(|file| file.take(MOST_OF_HOST + 1).read_to_string(&mut text))
        .map_err(|error| failed(error.to_string()))?;
    if text.len() as u64 > MOST_OF_HOST {
        return Err(failed(format!(
            "more than {MOST_OF_HOST} bytes: this is no file about a host, of lines KEY = VALUE"
        )));
    }
    let name = path.display().to_string();
    HostFacts::parse(&name, &text, recorded)
        .map_err(stealtime_whatif::Error::from)
        .map_err(CliError::from)
}

//! Recordings that are replayed: read twice, for their answers and for the demand of their tasks.

use std::path::Path;

use stealtime_analysis::{Selection, Skip};
use stealtime_host::Snapshot;
use stealtime_replay::Extractor;
use stealtime_whatif::Recorded;

use crate::args::Recording;
use crate::error::CliError;
use crate::input::{self, Unwanted};

/// A recording, and the snapshot of its host.
pub(crate) struct Replayable {
    pub(crate) recorded: Recorded,
    pub(crate) snapshot: Option<Snapshot>,
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
    input::drive("reading again", &mut *source, |event, source| {
        extractor.event(event, source.names());
        Ok(())
    })?;
    let recorded = Recorded::new(answers, extractor.finish());
    Ok(Replayable {
        recorded: recorded.with_snapshot(analyzed.host.snapshot.clone()),
        snapshot: analyzed.host.snapshot,
    })
}

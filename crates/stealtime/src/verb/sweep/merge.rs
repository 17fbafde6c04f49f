//! `stealtime sweep merge`: one sweep of the folders of its shards.

use std::path::PathBuf;

use clap::Args;
use stealtime_lab::sweep::Sweep;

use super::{Outputs, failed, note_cut};
use crate::args::threads;
use crate::error::CliError;

/// Merge folders of one sweep that ran in shards, in any order and with any overlap.
///
/// The results are the bytes of a sweep that ran in one piece. Where runs are missing, the message
/// lists their shards or seeds. The merged folder is the sweep's: the command of the sweep itself
/// resumes it, too.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  stealtime sweep merge polling.*-of-8.sweep --out polling.sweep
  stealtime sweep merge /cluster/*/polling.sweep --out polling.sweep --results parquet,csv")]
pub(super) struct Merge {
    /// Folders of the sweep
    #[arg(value_name = "FOLDER", required = true)]
    folders: Vec<PathBuf>,

    #[command(flatten)]
    outputs: Outputs,
}

impl Merge {
    /// Does it.
    pub(super) fn run(&self) -> Result<(), CliError> {
        let outputs = &self.outputs;
        outputs.report.check(outputs.form.is_json(), &[])?;
        let Some(folder) = &outputs.out else {
            let problem = "add --out FOLDER for the whole sweep";
            return Err(CliError::Sweep(problem.to_owned()));
        };
        outputs.check_folder(folder)?;
        let merged = Sweep::merge(folder, &self.folders, outputs.restart).map_err(failed)?;
        note_cut(&merged.sweep);
        merged.check().map_err(failed)?;
        outputs.write(&merged.sweep, true, threads(None))
    }
}

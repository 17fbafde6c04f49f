//! `stealtime snapshot`.

use std::path::{Path, PathBuf};

use clap::Args;
use stealtime_host::{Archive, Snapshot as Host, SnapshotError};
use stealtime_report::terminal::Style;
use stealtime_report::{json, terminal};

use crate::args::Form;
use crate::error::CliError;
use crate::output;

/// Show what this host knows of itself and of its VMs, and keep it in a file
///
/// Kernel, scheduler, KVM, CPUs, control groups, and each VM with its name, threads and limits. Only
/// files are read; nothing changes. What needs root is listed as not read.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sudo stealtime snapshot
  sudo stealtime snapshot -o host.json
  stealtime snapshot host.json
  stealtime snapshot trace.dat
  sudo stealtime snapshot --copy host.tree
  stealtime snapshot --root host.tree --format json")]
pub(crate) struct Snapshot {
    /// A snapshot to show instead of this host's: a file of `-o` or of `stealtime record`
    #[arg(value_name = "FILE", conflicts_with_all = ["root", "copy"])]
    file: Option<PathBuf>,

    /// Write the snapshot as JSON to this file, `-` is standard output
    #[arg(
        short,
        long,
        alias = "out",
        value_name = "FILE",
        conflicts_with = "copy"
    )]
    output: Option<PathBuf>,

    /// Read /proc and /sys below this directory, or in this file of --copy
    #[arg(long, value_name = "PATH", default_value = "/")]
    root: PathBuf,

    /// Write the files that are read to one text file, to send with a question
    ///
    /// Command lines, configurations of containers and machine ids are reduced to what a snapshot
    /// needs.
    #[arg(long, value_name = "FILE")]
    copy: Option<PathBuf>,

    #[command(flatten)]
    form: Form,
}

impl Snapshot {
    /// Does it.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let give = "a file";
        if let Some(copy) = &self.copy {
            output::check_named("--copy", copy, give)?;
            output::check(copy)?;
        }
        let to_stdout = self
            .output
            .as_deref()
            .is_some_and(|path| path.as_os_str() == "-");
        let output = self.output.as_deref().filter(|_| !to_stdout);
        if let Some(path) = output {
            output::check_apart(path, self.file.as_deref().unwrap_or(&self.root))?;
            output::check(path)?;
        }
        let Taken { snapshot, record } = self.take()?;
        if let Some((path, record)) = self.copy.as_ref().zip(record) {
            write(path, |writer| writer.write_all(record.to_text().as_bytes()))?;
        }
        if let Some(path) = output {
            write(path, |writer| json::write_any(&snapshot, writer))?;
            let missing = snapshot.missing.len();
            if missing > 0 {
                output::note(&format!(
                    "stealtime: {missing} kinds of values could not be read: `stealtime snapshot {}` \
                     lists them",
                    path.display()
                ));
            }
            return Ok(());
        }
        if self.copy.is_some() && !to_stdout && !self.form.is_json() {
            return Ok(());
        }
        output::to_stdout(|writer| match to_stdout || self.form.is_json() {
            true => json::write_any(&snapshot, writer),
            false => {
                let style = Style::new(output::color());
                writer.write_all(terminal::host::render(&snapshot, style).as_bytes())
            }
        })
    }

    fn take(&self) -> Result<Taken, CliError> {
        if self.file.is_some() || self.copy.is_none() {
            return Ok(Taken {
                snapshot: take(self.file.as_deref(), &self.root)?,
                record: None,
            });
        }
        let (snapshot, record) = Host::read_and_record(&self.root).map_err(failed)?;
        Ok(Taken {
            snapshot,
            record: Some(record),
        })
    }
}

/// A snapshot, and the files that it is from if these are wanted.
struct Taken {
    snapshot: Host,
    record: Option<Archive>,
}

/// The snapshot of a file, else that of the host below a root.
pub(super) fn take(file: Option<&Path>, root: &Path) -> Result<Host, CliError> {
    match file {
        Some(file) => crate::host::read(file),
        None => Host::read(root).map_err(failed),
    }
}

fn failed(error: SnapshotError) -> CliError {
    CliError::Snapshot(error.to_string())
}

fn write(
    path: &Path,
    write: impl FnOnce(&mut dyn std::io::Write) -> std::io::Result<()>,
) -> Result<(), CliError> {
    output::to_file(path, |writer| {
        write(writer).map_err(|source| CliError::Write {
            path: path.to_owned(),
            source,
        })
    })
}

//! `stealtime diff`.

use std::path::{Path, PathBuf};

use clap::Args;
use stealtime_analysis::{Selection, Skip};
use stealtime_report::difference::{self, Comparison, Part};
use stealtime_report::terminal::Style;
use stealtime_report::{html, json, terminal};

use crate::args::{Form, Recording, VmOf};
use crate::error::CliError;
use crate::input::{self, Twice, Unwanted};
use crate::output;
use crate::report::ReportTo;

/// Compare recordings of before and after a change: what differs by VM and cause
///
/// VMs are matched by name. Each recording is read twice, and cut into slices for the intervals.
#[derive(Debug, Args)]
#[command(after_long_help = "\
Examples:
  stealtime diff before.dat after.dat
  stealtime diff old-kernel/ new-kernel/ --json
  stealtime diff before.dat after.dat --report change.html
  stealtime diff before.dat after.dat --vm-of web=101,102
  stealtime diff before.data after.data --snapshot host.json
  stealtime diff before.dat after.dat --tsc-khz 2400000 --tsc-khz 2600000")]
pub(crate) struct Diff {
    /// A recording without the change, or a directory of such recordings
    #[arg(value_name = "BEFORE")]
    before: PathBuf,

    /// A recording with the change, or a directory of such recordings
    #[arg(value_name = "AFTER")]
    after: PathBuf,

    /// These threads are the vCPUs of this VM, in every recording (repeat for each VM). `NAME=pid:181` names
    /// those of a process, `NAME=cgroup:PATH` those in or below a control group
    #[arg(long, value_name = "NAME=TID,TID…")]
    vm_of: Vec<VmOf>,

    /// The TSC's frequency in kHz, for recordings with the clock x86-tsc (given twice: one for each side)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    tsc_khz: Vec<u64>,

    /// A recording of the same boot, for perf.data files without formats of events (given twice: one for
    /// each side)
    #[arg(long, value_name = "FILE")]
    formats_from: Vec<PathBuf>,

    /// The host's snapshot, for recordings without one: names of VMs, their threads and control groups
    /// (given twice: one for each side)
    #[arg(long, value_name = "FILE")]
    snapshot: Vec<PathBuf>,

    /// Rows of each table [default: 40]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    top: Option<u16>,

    #[command(flatten)]
    form: Form,

    #[command(flatten)]
    report: ReportTo,
}

/// Recordings of one side, and the settings of their hosts.
struct Side {
    parts: Vec<Part>,
    snapshot: Option<serde_json::Value>,
}

impl Diff {
    /// Reads, compares, prints.
    pub(crate) fn run(&self) -> Result<(), CliError> {
        let (old, new) = (recordings(&self.before)?, recordings(&self.after)?);
        let inputs = old.iter().chain(&new).chain(&self.formats_from);
        let inputs = inputs.chain(&self.snapshot).map(PathBuf::as_path);
        self.report
            .check(self.form.is_json(), &inputs.collect::<Vec<&Path>>())?;
        let first = self.side(&old, 0)?;
        let second = self.side(&new, 1)?;
        let settings = match (&first.snapshot, &second.snapshot) {
            (Some(old), Some(new)) => Some(difference::settings(old, new)),
            _ => None,
        };
        let comparison = difference::compare(&first.parts, &second.parts, settings);
        if !self.report.is_stdout() {
            output::go_on(self.show(&comparison), self.report.is_file())?;
        }
        self.report
            .write(|command| html::difference::page(&comparison, command))
    }

    /// Prints the tables, or the JSON.
    fn show(&self, comparison: &Comparison) -> Result<(), CliError> {
        output::to_stdout(|writer| match self.form.is_json() {
            true => json::write_any(comparison, writer),
            false => {
                let style = Style::new(output::color());
                let top = self.top.map_or(terminal::TOP, usize::from);
                let text = terminal::difference::render(comparison, style, top);
                writer.write_all(text.as_bytes())
            }
        })
    }

    /// Reads the recordings of a side: 0 before, 1 after.
    fn side(&self, paths: &[PathBuf], number: usize) -> Result<Side, CliError> {
        let tsc_khz = of_side("--tsc-khz", &self.tsc_khz, number)?;
        let formats_from = of_side("--formats-from", &self.formats_from, number)?;
        let snapshot = of_side("--snapshot", &self.snapshot, number)?;
        let mut side = Side {
            parts: Vec::new(),
            snapshot: None,
        };
        for path in paths {
            let recording = Recording {
                trace: path.clone(),
                tsc_khz: tsc_khz.copied(),
                formats_from: formats_from.cloned(),
                vm_of: self.vm_of.clone(),
                snapshot: snapshot.cloned(),
            };
            let file = Twice::new(path)?;
            let unwanted = Unwanted {
                skip: Skip {
                    keys: true,
                    latencies: true,
                },
                ..Unwanted::default()
            };
            let whole = Selection::default();
            let analyzed = input::analyze(file.path(), &recording, None, whole, unwanted)?;
            analyzed.tell();
            if let Some(error) = &analyzed.cut {
                output::note(&format!("stealtime: {error}"));
            }
            let answers = &analyzed.answers;
            let slices = input::slices(file.path(), &recording, difference::SLICES, answers)?;
            if side.snapshot.is_none() {
                let snapshot = analyzed.host.snapshot.as_ref();
                side.snapshot = snapshot.and_then(|snapshot| serde_json::to_value(snapshot).ok());
            }
            side.parts.push(Part {
                whole: analyzed.answers,
                slices,
            });
        }
        Ok(side)
    }
}

/// The value of a side: one value is for both.
fn of_side<'v, T>(
    option: &'static str,
    values: &'v [T],
    number: usize,
) -> Result<Option<&'v T>, CliError> {
    match values {
        [] => Ok(None),
        [both] => Ok(Some(both)),
        [_, _] => Ok(values.get(number)),
        _ => Err(CliError::OfNoUse {
            option,
            why: "is for BEFORE and AFTER, and is given a third time",
        }),
    }
}

/// The recordings of a directory in the order of their names, or the one recording.
fn recordings(path: &Path) -> Result<Vec<PathBuf>, CliError> {
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let failed = |source| CliError::Keep {
        path: path.to_owned(),
        source,
    };
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path();
        // Notes and scripts next to recordings are common; `.dat` is in `.data` and `.dat.zst` too.
        let name = file.file_name().map(|name| name.to_string_lossy());
        if file.is_file() && name.is_some_and(|name| name.contains(".dat")) {
            found.push(file);
        }
    }
    found.sort();
    match found.is_empty() {
        true => Err(CliError::NoRecordings(path.to_owned())),
        false => Ok(found),
    }
}

#[cfg(test)]
mod tests {
    use super::of_side;

    #[test]
    fn one_value_is_for_both_sides_and_two_are_for_one_each() {
        let values = |values: &[u64]| {
            let side = |number| of_side("--tsc-khz", values, number).map(|value| value.copied());
            (side(0).ok(), side(1).ok())
        };
        assert_eq!(values(&[]), (Some(None), Some(None)));
        assert_eq!(values(&[5]), (Some(Some(5)), Some(Some(5))));
        assert_eq!(values(&[5, 6]), (Some(Some(5)), Some(Some(6))));
        assert_eq!(values(&[5, 6, 7]), (None, None));
    }
}

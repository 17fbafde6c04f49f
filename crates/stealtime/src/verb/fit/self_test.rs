//! `fit --self-test`: recordings of a host with more and fewer VMs, predicted from one of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use stealtime_whatif::Recorded;
use stealtime_whatif::capacity::{RecordedHost, SeenSeries, SeenStep, base_of};

use super::Fit;
use crate::args::{self, Recording, VmOf};
use crate::error::CliError;
use crate::output;
use crate::progress::RunProgress;
use crate::replayable;

/// Folders within folders that are looked into.
const DEPTH: u32 = 4;
/// The threads of each VM of a recording, next to it: lines `VM tid=N comm=NAME`.
const THREADS: &str = "reference/threads.txt";

/// A recording of a series.
struct Step {
    path: PathBuf,
    vm_of: Vec<VmOf>,
}

/// Every series below a folder, in the order of their names.
pub(super) fn series(verb: &Fit, folder: &Path) -> Result<Vec<SeenSeries>, CliError> {
    let mut found = BTreeMap::new();
    find(folder, DEPTH, &mut found)?;
    found.retain(|_, steps: &mut Vec<PathBuf>| steps.len() > 1);
    if found.is_empty() {
        return Err(CliError::Fit(format!(
            "{}: no series: folders with several recordings, each in a folder of its own \
             (step1/trace.dat, step2/trace.dat)",
            folder.display()
        )));
    }
    let mut series = Vec::new();
    for (place, mut paths) in found {
        paths.sort();
        let steps = paths.into_iter().map(|path| Step {
            vm_of: threads(&path),
            path,
        });
        let steps: Vec<Step> = steps.collect();
        series.push(predict(verb, folder, &place, &steps)?);
    }
    Ok(series)
}

/// Recordings by the folder of their series.
fn find(
    folder: &Path,
    depth: u32,
    found: &mut BTreeMap<PathBuf, Vec<PathBuf>>,
) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::Fit(format!("{}: {error}", folder.display()));
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            if depth > 0 && path.file_name().is_none_or(|name| name != "reference") {
                find(&path, depth - 1, found)?;
            }
        } else if let Some(series) = series_of(folder)
            && stealtime_trace::is_recording(&path).unwrap_or(false)
        {
            found.entry(series).or_default().push(path);
        }
    }
    Ok(())
}

/// The series of a recording's folder, which is named `step1`, or by a number. Other recordings are of
/// hosts that have nothing to do with each other.
fn series_of(folder: &Path) -> Option<PathBuf> {
    let name = folder.file_name()?.to_str()?;
    let kind: String = name.chars().filter(|c| !c.is_ascii_digit()).collect();
    let is_step = kind != name && ["step", ""].contains(&kind.as_str());
    folder.parent().filter(|_| is_step).map(Path::to_owned)
}

/// The vCPU threads of each VM, where a file next to the recording has them.
fn threads(path: &Path) -> Vec<VmOf> {
    let list = path.parent().map(|folder| folder.join(THREADS));
    let text = list.and_then(|list| std::fs::read_to_string(list).ok());
    let text = text.unwrap_or_default();
    let mut by_vm: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let vm = words.next().unwrap_or_default();
        let tid = words.next().and_then(|word| word.strip_prefix("tid="));
        let is_vcpu = line.contains("comm=CPU") && line.trim_end().ends_with("/KVM");
        if let Some(tid) = tid.filter(|_| is_vcpu) {
            by_vm.entry(vm).or_default().push(tid);
        }
    }
    let options = by_vm.iter();
    options
        .filter_map(|(vm, tids)| format!("{vm}={}", tids.join(",")).parse().ok())
        .collect()
}

fn shown(folder: &Path, path: &Path) -> String {
    path.strip_prefix(folder)
        .unwrap_or(path)
        .display()
        .to_string()
}

fn read(step: &Step) -> Result<Recorded, CliError> {
    let opened = Recording {
        vm_of: step.vm_of.clone(),
        ..Recording::plain(&step.path)
    };
    Ok(replayable::read(&step.path, &opened, true)?.recorded)
}

/// Predicts a series.
fn predict(
    verb: &Fit,
    folder: &Path,
    place: &Path,
    steps: &[Step],
) -> Result<SeenSeries, CliError> {
    let mut rows = Vec::new();
    let (mut readable, mut recordings) = (Vec::new(), Vec::new());
    for step in steps {
        match read(step) {
            Ok(recorded) => {
                readable.push(step);
                recordings.push(recorded);
            }
            Err(error) => rows.push(SeenStep::failed(shown(folder, &step.path), error.shown())),
        }
    }
    let chosen = base_of(&recordings);
    let mut base_path = String::new();
    if let Some(step) = readable.get(chosen) {
        base_path = shown(folder, &step.path);
        let (base, _) = verb.baseline(&step.path, &step.vm_of, true)?;
        let bar = RunProgress::unbounded("fit");
        let progress = |replays: usize| bar.done(replays);
        let jobs = args::threads(verb.jobs);
        let host = RecordedHost::new(&base, jobs, output::stop_by_interrupt(), &progress);
        let pairs = readable.iter().zip(&recordings).enumerate();
        for (_, (step, recorded)) in pairs.filter(|(index, _)| *index != chosen) {
            let path = shown(folder, &step.path);
            rows.push(SeenStep::predict(path, &host, recorded, verb.seeds())?);
        }
    }
    rows.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(SeenSeries {
        path: shown(folder, place),
        base: base_path,
        steps: rows,
    })
}

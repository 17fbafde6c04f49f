//! `fit --rebalance`: VMs moved between the hosts of several recordings.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use stealtime_report::html::rebalance as page;
use stealtime_report::terminal::rebalance as tables;
use stealtime_whatif::capacity::{
    Fleet, Limit, RebalanceDocument, RecordedHost, host_names, join, rebalance,
};

use super::Fit;
use crate::args;
use crate::error::CliError;
use crate::input::Twice;
use crate::output;
use crate::progress::RunProgress;

/// Answers it for these limits.
pub(super) fn run(verb: &Fit, limits: &[Limit]) -> Result<(), CliError> {
    check(&verb.traces)?;
    let mut hosts = Vec::new();
    for path in &verb.traces {
        let twice = Twice::new(path)?;
        let read = verb.baseline(twice.path(), &[], true);
        let (base, _) = read.map_err(|error| of_file(path, error))?;
        hosts.push(base);
    }
    let paths: Vec<String> = verb
        .traces
        .iter()
        .map(|path| path.display().to_string())
        .collect();
    let names = host_names(&paths);
    let fleet_vms = join(&mut hosts, &names)?;
    let jobs = args::threads(verb.jobs);
    let bar = RunProgress::unbounded("fit");
    let finished: Vec<AtomicUsize> = hosts.iter().map(|_| AtomicUsize::new(0)).collect();
    let progress = finished.iter().map(|counter| {
        let (bar, finished) = (&bar, &finished);
        move |replays: usize| {
            counter.store(replays, Ordering::Relaxed);
            bar.done(
                finished
                    .iter()
                    .map(|host| host.load(Ordering::Relaxed))
                    .sum(),
            );
        }
    });
    let progress: Vec<_> = progress.collect();
    let stop = output::stop_by_interrupt();
    let replayed = hosts.iter().zip(&progress);
    let replayed = replayed.map(|(base, progress)| RecordedHost::new(base, jobs, stop, progress));
    let replayed: Vec<RecordedHost<'_>> = replayed.collect();
    let fleet = Fleet {
        hosts: replayed.iter().collect(),
        names,
        vms: fleet_vms.vms.clone(),
    };
    let answer = rebalance(&fleet, limits, verb.seeds(), jobs)?;
    let wakeups: Vec<Vec<usize>> = replayed.iter().map(RecordedHost::wakeups).collect();
    let replays = replayed.iter().map(RecordedHost::finished).sum();
    let document = RebalanceDocument::new(
        &paths,
        &hosts,
        fleet_vms,
        &wakeups,
        verb.seeds(),
        replays,
        answer,
    );
    verb.write(&document, tables::render, page::page)
}

/// Refuses what are not several hosts.
fn check(paths: &[PathBuf]) -> Result<(), CliError> {
    if paths.len() < 2 {
        return Err(CliError::Fit(
            "--rebalance moves VMs between hosts: give the recordings of two hosts or more"
                .to_owned(),
        ));
    }
    for (index, path) in paths.iter().enumerate() {
        let mut earlier = paths.iter().take(index);
        if let Some(first) = earlier.find(|first| is_same(first, path)) {
            return Err(CliError::Fit(format!(
                "{} and {} are one recording: --rebalance moves VMs between hosts, each with a recording \
                 of its own",
                first.display(),
                path.display()
            )));
        }
    }
    Ok(())
}

fn is_same(first: &Path, second: &Path) -> bool {
    let file = |path: &Path| path.canonicalize().ok();
    first == second || file(first).is_some_and(|first| file(second) == Some(first))
}

/// An error with the recording that it is of.
fn of_file(path: &Path, error: CliError) -> CliError {
    match error {
        CliError::WhatIf(text) => CliError::Fit(format!("{}: {text}", path.display())),
        error => error,
    }
}

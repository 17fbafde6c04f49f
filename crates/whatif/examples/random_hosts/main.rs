//! How well `fit` finds the largest count on simulated hosts with known truth:
//! `random_hosts [--hosts N] [--seed S] [--jobs N] [--figures | --truth]`.
//!
//! A seed draws a host of 2 to 16 CPUs with VMs that serve requests, have timers or bursts, or run hackbench
//! or dbench, and limits. The truth is the simulator's: the host runs with 1, 2, … of a VM, three times each,
//! until a limit fails. Hosts on which 1 to 8 fit are kept. The prediction is `fit` from one recording of the
//! host with one of that VM. `--figures` shows the figures of hosts that are missed.
//! `--truth` takes three other runs of the simulator for the prediction: how often the truth repeats itself.

mod drawn;
mod table;
mod truth;

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use drawn::DrawnHost;
use stealtime_simulator::Fault;
use stealtime_whatif::capacity::{
    Capacity, Curve, FitError, Limit, LimitError, Question, RecordedHost,
};
use stealtime_whatif::{Baseline, Error, HostFacts, HostFileError, Recorded};
use table::Row;
use truth::{MOST, Truth};

/// Replays of a count near a limit, as of `fit`.
const SEEDS: u64 = 5;

/// Why a host has no answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Of a run.
    #[error(transparent)]
    Simulator(#[from] Fault),
    /// Of a replay.
    #[error(transparent)]
    Replay(#[from] Error),
    /// Of the search.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// Of a limit.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// Of what is known of the host.
    #[error(transparent)]
    Facts(#[from] HostFileError),
    /// No VM ran.
    #[error("the recording has no VM")]
    NoVm,
}

struct Arguments {
    hosts: usize,
    seed: u64,
    jobs: usize,
    shows_figures: bool,
    takes_truth: bool,
}

fn arguments() -> Option<Arguments> {
    let jobs = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
    let mut found = Arguments {
        hosts: 20,
        seed: 1,
        jobs,
        shows_figures: false,
        takes_truth: false,
    };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--hosts" => found.hosts = words.next()?.parse().ok()?,
            "--seed" => found.seed = words.next()?.parse().ok()?,
            "--jobs" => found.jobs = words.next()?.parse().ok()?,
            "--figures" => found.shows_figures = true,
            "--truth" => found.takes_truth = true,
            _ => return None,
        }
    }
    Some(found)
}

/// What the snapshot in a recording says of such a host: it has cgroups as libvirt lays them out, all of one
/// weight, and this preemption mode.
fn facts(recorded: &Recorded) -> Result<HostFacts, Failure> {
    let mut lines = "groups = true\nvcpu_cgroups = true\nsched.preempt = lazy\n".to_owned();
    for vm in truth::in_order(recorded) {
        let _ = writeln!(lines, "vm.{}.cpu_weight = 100", vm.name);
    }
    Ok(HostFacts::parse("snapshot", &lines, recorded)?)
}

/// The curve of the counted VM, from a recording of the host with one of it. Also the number of times that
/// the recording shows whether a CPU without tasks pulls one from another CPU.
fn predict(host: &DrawnHost, limits: Vec<Limit>) -> Result<(Curve, u64), Failure> {
    let recorded = truth::record(&host.with_count(1, 0))?;
    let newidle = recorded.recording().newidle;
    let counted = truth::in_order(&recorded).into_iter().next();
    let counted = counted.ok_or(Failure::NoVm)?.name;
    let facts = facts(&recorded)?;
    let base = Baseline::fit(recorded, facts, &stealtime_whatif::Question::default())?;
    let stop = AtomicBool::new(false);
    let replayed = RecordedHost::new(&base, NonZeroUsize::MIN, &stop, &|_| {});
    let question = Question {
        added: vec![counted],
        limits,
        moves: None,
    };
    let (span_ns, wakeups) = (replayed.span_ns(), replayed.wakeups());
    let capacity = Capacity::answer(
        &replayed,
        &question,
        SEEDS,
        NonZeroUsize::MIN,
        span_ns,
        &wakeups,
    )?;
    let curve = capacity.curves.into_iter().next().ok_or(Failure::NoVm)?;
    Ok((curve, newidle.pulled + newidle.skipped))
}

/// Truth and prediction of a seed's host; `None` if not 1 to 8 fit.
fn answer(seed: u64, takes_truth: bool) -> Result<Option<Row>, Failure> {
    let host = DrawnHost::draw(seed);
    let limits = Limit::parse_all(&host.limits)?;
    let truth = Truth::find(&host, limits.clone(), 1)?;
    let Some(largest) = truth.largest.filter(|largest| *largest <= MOST) else {
        return Ok(None);
    };
    if takes_truth {
        let again = Truth::find(&host, limits, 1 + truth::RUNS_ALONE)?;
        return Ok(Some(Row::of_runs(&host, largest, &again)));
    }
    let (curve, looks) = predict(&host, limits)?;
    Ok(Some(Row::new(&host, &truth, largest, &curve, looks)))
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("random_hosts [--hosts N] [--seed S] [--jobs N] [--figures | --truth]");
        return ExitCode::from(2);
    };
    let (next, kept) = (AtomicU64::new(arguments.seed), AtomicUsize::new(0));
    let rows: Mutex<Vec<Row>> = Mutex::default();
    let failures: Mutex<Vec<String>> = Mutex::default();
    // Seeds are taken in turn and each is finished: what is kept is the same for any number of jobs.
    let work = || {
        while kept.load(Ordering::Relaxed) < arguments.hosts {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            match answer(seed, arguments.takes_truth) {
                Ok(None) => {}
                Ok(Some(row)) => {
                    let done = kept.fetch_add(1, Ordering::Relaxed) + 1;
                    eprintln!("{done}/{} {}", arguments.hosts, row.line());
                    let mut rows = rows.lock().unwrap_or_else(PoisonError::into_inner);
                    rows.push(row);
                }
                Err(failure) => {
                    let mut failures = failures.lock().unwrap_or_else(PoisonError::into_inner);
                    failures.push(format!("seed {seed}: {failure}"));
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..arguments.jobs {
            scope.spawn(work);
        }
        work();
    });
    let mut rows = rows.into_inner().unwrap_or_else(PoisonError::into_inner);
    rows.sort_by_key(|row| row.seed);
    rows.truncate(arguments.hosts);
    print!("{}", table::render(&rows, arguments.shows_figures));
    let failures = failures
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    failures.iter().for_each(|failure| println!("{failure}"));
    match failures.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

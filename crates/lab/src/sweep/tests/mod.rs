//! Grids, journals and results with a runner that derives its numbers from the configuration alone.

mod grid;
mod merge;
mod results;
mod resume;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use stealtime_simulator::config::Config;

use super::*;
use crate::metric::{Better, Metric, Unit};
use crate::run::RunOutput;
use crate::scenario::Scenario;

const TEXT: &str = "[host]\nprofile = \"skylake-sp\"\ncpus = 4\n[[vm]]\nname = \"web\"\nvcpus = 2\n\
    workload = \"ticks\"\n[[task]]\nname = \"other\"\nworkload = \"busy\"\n[variants.a]\n\
    [variants.b]\nkvm.ple_gap = 0\n[run]\nduration = \"1ms\"\nseeds = 3\n";

/// Numbers by the configuration; lists of metrics that differ, and runs that fail.
#[derive(Default)]
struct Fake {
    /// Added to each number.
    more: f64,
    /// Stops after so many runs, if not 0.
    stop_after: u64,
    /// Its numbers are the same for all seeds.
    ignores_seed: bool,
    runs: AtomicU64,
}

impl Runner for Fake {
    fn run(&self, config: &Config, stop: &AtomicBool) -> Result<RunOutput, RunError> {
        let count = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        if self.stop_after > 0 && count > self.stop_after {
            stop.store(true, Ordering::Relaxed);
            return Err(RunError::Stopped);
        }
        let seed = if self.ignores_seed {
            1
        } else {
            config.run.seed
        };
        let poll = u64::from(config.knobs.kvm.halt_poll.halt_poll_ns);
        if (seed, poll) == (2, 20_000) {
            return Err(RunError::Failed("no, with \"quotes\"".into()));
        }
        assert!((seed, poll) != (3, 20_000), "a defect");
        let value =
            (seed * 7_919 % 101 + poll / 1_000 * u64::from(config.host.topology.cpus())) as f64;
        let metric = |name: &str, unit, value| Metric::host(name, unit, Better::Higher, value);
        let mut metrics = vec![metric(
            "throughput",
            Unit::PerSecond,
            value / 3.0 + self.more,
        )];
        if seed.is_multiple_of(2) {
            metrics.push(metric("exits HLT", Unit::PerSecond, 1.0));
        }
        metrics.push(metric(
            "latency mean",
            Unit::Ns,
            if poll == 0 { f64::NAN } else { value },
        ));
        Ok(RunOutput {
            metrics,
            events: seed,
            simulated_ns: 1,
        })
    }
}

fn scenario() -> Scenario {
    Scenario::from_text("a.toml", TEXT).expect("a scenario")
}

fn plan(vary_texts: &[&str]) -> Result<Plan, SweepError> {
    let scenario = scenario();
    let variants = scenario.variants.clone();
    let vary = vary_texts
        .iter()
        .map(|text| vary(text).expect(text))
        .collect();
    Plan::new(scenario, variants, vary)
}

const GRID: [&str; 2] = ["kvm.halt_poll_ns=0..40us+10us", "host.cpus=2,4,8"];

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).expect("not 0")
}

fn open(path: &Path) -> Sweep {
    Sweep::open(path, plan(&GRID).expect("a plan"), None, false).expect("a sweep")
}

/// Does what is left.
fn finish(sweep: &mut Sweep, count: usize) {
    let go = AtomicBool::new(false);
    sweep
        .run(&Fake::default(), threads(count), &go, &mut |_| {})
        .expect("it runs");
    assert!(sweep.is_done());
}

/// The results' bytes in all forms.
fn bytes(sweep: &Sweep) -> Vec<Vec<u8>> {
    let files = Form::ALL.map(|form| sweep.write(form, threads(2)).expect("results"));
    files
        .map(|file| std::fs::read(file).expect("a file"))
        .into()
}

/// The bytes of a sweep that ran without interruption.
fn undisturbed() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a folder");
    let mut sweep = open(folder.path());
    finish(&mut sweep, 1);
    bytes(&sweep)
}

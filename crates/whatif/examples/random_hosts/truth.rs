//! Figures of simulated hosts, and the largest count within limits.

use stealtime_analysis::{Analysis, Options};
use stealtime_replay::Extractor;
use stealtime_simulator::config::Config;
use stealtime_simulator::{Collected, run};
use stealtime_whatif::Recorded;
use stealtime_whatif::capacity::{Figure, HostVm, Limit, recorded_vms};

use super::Failure;
use super::drawn::DrawnHost;

/// Runs of each count.
pub const RUNS: u64 = 3;
/// Runs of the counted VM alone, of which its work alone is the mean. A lone VM has fewer bursts than several
/// copies, so that its work differs by more from run to run. A neighbour does the same in the runs of each
/// count, and is compared with itself there.
pub const RUNS_ALONE: u64 = 12;
/// Counts beyond it are not asked for.
pub const MOST: u32 = 8;

/// A run, recorded.
pub fn record(config: &Config) -> Result<Recorded, Failure> {
    let mut sink = Collected::default();
    run(config, &mut sink)?;
    let mut analysis = Analysis::new(Options::default());
    for event in &sink.events {
        analysis.event(event, &sink.names);
    }
    let answers = analysis.finish(&sink.names);
    let mut extractor = Extractor::new(&answers);
    for event in &sink.events {
        extractor.event(event, &sink.names);
    }
    let mut recording = extractor.finish();
    // Idle CPUs have no event in a simulated run.
    recording.cpus = sink.cpus;
    Ok(Recorded::new(answers, recording))
}

/// The VMs of a recorded run in the order of its configuration. Their names are those of their processes, of
/// which later ones have larger ids.
pub fn in_order(recorded: &Recorded) -> Vec<HostVm> {
    let pid = |vm: &HostVm| vm.name.trim_start_matches("pid").parse::<u32>().ok();
    let mut vms = recorded_vms(recorded);
    vms.sort_by_key(pid);
    vms
}

/// The mean of a figure over a VM and its copies, which follow the `originals` VMs of the host. Copies are of
/// the first one.
fn mean(vms: &[HostVm], originals: usize, vm: usize, figure: impl Fn(&HostVm) -> f64) -> f64 {
    let copies = vms.iter().skip(originals).filter(|_| vm == 0);
    let values: Vec<f64> = vms.get(vm).into_iter().chain(copies).map(figure).collect();
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// A host's true figures.
pub struct Truth {
    limits: Vec<Limit>,
    /// VMs that limits are held against, each with its work alone in ms per second.
    vms: Vec<(usize, f64)>,
    /// The limit nearest to failing, or broken by most, at each count from 1 on: as `vm figure value`.
    pub figures: Vec<String>,
    /// Figures that limits are of by count, VM by VM.
    pub values: Vec<Vec<f64>>,
    /// The largest count within all limits; `None` if not even 1 is. More than [`MOST`] are
    /// one number.
    pub largest: Option<u32>,
}

impl Truth {
    /// By runs from `first` on.
    pub fn find(host: &DrawnHost, limits: Vec<Limit>, first: u64) -> Result<Self, Failure> {
        let is_work = limits.iter().any(|limit| limit.figure == Figure::Work);
        let mut vms = Vec::new();
        for vm in 0..host.vms() {
            let mut works = Vec::new();
            let mut is_elastic = false;
            let runs = match (is_work, vm) {
                (true, 0) => RUNS_ALONE,
                (true, _) => RUNS,
                (false, _) => 1,
            };
            for run in first..first + runs {
                let recorded = recorded_vms(&record(&host.alone(vm, run))?);
                let found = recorded.first().ok_or(Failure::NoVm)?;
                works.push(found.work_ms);
                is_elastic = found.is_elastic;
            }
            if !is_elastic {
                vms.push((vm, works.iter().sum::<f64>() / works.len() as f64));
            }
        }
        let mut truth = Self {
            limits,
            vms,
            figures: Vec::new(),
            values: Vec::new(),
            largest: None,
        };
        // One run suffices to see that far more fit than are asked for.
        if truth.holds(host, MOST + 1, first..first + 1)? {
            truth.largest = Some(MOST + 1);
            return Ok(truth);
        }
        truth.figures.clear();
        truth.values.clear();
        for count in 1..=MOST + 1 {
            if !truth.holds(host, count, first..first + RUNS)? {
                truth.largest = (count > 1).then_some(count - 1);
                break;
            }
        }
        Ok(truth)
    }

    /// Whether all limits hold, on average over these runs.
    fn holds(
        &mut self,
        host: &DrawnHost,
        count: u32,
        numbers: std::ops::Range<u64>,
    ) -> Result<bool, Failure> {
        let mut runs = Vec::new();
        for run in numbers {
            runs.push(in_order(&record(&host.with_count(count, run))?));
        }
        let over_runs = |value: &dyn Fn(&[HostVm]) -> f64| {
            runs.iter().map(|vms| value(vms)).sum::<f64>() / runs.len() as f64
        };
        let mut values = Vec::new();
        // By how much of its value the nearest limit is missed, and what is shown of it.
        let mut nearest = (f64::NEG_INFINITY, String::new());
        for limit in &self.limits {
            for &(vm, alone) in &self.vms {
                let mean =
                    |vms: &[HostVm], figure: fn(&HostVm) -> f64| mean(vms, host.vms(), vm, figure);
                let value = over_runs(&|vms| match limit.figure {
                    Figure::Ready => mean(vms, |vm| vm.ready_percent),
                    Figure::WakeupP50 => mean(vms, |vm| vm.wakeup_p50_us),
                    Figure::WakeupP99 => mean(vms, |vm| vm.wakeup_p99_us),
                    Figure::Work => (mean(vms, |vm| vm.work_ms) / alone * 100.0).min(100.0),
                    Figure::Overhead => 0.0,
                });
                values.push(value);
                let beyond = match limit.figure.rises() {
                    true => value - limit.value,
                    false => limit.value - value,
                };
                let excess = match limit.holds(value) {
                    true => beyond / limit.value,
                    false => (beyond / limit.value).max(f64::MIN_POSITIVE),
                };
                if excess > nearest.0 {
                    let shown = limit.figure.shown(value);
                    nearest = (excess, format!("VM {vm} {} {shown}", limit.figure.name()));
                }
            }
        }
        self.figures.push(nearest.1);
        self.values.push(values);
        Ok(nearest.0 <= 0.0)
    }
}

//! Measures whether a fit needs each value of its dimensions: `fit_dimensions RECORDING...`, or
//! `fit_dimensions --simulated FROM TO` on the simulated hosts of these seeds.
//!
//! Each recording is fitted among all hypotheses. Where the best has a value beyond the first one of a
//! dimension, it is fitted again without that value. Hypotheses that lose need no second fit: without them
//! the best stays.

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests take the rest")]
mod common;

use std::error::Error;
use std::path::Path;

use common::drawn::{ANY, COUPLED, Choices, Drawn, change, pins, shares};

use stealtime_analysis::{Analysis, Options};
use stealtime_replay::fit::{Dimension, Fitted, Hypothesis, fit_among};
use stealtime_replay::host::{Assumed, Feature, Placement, Preempt, as_recorded};
use stealtime_replay::predict::{Errors, Times, VcpuTimes, recorded, replay};
use stealtime_replay::{Extractor, Recording};
use stealtime_simulator::Fault;
use stealtime_simulator::config::{Config, Topology};

type Selects = fn(&Hypothesis) -> bool;

/// Values that a fit may do without; moves at recorded progress are tried first, and stay.
const VALUES: [(&str, Selects); 9] = [
    ("simulated scheduler", |host| {
        host.placement == Placement::Simulated
    }),
    ("moves at recorded times", |host| host.timed_moves),
    ("work goes to idle vCPUs", |host| host.balanced),
    ("each VM in a cgroup", |host| host.cgroups.every_vm),
    ("each vCPU in a cgroup", |host| host.cgroups.per_vcpu),
    ("single VMs in a cgroup", |host| {
        !host.cgroups.single_vms.is_empty()
    }),
    ("full preemption", |host| host.preempt == Preempt::Full),
    ("no wakeup preemption", |host| !host.wakeups_preempt),
    ("unequal weights", |host| !host.weights.is_empty()),
];

fn read(path: &Path) -> Result<(Recording, Times), Box<dyn Error>> {
    let mut source = stealtime_trace::open(path)?;
    let mut analysis = Analysis::new(Options::default());
    while let Some(event) = source.next_event()? {
        analysis.event(&event, source.names());
    }
    let answers = analysis.finish(source.names());
    let mut source = stealtime_trace::open(path)?;
    let mut extractor = Extractor::new(&answers);
    while let Some(event) = source.next_event()? {
        extractor.event(&event, source.names());
    }
    let recording = extractor.finish();
    let times = recorded(&recording, &answers);
    Ok((recording, times))
}

fn fit(
    (recording, times): (&Recording, &Times),
    among: impl Fn(&Hypothesis) -> bool,
) -> Result<Fitted, Fault> {
    let configure = |_: &mut Config| Ok(());
    fit_among(recording, times, &Assumed::default(), among, configure)
}

/// Misfit in times in percent of vCPUs' time, and median, 90th percentile and exits of the errors.
fn shown(recording: &Recording, times: &Times, fitted: &Fitted) -> String {
    let known_ns: u64 = times.vcpus.iter().map(VcpuTimes::known_ns).sum();
    let errors = Errors::between(times, &fitted.times, recording.span_ns);
    let percent = |ppm: u64| ppm as f64 / 10_000.0;
    format!(
        "{:6.2} {:6.2} {:6.2} {:6.2}",
        fitted.misfit.times_ns as f64 / known_ns.max(1) as f64 * 100.0,
        percent(errors.percentile(50)),
        percent(errors.percentile(90)),
        percent(errors.worst_exits()),
    )
}

/// A simulated host, its recording, and the truth of a changed knob.
struct Truth {
    recording: Recording,
    times: Times,
    knob: &'static str,
    /// True changes of VMs' shares by the knob, in ppm of the span.
    effect: Vec<i64>,
}

/// Gives a host of the tests what dimensions are about: its CPUs' caches, cgroups, weights and preemption.
fn vary(config: &mut Config, seed: u64) {
    let mut choices = Choices(seed ^ 0x5eed);
    let mut one_in = |n| choices.below(n) == 0;
    let cpus = config.host.topology.cpus();
    if one_in(2) {
        config.host.topology = Topology {
            sockets: cpus,
            cores_per_llc: 1,
            ..Topology::flat(cpus)
        };
    }
    let per_vcpu = one_in(2);
    for vm in &mut config.vms {
        vm.vcpu_cgroups = per_vcpu;
    }
    if one_in(4) {
        config.vms[1].cpu_weight = 300;
    }
    let sched = &mut config.knobs.sched;
    if one_in(4) {
        sched.features = sched.features.without(Feature::WakeupPreemption);
    }
    if one_in(4) {
        sched.preempt = Preempt::Full;
    }
}

fn changes(before: &[i64], after: &[i64]) -> Vec<i64> {
    let pairs = before.iter().zip(after);
    pairs.map(|(before, after)| after - before).collect()
}

impl Truth {
    fn simulate(drawn: Drawn, seed: u64, is_varied: bool) -> Self {
        let mut config = drawn.scenario(seed);
        if is_varied {
            vary(&mut config, seed);
        }
        let (recording, times) = common::record(&config);
        let mut choices = Choices(seed ^ 0xfeed);
        let knob = drawn.knobs[choices.below(drawn.knobs.len() as u64) as usize];
        change(&mut config, knob);
        let (_, changed) = common::record(&config);
        let [before, after] = [&times, &changed].map(|times| shares(times, recording.span_ns));
        Self {
            effect: changes(&before, &after),
            recording,
            times,
            knob,
        }
    }

    /// How far the prediction of a fitted host is from the truth, in ppm of the span: the worst share.
    fn error_ppm(&self, fitted: &Fitted) -> Result<u64, Fault> {
        let pinned = Assumed {
            pins: pins(&self.recording, self.knob),
            ..fitted.assumed.clone()
        };
        let mut config = as_recorded(&self.recording, fitted.config.knobs.clone(), &pinned, 0);
        change(&mut config, self.knob);
        let changed = replay(&self.recording, &config)?;
        let [before, after] =
            [&fitted.times, &changed].map(|times| shares(times, self.recording.span_ns));
        let predicted = changes(&before, &after);
        let pairs = predicted.iter().zip(&self.effect);
        let errors = pairs.map(|(predicted, seen)| predicted.abs_diff(*seen));
        Ok(errors.max().unwrap_or(0))
    }
}

/// Fits with a value and without it.
#[derive(Default)]
struct Ablation {
    /// Misfit in times, in percent of vCPUs' time: with the value, and without.
    misfits: [Vec<f64>; 2],
    /// Medians of the errors of round trips, in percent.
    medians: [Vec<f64>; 2],
    /// Errors of predictions, in percent of the span.
    errors: [Vec<f64>; 2],
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

impl Ablation {
    fn add(&mut self, truth: &Truth, fits: [&Fitted; 2]) -> Result<(), Fault> {
        let known_ns: u64 = truth.times.vcpus.iter().map(VcpuTimes::known_ns).sum();
        for (index, fitted) in fits.into_iter().enumerate() {
            let misfit = fitted.misfit.times_ns as f64 / known_ns.max(1) as f64;
            let errors = Errors::between(&truth.times, &fitted.times, truth.recording.span_ns);
            self.misfits[index].push(misfit * 100.0);
            self.medians[index].push(errors.percentile(50) as f64 / 10_000.0);
            self.errors[index].push(truth.error_ppm(fitted)? as f64 / 10_000.0);
        }
        Ok(())
    }

    /// The cells of a row: hosts, those with a misfit that is 5 % larger without, misfits, medians, and
    /// errors of predictions. Then how many of the errors are a point larger and smaller without, and how
    /// many are within 5 %.
    fn row(&self) -> String {
        let pairs = |[with, without]: &[Vec<f64>; 2], is: fn(f64, f64) -> bool| {
            let pairs = with.iter().zip(without);
            pairs.filter(|pair| is(*pair.0, *pair.1)).count()
        };
        let means =
            |lists: &[Vec<f64>; 2]| format!("{:.2} to {:.2} %", mean(&lists[0]), mean(&lists[1]));
        let within = |list: &[f64]| list.iter().filter(|&&error| error <= 5.0).count();
        format!(
            "{} | {} | {} | {} | {} | {} and {} | {} to {}",
            self.misfits[0].len(),
            pairs(&self.misfits, |with, without| without > with * 1.05),
            means(&self.misfits),
            means(&self.medians),
            means(&self.errors),
            pairs(&self.errors, |with, without| without > with + 1.0),
            pairs(&self.errors, |with, without| with > without + 1.0),
            within(&self.errors[0]),
            within(&self.errors[1]),
        )
    }
}

/// Fits simulated hosts with each value and without, and prints a table.
fn measure_simulated(drawn: Drawn, seeds: core::ops::Range<u64>, is_varied: bool) {
    let mut rows: [Ablation; VALUES.len()] = Default::default();
    let mut all = Ablation::default();
    for seed in seeds {
        let truth = Truth::simulate(drawn, seed, is_varied);
        let recording = (&truth.recording, &truth.times);
        let measured = fit(recording, |_| true).and_then(|best| {
            all.add(&truth, [&best, &best])?;
            for ((name, selects), row) in VALUES.iter().zip(&mut rows) {
                if selects(&best.hypothesis) {
                    let without = fit(recording, |host| !selects(host))?;
                    row.add(&truth, [&best, &without])?;
                    println!("  {seed}: {name}");
                }
            }
            Ok(())
        });
        if let Err(error) = measured {
            println!("  {seed}: {error}");
        }
    }
    println!("| all | {} |", all.row());
    for ((name, _), row) in VALUES.iter().zip(&rows) {
        println!("| {name} | {} |", row.row());
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [option, from, to] = arguments.as_slice()
        && option == "--simulated"
    {
        for (drawn, name) in [(ANY, "independent"), (COUPLED, "coupled")] {
            for (is_varied, hosts) in [(false, "hosts of the tests"), (true, "varied hosts")] {
                println!("{name} guests, {hosts}");
                measure_simulated(drawn, from.parse()?..to.parse()?, is_varied);
            }
        }
        return Ok(());
    }
    measure_recordings(&arguments);
    Ok(())
}

fn measure_recordings(paths: &[String]) {
    println!("misfit median    p90  exits, %");
    for path in paths {
        let (recording, times) = match read(path.as_ref()) {
            Ok(read) => read,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let best = match fit((&recording, &times), |_| true) {
            Ok(best) => best,
            Err(error) => {
                println!("{path}: {error}");
                continue;
            }
        };
        let values = Dimension::ALL.map(|dimension| dimension.value(&best.hypothesis, &[]));
        let values: Vec<String> = values.into_iter().flatten().collect();
        println!(
            "{} {path}: {}",
            shown(&recording, &times, &best),
            values.join(", ")
        );
        for (name, selects) in VALUES
            .iter()
            .filter(|(_, selects)| selects(&best.hypothesis))
        {
            match fit((&recording, &times), |host| !selects(host)) {
                Ok(without) => println!("{}   without {name}", shown(&recording, &times, &without)),
                Err(error) => println!("  without {name}: {error}"),
            }
        }
    }
}

//! Measures whether a fit needs each value of its dimensions: `fit_dimensions RECORDING...`.
//!
//! Each recording is fitted among all hypotheses. Where the best has a value beyond the first one of a
//! dimension, it is fitted again without that value. Hypotheses that lose need no second fit: without them
//! the best stays.

use std::error::Error;
use std::path::Path;

use stealtime_analysis::{Analysis, Options};
use stealtime_replay::fit::{Dimension, Fitted, Hypothesis, fit_among};
use stealtime_replay::host::{Assumed, Placement};
use stealtime_replay::predict::{Errors, Times, VcpuTimes, recorded};
use stealtime_replay::{Extractor, Recording};
use stealtime_simulator::Fault;
use stealtime_simulator::config::Config;

type Selects = fn(&Hypothesis) -> bool;

/// Values that a fit may do without; moves at recorded progress are tried first, and stay.
const VALUES: [(&str, Selects); 9] = [
    ("simulated scheduler", |host| {
        host.placement == Placement::Simulated
    }),
    ("moves at recorded times", |host| host.timed_moves),
    ("a cache for each CPU", |host| host.own_caches),
    ("work goes to idle vCPUs", |host| host.balanced),
    ("each VM in a cgroup", |host| host.cgroups.every_vm),
    ("each vCPU in a cgroup", |host| host.cgroups.per_vcpu),
    ("single VMs in a cgroup", |host| {
        !host.cgroups.single_vms.is_empty()
    }),
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

fn main() -> Result<(), Box<dyn Error>> {
    println!("misfit median    p90  exits, %");
    for path in std::env::args().skip(1) {
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
    Ok(())
}

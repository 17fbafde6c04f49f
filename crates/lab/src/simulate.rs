//! The simulator as a runner: its account of a run as metrics.

mod fairness;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use stealtime_events::ExitReason;
use stealtime_simulator::books::TaskBooks;
use stealtime_simulator::config::Config;
use stealtime_simulator::{
    Fault, Histogram, Machine, Meter, Outcome, Sink, TaskOutcome, VcpuOutcome, VmOutcome,
};

use crate::metric::{Better, Metric, Of, Unit};
use crate::run::{RunError, RunOutput, Runner};

/// Runs configurations on the simulated host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simulator;

impl Runner for Simulator {
    fn run(&self, config: &Config, stop: &AtomicBool) -> Result<RunOutput, RunError> {
        traced(config, stop, &mut ())
    }
}

/// One run whose events go to `sink`.
///
/// # Errors
///
/// [`RunError`].
pub fn traced(
    config: &Config,
    stop: &AtomicBool,
    sink: &mut dyn Sink,
) -> Result<RunOutput, RunError> {
    let mut machine = Machine::new(config, sink).map_err(failed)?;
    let outcome = machine
        .run(&|| stop.load(Ordering::Relaxed))
        .map_err(failed)?;
    Ok(RunOutput {
        metrics: metrics(config, &outcome),
        events: outcome.stats.events,
        simulated_ns: config.run.warmup_ns.saturating_add(config.run.duration_ns),
    })
}

fn failed(fault: Fault) -> RunError {
    match fault {
        Fault::Stopped => RunError::Stopped,
        fault => RunError::Failed(fault.to_string()),
    }
}

/// What a run is judged by: first what guests and tasks got done, then what it took.
#[must_use]
pub fn metrics(config: &Config, outcome: &Outcome) -> Vec<Metric> {
    let mut metrics = Vec::new();
    let seconds = outcome.measured_ns as f64 / 1e9;
    for (name, vms) in groups(outcome) {
        let of = Of::Vm(name);
        if reads_counters(config, &vms) {
            of_spread(&vms, outcome, &of, &mut metrics);
        }
        of_group(&vms, outcome, seconds, of, &mut metrics);
    }
    for (name, meters) in task_meters(outcome) {
        let of = Of::Task(name);
        of_meters(&meters, seconds, &of, &mut metrics);
        let its = |task: &&TaskOutcome| {
            let meter = outcome.stats.meters.get(task.meter);
            matches!(&of, Of::Task(name) if meter.is_some_and(|meter| meter.name == *name))
        };
        let books = outcome.tasks.iter().filter(its).map(|task| &task.books);
        worst_lag(books, &of, &mut metrics);
    }
    of_host(config, outcome, seconds, &mut metrics);
    metrics
}

/// VMs by group: `web-1` and `web-2` are `web`, where there are several.
fn groups(outcome: &Outcome) -> Vec<(String, Vec<&VmOutcome>)> {
    let mut groups: Vec<(String, Vec<&VmOutcome>)> = Vec::new();
    for vm in &outcome.vms {
        let name = group_of(&vm.name);
        match groups.iter_mut().find(|(known, _)| known == name) {
            Some((_, vms)) => vms.push(vm),
            None => groups.push((name.to_owned(), vec![vm])),
        }
    }
    groups
}

/// Whether these VMs are there to show how their latencies spread.
fn reads_counters(config: &Config, vms: &[&VmOutcome]) -> bool {
    let named = |vm: &&VmOutcome| config.vms.iter().find(|known| known.name == vm.name);
    let mut workloads = vms.iter().filter_map(named).map(|vm| &vm.workload.name);
    workloads.any(|name| name == "counter-read")
}

/// How latencies spread.
fn of_spread(vms: &[&VmOutcome], outcome: &Outcome, of: &Of, metrics: &mut Vec<Metric>) {
    let mut latency = Histogram::default();
    for meter in vms
        .iter()
        .filter_map(|vm| outcome.stats.meters.get(vm.meter))
    {
        latency.merge(&meter.latency);
    }
    let parts = [
        ("latency p95", latency.quantile(950)),
        ("latency deviation", latency.deviation()),
    ];
    for (name, value) in parts {
        if let Some(value) = value {
            metrics.push(Metric::host(name, Unit::Ns, Better::Lower, value as f64).of(of.clone()));
        }
    }
}

/// The name without the number that a VM of a group has.
fn group_of(name: &str) -> &str {
    match name.rsplit_once('-') {
        Some((group, number))
            if !group.is_empty()
                && !number.is_empty()
                && number.bytes().all(|digit| digit.is_ascii_digit()) =>
        {
            group
        }
        _ => name,
    }
}

/// The reports of tasks by name.
fn task_meters(outcome: &Outcome) -> BTreeMap<String, Vec<&Meter>> {
    let mut numbers: Vec<usize> = outcome.tasks.iter().map(|task| task.meter).collect();
    numbers.dedup();
    let mut meters: BTreeMap<String, Vec<&Meter>> = BTreeMap::new();
    for meter in numbers
        .into_iter()
        .filter_map(|number| outcome.stats.meters.get(number))
    {
        meters.entry(meter.name.clone()).or_default().push(meter);
    }
    meters
}

/// The most that one of these tasks was behind its fair share.
fn worst_lag<'a>(books: impl Iterator<Item = &'a TaskBooks>, of: &Of, metrics: &mut Vec<Metric>) {
    let worst = books.map(|books| books.worst_lag_ns).max().unwrap_or(0);
    let metric = Metric::host("worst lag", Unit::Ns, Better::Lower, worst as f64);
    metrics.push(metric.of(of.clone()));
}

/// Operations done and how long they took.
fn of_meters(meters: &[&Meter], seconds: f64, of: &Of, metrics: &mut Vec<Metric>) {
    let done: u64 = meters.iter().map(|meter| meter.done).sum();
    let throughput = done as f64 / seconds;
    metrics.push(
        Metric::host("throughput", Unit::PerSecond, Better::Higher, throughput).of(of.clone()),
    );
    let mut latency = Histogram::default();
    meters
        .iter()
        .for_each(|meter| latency.merge(&meter.latency));
    histogram("latency", &latency, of, metrics);
}

/// Mean, median and 99th percentile of times; nothing where nothing was measured.
fn histogram(name: &str, values: &Histogram, of: &Of, metrics: &mut Vec<Metric>) {
    let parts = [
        ("mean", values.mean()),
        ("p50", values.quantile(500)),
        ("p99", values.quantile(990)),
    ];
    for (part, value) in parts {
        if let Some(value) = value {
            let name = format!("{name} {part}");
            metrics.push(Metric::host(name, Unit::Ns, Better::Lower, value as f64).of(of.clone()));
        }
    }
}

fn of_group(
    vms: &[&VmOutcome],
    outcome: &Outcome,
    seconds: f64,
    of: Of,
    metrics: &mut Vec<Metric>,
) {
    let meters: Vec<&Meter> = vms
        .iter()
        .filter_map(|vm| outcome.stats.meters.get(vm.meter))
        .collect();
    of_meters(&meters, seconds, &of, metrics);
    let vcpus = || vms.iter().flat_map(|vm| &vm.vcpus);
    let time = outcome.measured_ns as f64 * vcpus().count() as f64;
    let share = |ns: u64| ns as f64 / time * 100.0;
    let mut add = |name: &str, unit, better, value| {
        metrics.push(Metric::host(name, unit, better, value).of(of.clone()));
    };
    use Better::{Lower, Neither};
    use Unit::{PerSecond, Percent};
    add(
        "in guest",
        Percent,
        Neither,
        share(vcpus().map(|v| v.vcpu.guest_ns).sum()),
    );
    add(
        "in exits",
        Percent,
        Lower,
        share(vcpus().map(in_exits).sum()),
    );
    add(
        "steal",
        Percent,
        Lower,
        share(vcpus().map(|v| v.task.wait_ns).sum()),
    );
    add(
        "spinning",
        Percent,
        Lower,
        share(vcpus().map(|v| v.vcpu.spin_ns).sum()),
    );
    add(
        "halt polling",
        Percent,
        Lower,
        share(vcpus().map(|v| v.vcpu.poll_ns).sum()),
    );
    add(
        "asleep",
        Percent,
        Neither,
        share(vcpus().map(|v| v.task.sleep_ns).sum()),
    );
    let exits: u64 = vcpus().flat_map(|v| v.vcpu.exits.values()).sum();
    add("exits", PerSecond, Neither, exits as f64 / seconds);
    let done: u64 = meters.iter().map(|meter| meter.done).sum();
    if done > 0 {
        add(
            "exits per operation",
            Unit::Count,
            Lower,
            exits as f64 / done as f64,
        );
    }
    let halts: u64 = vcpus().map(|v| v.vcpu.halts).sum();
    add("halts", PerSecond, Neither, halts as f64 / seconds);
    let mut interrupts = Histogram::default();
    let mut ipis = Histogram::default();
    for vm in vms {
        interrupts.merge(&vm.answers.interrupts);
        ipis.merge(&vm.answers.ipis);
    }
    histogram("interrupt response", &interrupts, &of, metrics);
    histogram("IPI response", &ipis, &of, metrics);
    worst_lag(vcpus().map(|v| &v.task), &of, metrics);
    of_clocks(vms, &of, metrics);
}

/// Time of a vCPU's thread on a CPU, but neither in the guest nor polling.
fn in_exits(v: &VcpuOutcome) -> u64 {
    let elsewhere = v.vcpu.guest_ns.saturating_add(v.vcpu.poll_ns);
    v.task.run_ns.saturating_sub(elsewhere)
}

/// What guests that were moved saw of their clocks: the worst of the group.
fn of_clocks(vms: &[&VmOutcome], of: &Of, metrics: &mut Vec<Metric>) {
    let clocks: Vec<_> = vms.iter().filter_map(|vm| vm.clocks.as_ref()).collect();
    if clocks.is_empty() {
        return;
    }
    let mut add = |name: &str, unit, value: Option<u64>| {
        let value = value.unwrap_or(0) as f64;
        metrics.push(Metric::host(name, unit, Better::Lower, value).of(of.clone()));
    };
    let of = |value: fn(&stealtime_simulator::ClockOutcome) -> u64| {
        clocks.iter().map(move |clock| value(clock))
    };
    add(
        "clock steps back",
        Unit::Count,
        Some(of(|clock| clock.steps_back).sum()),
    );
    add(
        "largest step back",
        Unit::Ns,
        of(|clock| clock.largest_step_back_ns).max(),
    );
    add(
        "clocks differ by",
        Unit::Ns,
        of(|clock| clock.difference_ns).max(),
    );
    add(
        "clocks are off by",
        Unit::Ns,
        of(|clock| clock.error_ns.unsigned_abs()).max(),
    );
    // Of arm64 guests alone, which have such a counter.
    add(
        "physical counters are off by",
        Unit::Ns,
        of(|clock| clock.physical_error_ns.unsigned_abs()).max(),
    );
    add("stood still", Unit::Ns, of(|clock| clock.blackout_ns).max());
}

fn of_host(config: &Config, outcome: &Outcome, seconds: f64, metrics: &mut Vec<Metric>) {
    let mut reasons: BTreeMap<u32, u64> = BTreeMap::new();
    for vcpu in outcome.vms.iter().flat_map(|vm| &vm.vcpus) {
        for (reason, count) in &vcpu.vcpu.exits {
            *reasons.entry(*reason).or_default() += count;
        }
    }
    for (reason, count) in reasons {
        let name = match ExitReason::vmx(reason).name() {
            Some(name) => format!("exits {name}"),
            None => format!("exits {reason}"),
        };
        metrics.push(Metric::host(
            name,
            Unit::PerSecond,
            Better::Neither,
            count as f64 / seconds,
        ));
    }
    let s = &outcome.stats;
    let mut rate = |name: &str, better, count: u64| {
        metrics.push(Metric::host(
            name,
            Unit::PerSecond,
            better,
            count as f64 / seconds,
        ));
    };
    use Better::{Higher, Lower, Neither};
    rate("guest IPIs", Neither, s.guest_ipis);
    rate("notifications", Neither, s.notifications);
    rate("spurious notifications", Lower, s.spurious_notifications);
    rate("PAUSE exits", Neither, s.pause_exits);
    rate("ICR writes", Neither, s.icr_writes);
    rate("broadcasts", Neither, s.broadcasts);
    rate("wakeups that needed no IPI", Neither, s.wakeups_noticed);
    rate("directed yields", Neither, s.directed_yields);
    rate("yields to the vCPU waited for", Higher, s.yields_to_awaited);
    rate("yield hypercalls", Neither, s.yield_hypercalls);
    rate("paravirtual lock halts", Neither, s.pv_waits);
    rate("paravirtual lock kicks", Neither, s.pv_kicks);
    rate("threads moved in guests", Neither, s.guest_migrations);
    rate("context switches", Neither, s.context_switches);
    rate("migrations", Neither, s.migrations);
    rate("host IPIs", Neither, s.ipis_sent);
    rate("host interrupts", Neither, s.host_irqs);
    rate("host ticks", Neither, s.ticks);
    histogram("broadcast", &s.broadcast_ns, &Of::Host, metrics);
    if s.broadcast_ns.count > 0 {
        let longest = s.broadcast_ns.max as f64;
        metrics.push(Metric::host("broadcast max", Unit::Ns, Lower, longest));
    }
    let busy: u64 = outcome.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    let time = outcome.measured_ns as f64 * outcome.cpus.len() as f64;
    let busy = busy as f64 / time * 100.0;
    metrics.push(Metric::host("CPUs busy", Unit::Percent, Neither, busy));
    if let Some(error) = fairness::share_error(config, outcome) {
        metrics.push(Metric::host("share error", Unit::Percent, Lower, error));
    }
}

#[cfg(test)]
mod tests;

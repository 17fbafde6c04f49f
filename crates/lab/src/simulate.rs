//! The simulator as a runner: its account of a run as metrics.

mod fairness;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use stealtime_events::ExitReason;
use stealtime_simulator::books::TaskBooks;
use stealtime_simulator::config::Config;
use stealtime_simulator::{
    Fault, Histogram, Machine, Meter, Outcome, Sink, Stats, TaskOutcome, VcpuOutcome, VmOutcome,
};

use crate::metric::{Better, Metric, Subject, Unit};
use crate::run::{RunError, RunOutput, Runner};

/// Runs configurations on the simulated host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Simulator;

impl Runner for Simulator {
    fn run(&self, config: &Config, stop: &AtomicBool) -> Result<RunOutput, RunError> {
        traced(config, stop, &mut ())
    }
}

/// One run with its events going to `sink`.
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
        let subject = Subject::Vm(name);
        if reads_counters(config, &vms) {
            of_spread(&vms, outcome, &subject, &mut metrics);
        }
        of_group(&vms, outcome, seconds, subject, &mut metrics);
    }
    for (name, meters) in task_meters(outcome) {
        let subject = Subject::Task(name);
        of_meters(&meters, seconds, &subject, &mut metrics);
        let is_member = |task: &&TaskOutcome| {
            let meter = outcome.stats.meters.get(task.meter);
            matches!(&subject, Subject::Task(name) if meter.is_some_and(|meter| meter.name == *name))
        };
        let books = outcome
            .tasks
            .iter()
            .filter(is_member)
            .map(|task| &task.books);
        worst_lag(books, &subject, &mut metrics);
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
fn of_spread(vms: &[&VmOutcome], outcome: &Outcome, subject: &Subject, metrics: &mut Vec<Metric>) {
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
            metrics.push(
                Metric::host(name, Unit::Ns, Better::Lower, value as f64).of(subject.clone()),
            );
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
fn worst_lag<'a>(
    books: impl Iterator<Item = &'a TaskBooks>,
    subject: &Subject,
    metrics: &mut Vec<Metric>,
) {
    let worst = books.map(|books| books.worst_lag_ns).max().unwrap_or(0);
    let metric = Metric::host("worst lag", Unit::Ns, Better::Lower, worst as f64);
    metrics.push(metric.of(subject.clone()));
}

/// Operations done and how long they took.
fn of_meters(meters: &[&Meter], seconds: f64, subject: &Subject, metrics: &mut Vec<Metric>) {
    let operations: u64 = meters.iter().map(|meter| meter.done).sum();
    let throughput = operations as f64 / seconds;
    metrics.push(
        Metric::host("throughput", Unit::PerSecond, Better::Higher, throughput).of(subject.clone()),
    );
    let mut latency = Histogram::default();
    meters
        .iter()
        .for_each(|meter| latency.merge(&meter.latency));
    histogram("latency", &latency, subject, metrics);
}

/// Mean, median and 99th percentile of times; nothing where nothing was measured.
fn histogram(name: &str, values: &Histogram, subject: &Subject, metrics: &mut Vec<Metric>) {
    let parts = [
        ("mean", values.mean()),
        ("p50", values.quantile(500)),
        ("p99", values.quantile(990)),
    ];
    for (part, value) in parts {
        if let Some(value) = value {
            let name = format!("{name} {part}");
            metrics.push(
                Metric::host(name, Unit::Ns, Better::Lower, value as f64).of(subject.clone()),
            );
        }
    }
}

fn of_group(
    vms: &[&VmOutcome],
    outcome: &Outcome,
    seconds: f64,
    subject: Subject,
    metrics: &mut Vec<Metric>,
) {
    let meters: Vec<&Meter> = vms
        .iter()
        .filter_map(|vm| outcome.stats.meters.get(vm.meter))
        .collect();
    of_meters(&meters, seconds, &subject, metrics);
    let vcpus = || vms.iter().flat_map(|vm| &vm.vcpus);
    // Without the time before a VM starts, in which its vCPUs are nowhere.
    let time = vcpus().map(|v| v.task.total_ns() - v.task.absent_ns);
    let time = time.sum::<u64>() as f64;
    let share = |ns: u64| ns as f64 / time * 100.0;
    let mut add = |name: &str, unit, better, value: f64| {
        // Of a VM that has not started there are no shares.
        if !value.is_nan() {
            metrics.push(Metric::host(name, unit, better, value).of(subject.clone()));
        }
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
    let operations: u64 = meters.iter().map(|meter| meter.done).sum();
    if operations > 0 {
        add(
            "exits per operation",
            Unit::Count,
            Lower,
            exits as f64 / operations as f64,
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
    histogram("interrupt response", &interrupts, &subject, metrics);
    histogram("IPI response", &ipis, &subject, metrics);
    worst_lag(vcpus().map(|v| &v.task), &subject, metrics);
    of_clocks(vms, &subject, metrics);
}

/// Time of a vCPU's thread on a CPU, but neither in the guest nor polling.
fn in_exits(v: &VcpuOutcome) -> u64 {
    let elsewhere = v.vcpu.guest_ns.saturating_add(v.vcpu.poll_ns);
    v.task.run_ns.saturating_sub(elsewhere)
}

/// What guests that were moved saw of their clocks: the worst of the group.
fn of_clocks(vms: &[&VmOutcome], subject: &Subject, metrics: &mut Vec<Metric>) {
    let clocks: Vec<_> = vms.iter().filter_map(|vm| vm.clocks.as_ref()).collect();
    if clocks.is_empty() {
        return;
    }
    let mut add = |name: &str, unit, value: Option<u64>| {
        let value = value.unwrap_or(0) as f64;
        metrics.push(Metric::host(name, unit, Better::Lower, value).of(subject.clone()));
    };
    let worst = |value: fn(&stealtime_simulator::ClockOutcome) -> u64| {
        clocks.iter().map(move |clock| value(clock))
    };
    add(
        "clock steps back",
        Unit::Count,
        Some(worst(|clock| clock.steps_back).sum()),
    );
    add(
        "largest step back",
        Unit::Ns,
        worst(|clock| clock.largest_step_back_ns).max(),
    );
    add(
        "clocks differ by",
        Unit::Ns,
        worst(|clock| clock.difference_ns).max(),
    );
    add(
        "clocks are off by",
        Unit::Ns,
        worst(|clock| clock.error_ns.unsigned_abs()).max(),
    );
    // Of arm64 guests alone, which have such a counter.
    add(
        "physical counters are off by",
        Unit::Ns,
        worst(|clock| clock.physical_error_ns.unsigned_abs()).max(),
    );
    add(
        "stood still",
        Unit::Ns,
        worst(|clock| clock.blackout_ns).max(),
    );
}

fn of_host(config: &Config, outcome: &Outcome, seconds: f64, metrics: &mut Vec<Metric>) {
    let mut reasons: BTreeMap<u32, u64> = BTreeMap::new();
    for vcpu in outcome.vms.iter().flat_map(|vm| &vm.vcpus) {
        for (reason, count) in &vcpu.vcpu.exits {
            *reasons.entry(*reason).or_default() += count;
        }
    }
    for (reason, count) in reasons {
        metrics.push(Metric::host(
            format!("exits {}", reason_name(reason)),
            Unit::PerSecond,
            Better::Neither,
            count as f64 / seconds,
        ));
    }
    of_exits(&outcome.stats, metrics);
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
    rate("IPIs tracked", Neither, s.mechanisms.ipis_recorded.get());
    rate("guest hints", Neither, s.mechanisms.guest_hints.get());
    rate("paravirtual lock halts", Neither, s.pv_waits);
    rate("paravirtual lock kicks", Neither, s.pv_kicks);
    rate("threads moved in guests", Neither, s.guest_migrations);
    rate("context switches", Neither, s.context_switches);
    rate("migrations", Neither, s.migrations);
    rate("host IPIs", Neither, s.ipis_sent);
    rate("host interrupts", Neither, s.host_irqs);
    rate("host ticks", Neither, s.ticks);
    histogram("broadcast", &s.broadcast_ns, &Subject::Host, metrics);
    if s.broadcast_ns.count > 0 {
        let longest = s.broadcast_ns.max as f64;
        metrics.push(Metric::host("broadcast max", Unit::Ns, Lower, longest));
        of_targets(s, metrics);
    }
    let busy: u64 = outcome.cpus.iter().map(|cpu| cpu.busy_ns).sum();
    let time = outcome.measured_ns as f64 * outcome.cpus.len() as f64;
    let busy = busy as f64 / time * 100.0;
    metrics.push(Metric::host("CPUs busy", Unit::Percent, Neither, busy));
    if let Some(error) = fairness::share_error(config, outcome) {
        metrics.push(Metric::host("share error", Unit::Percent, Lower, error));
    }
}

/// The delay from a broadcast target's pending bit to its notification. It is the price of a batch:
/// the first quarter of the targets pays for the whole loop.
fn of_targets(stats: &Stats, metrics: &mut Vec<Metric>) {
    histogram(
        "target delay",
        &stats.target_delay_ns,
        &Subject::Host,
        metrics,
    );
    let mut add = |name: String, ns: u64| {
        metrics.push(Metric::host(name, Unit::Ns, Better::Lower, ns as f64));
    };
    add("target delay max".to_owned(), stats.target_delay_ns.max);
    for (n, quarter) in (1..).zip(&stats.target_delay_quarters) {
        if let Some(mean) = quarter.mean() {
            add(format!("target delay quarter {n}"), mean);
        }
    }
}

/// Exits by reason, as `perf kvm stat` has them: share of all exits' time, and how long one takes.
fn of_exits(stats: &Stats, metrics: &mut Vec<Metric>) {
    let total_ns: u64 = stats.exit_times.iter().map(|(_, times)| times.sum_ns).sum();
    let mut reasons = stats.exit_times.clone();
    reasons.sort_unstable_by_key(|(reason, _)| *reason);
    for (reason, times) in reasons.iter().filter(|(_, times)| times.count > 0) {
        let name = reason_name(*reason);
        let parts = [
            (
                "time",
                Unit::Percent,
                times.sum_ns as f64 / total_ns.max(1) as f64 * 100.0,
            ),
            ("mean", Unit::Ns, times.sum_ns as f64 / times.count as f64),
            ("min", Unit::Ns, times.min_ns as f64),
            ("max", Unit::Ns, times.max_ns as f64),
        ];
        for (part, unit, value) in parts {
            // Not "exits …": those are rates, which are summed by that name.
            let name = format!("exit {part} {name}");
            metrics.push(Metric::host(name, unit, Better::Neither, value));
        }
    }
}

fn reason_name(reason: u32) -> String {
    let name = ExitReason::vmx(reason).name();
    name.map_or_else(|| reason.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests;

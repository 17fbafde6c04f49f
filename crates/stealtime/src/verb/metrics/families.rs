//! All metrics, whatever the form. docs/metrics.md describes them.

use std::fmt;

use stealtime_collector::{Buckets, Classes, EDGES_NS};

use super::form::{Distribution, Form, seconds};
use super::scheduler;
use super::totals::{Labels, Totals};

/// Labels of a VM and one more.
fn labelled(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}

/// Waits of a VM.
fn distribution(classes: &Classes, buckets: &Buckets) -> Distribution {
    let edges = EDGES_NS.iter().map(|&edge| seconds(edge));
    Distribution {
        sum: seconds(classes.sum_ns),
        classes: edges.chain([f64::INFINITY]).zip(classes.counts).collect(),
        buckets: Some(buckets.clone()),
    }
}

/// Writes all of them.
pub(super) fn encode(form: &mut impl Form, totals: &Totals) -> fmt::Result {
    encode_vms(form, totals)?;
    encode_host(form, totals)?;
    match &totals.scheduler {
        Some(counted) => scheduler::encode(form, counted, totals.shares(), totals.max_vms()),
        None => Ok(()),
    }
}

fn encode_vms(form: &mut impl Form, totals: &Totals) -> fmt::Result {
    let vms = || totals.vms.values();
    let states = vms().flat_map(|vm| {
        let times = &vm.times;
        let states = [
            ("guest", times.guest_ns),
            ("exit", times.exit_ns),
            ("poll", times.poll_ns),
            ("halted", times.halt_ns),
            ("ready", times.ready_ns),
            ("unknown", times.unknown_ns),
        ];
        states.map(|(state, ns)| (labelled(&vm.labels, "state", state), ns))
    });
    let help = "Time of the VM's vCPU threads by state";
    form.times("vcpu", help, states.collect())?;
    let causes = vms().flat_map(|vm| {
        let rows = vm.times.ready.rows();
        rows.map(|(cause, ns)| (labelled(&vm.labels, "cause", cause), ns))
    });
    let help = "Time in which the VM's vCPUs waited for a CPU, by what the CPU did";
    form.times("ready", help, causes.collect())?;
    let exits = vms().flat_map(|vm| {
        let rows = vm.exits.iter();
        rows.map(|(reason, sums)| (labelled(&vm.labels, "reason", reason), *sums))
    });
    let exits: Vec<(Labels, (u64, u64))> = exits.collect();
    let counted = exits.iter().filter(|row| row.1.0 > 0);
    let counts = counted.map(|(labels, sums)| (labels.clone(), sums.0));
    let help = "VM exits by reason";
    form.counters("exits", help, counts.collect())?;
    let handled = exits.into_iter().map(|(labels, sums)| (labels, sums.1));
    let help = "Time on a CPU outside the guest by the reason of the exit, without polling";
    form.times("exit_handling", help, handled.collect())?;
    let wakeups = vms().map(|vm| {
        let waits = distribution(&vm.wakeups, &vm.wakeup_buckets);
        (vm.labels.clone(), waits)
    });
    let help = "Latency of wakeups of the VM's vCPUs";
    form.histograms("wakeup_latency", help, wakeups.collect())?;
    let stalls = vms().map(|vm| {
        let waits = distribution(&vm.stalls, &vm.stall_buckets);
        (vm.labels.clone(), waits)
    });
    let help = "Waits of the VM's vCPUs for a CPU, each from its begin to its end";
    form.histograms("stall", help, stalls.collect())?;
    let vcpus = vms().map(|vm| (vm.labels.clone(), vm.vcpus));
    form.gauges("vcpus", "vCPUs of the VM", vcpus.collect())?;
    let info = vms().map(|vm| {
        let pid = vm.pid.map_or_else(String::new, |pid| pid.to_string());
        let labels = labelled(&vm.labels, "manager", &vm.manager);
        (labelled(&labels, "pid", &pid), 1)
    });
    let help = "The VM's manager and process; the value is 1";
    form.gauges("vm_info", help, info.collect())
}

fn encode_host(form: &mut impl Form, totals: &Totals) -> fmt::Result {
    let modes = ["vcpu", "other", "idle"].into_iter().zip(totals.cpu_ns);
    let modes = modes.map(|(mode, ns)| (vec![("mode", mode.to_owned())], ns));
    let help = "Time of the host's CPUs by what they ran";
    form.times("host_cpu", help, modes.collect())?;
    let single = |value: u64| vec![(Labels::new(), value)];
    // Unknown before the first sample: 0 would be a number.
    let cpus = match totals.samples {
        0 => Vec::new(),
        _ => single(totals.cpus),
    };
    form.gauges("host_cpus", "CPUs of the host", cpus)?;
    let help = "Events that were collected";
    form.counters("collector_events", help, single(totals.events))?;
    let help = "Events that were lost, as far as their number is known";
    form.counters("collector_lost_events", help, single(totals.lost))?;
    let help = "Losses of an unknown number of events";
    form.counters("collector_lost_gaps", help, single(totals.lost_gaps))?;
    let help = "Samples that were taken";
    form.counters("collector_samples", help, single(totals.samples))?;
    let help = "Samples with lost events: times and counts of them are lower bounds";
    form.counters("collector_partial_samples", help, single(totals.partial))?;
    let cost = &totals.cost;
    if let Some(means) = cost.by {
        let help = "How events are collected; the value is 1";
        let labels = vec![("by", means.to_owned())];
        form.gauges("collector_info", help, vec![(labels, 1)])?;
    }
    if let Some(ns) = cost.cpu_ns {
        form.times("collector_cpu", "CPU time of the collector", single(ns))?;
    }
    if let Some((ns, runs)) = cost.kernel_ns.zip(cost.kernel_runs) {
        let help = "Time of BPF programs in the kernel";
        form.times("collector_kernel", help, single(ns))?;
        let help = "Runs of BPF programs";
        form.counters("collector_kernel_runs", help, single(runs))?;
    }
    Ok(())
}

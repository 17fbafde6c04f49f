//! The metrics in OpenMetrics and in Prometheus's own text form. docs/metrics.md describes them.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, NoLabelSet, prometheus_text, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use stealtime_collector::{Classes, EDGES_NS};

use super::scheduler;
use super::totals::{Labels, Totals, VmTotals};

/// OpenMetrics.
pub(super) fn openmetrics(totals: &Totals) -> String {
    let mut written = String::new();
    // A String takes any text.
    let _ = text::encode(&mut written, &registry(totals));
    written
}

/// Prometheus's text form 0.0.4, which node_exporter reads.
pub(super) fn prometheus(totals: &Totals) -> String {
    let mut written = String::new();
    let _ = prometheus_text::encode(&mut written, &registry(totals));
    written
}

fn registry(totals: &Totals) -> Registry {
    let mut registry = Registry::with_prefix("stealtime");
    registry.register_collector(Box::new(Exported(totals.clone())));
    registry
}

#[derive(Debug)]
struct Exported(Totals);

pub(super) fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

/// Labels of a VM and one more.
fn labelled(labels: &Labels, name: &'static str, value: &str) -> Labels {
    let mut labels = labels.clone();
    labels.push((name, value.to_owned()));
    labels
}

/// Values of a metric, by their labels.
pub(super) type Values<N> = Vec<(Labels, N)>;

pub(super) fn counters(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Values<u64>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    for (labels, value) in values {
        let mut series = metric.encode_family(&labels)?;
        series.encode_counter::<NoLabelSet, u64, u64>(&value, None)?;
    }
    Ok(())
}

/// The same of times in ns, which become seconds.
pub(super) fn times(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Values<u64>,
) -> fmt::Result {
    let unit = Unit::Seconds;
    let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Counter)?;
    for (labels, ns) in values {
        let mut series = metric.encode_family(&labels)?;
        series.encode_counter::<NoLabelSet, f64, f64>(&seconds(ns), None)?;
    }
    Ok(())
}

pub(super) fn gauges<N: EncodeGaugeValue>(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Values<N>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        metric.encode_family(&labels)?.encode_gauge(&value)?;
    }
    Ok(())
}

fn histograms(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    values: Values<Classes>,
) -> fmt::Result {
    let unit = Unit::Seconds;
    let mut metric = encoder.encode_descriptor(name, help, Some(&unit), MetricType::Histogram)?;
    for (labels, classes) in values {
        let edges = EDGES_NS.iter().map(|&edge| seconds(edge));
        let edges = edges.chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = edges.zip(classes.counts).collect();
        let mut series = metric.encode_family(&labels)?;
        let (sum, count) = (seconds(classes.sum_ns), classes.count());
        series.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
    }
    Ok(())
}

impl Exported {
    fn vms(&self) -> impl Iterator<Item = &VmTotals> {
        self.0.vms.values()
    }

    fn encode_vms(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let states = self.vms().flat_map(|vm| {
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
        times(encoder, "vcpu", help, states.collect())?;
        let causes = self.vms().flat_map(|vm| {
            let rows = vm.times.ready.rows();
            rows.map(|(cause, ns)| (labelled(&vm.labels, "cause", cause), ns))
        });
        let help = "Time in which the VM's vCPUs waited for a CPU, by what the CPU did";
        times(encoder, "ready", help, causes.collect())?;
        let exits = self.vms().flat_map(|vm| {
            let rows = vm.exits.iter();
            rows.map(|(reason, sums)| (labelled(&vm.labels, "reason", reason), *sums))
        });
        let exits: Vec<(Labels, (u64, u64))> = exits.collect();
        let counted = exits.iter().filter(|row| row.1.0 > 0);
        let counts = counted.map(|(labels, sums)| (labels.clone(), sums.0));
        let help = "VM exits by reason";
        counters(encoder, "exits", help, counts.collect())?;
        let handled = exits.into_iter().map(|(labels, sums)| (labels, sums.1));
        let help = "Time on a CPU outside the guest by the reason of the exit, without polling";
        times(encoder, "exit_handling", help, handled.collect())?;
        let wakeups = self.vms().map(|vm| (vm.labels.clone(), vm.wakeups));
        let help = "Latency of wakeups of the VM's vCPUs";
        histograms(encoder, "wakeup_latency", help, wakeups.collect())?;
        let stalls = self.vms().map(|vm| (vm.labels.clone(), vm.stalls));
        let help = "Waits of the VM's vCPUs for a CPU, each from its begin to its end";
        histograms(encoder, "stall", help, stalls.collect())?;
        let vcpus = self.vms().map(|vm| (vm.labels.clone(), vm.vcpus));
        gauges(encoder, "vcpus", "vCPUs of the VM", vcpus.collect())?;
        let info = self.vms().map(|vm| {
            let pid = vm.pid.map_or_else(String::new, |pid| pid.to_string());
            let labels = labelled(&vm.labels, "manager", &vm.manager);
            (labelled(&labels, "pid", &pid), 1)
        });
        let help = "The VM's manager and process; the value is 1";
        gauges(encoder, "vm_info", help, info.collect())
    }

    fn encode_host(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let totals = &self.0;
        let modes = ["vcpu", "other", "idle"].into_iter().zip(totals.cpu_ns);
        let modes = modes.map(|(mode, ns)| (vec![("mode", mode.to_owned())], ns));
        let help = "Time of the host's CPUs by what they ran";
        times(encoder, "host_cpu", help, modes.collect())?;
        let single = |value: u64| vec![(Labels::new(), value)];
        gauges(
            encoder,
            "host_cpus",
            "CPUs of the host",
            single(totals.cpus),
        )?;
        let help = "Events that were collected";
        counters(encoder, "collector_events", help, single(totals.events))?;
        let help = "Events that were lost, as far as their number is known";
        counters(encoder, "collector_lost_events", help, single(totals.lost))?;
        let help = "Losses of an unknown number of events";
        counters(
            encoder,
            "collector_lost_gaps",
            help,
            single(totals.lost_gaps),
        )?;
        let help = "Samples that were taken";
        counters(encoder, "collector_samples", help, single(totals.samples))?;
        let help = "Samples with lost events: times and counts of them are lower bounds";
        counters(
            encoder,
            "collector_partial_samples",
            help,
            single(totals.partial),
        )?;
        let cost = &totals.cost;
        if let Some(means) = cost.by {
            let help = "How events are collected; the value is 1";
            let labels = vec![("by", means.to_owned())];
            gauges(encoder, "collector_info", help, vec![(labels, 1)])?;
        }
        if let Some(ns) = cost.cpu_ns {
            times(
                encoder,
                "collector_cpu",
                "CPU time of the collector",
                single(ns),
            )?;
        }
        if let Some((ns, runs)) = cost.kernel_ns.zip(cost.kernel_runs) {
            let help = "Time of BPF programs in the kernel";
            times(encoder, "collector_kernel", help, single(ns))?;
            let help = "Runs of BPF programs";
            counters(encoder, "collector_kernel_runs", help, single(runs))?;
        }
        Ok(())
    }
}

impl Collector for Exported {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.encode_vms(&mut encoder)?;
        self.encode_host(&mut encoder)?;
        match &self.0.scheduler {
            Some(counted) => {
                scheduler::encode(&mut encoder, counted, self.0.shares(), self.0.max_vms())
            }
            None => Ok(()),
        }
    }
}

//! The VMs of a host with other numbers of them, as figures.

use serde::Serialize;
use stealtime_replay::predict::{self, Times, VcpuTimes};
use stealtime_replay::{RecordedTask, VmCopy};
use stealtime_simulator::script::Then;

use crate::baseline::Baseline;
use crate::count::{VmCount, check};
use crate::error::Error;
use crate::plan::{Host, Plan, Prepared};
use crate::replays::{self, Run};
use crate::result::quantile;

/// A VM of a replay: a recorded one or a copy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct VmFigures {
    /// `web`; `web#2`, `web#3` … for copies.
    pub name: String,
    /// The recorded VM.
    pub vm: String,
    /// 1 for the recorded one, 2 … for copies.
    pub number: u32,
    /// vCPUs that ran.
    pub vcpus: usize,
    /// It never waits for anything but a CPU: it takes what it gets.
    pub is_elastic: bool,
    /// Runnable without a CPU, in percent of its vCPUs' time.
    pub ready_percent: f64,
    /// On a CPU, in percent of its vCPUs' time.
    pub run_percent: f64,
    /// Median latency of its wakeups, in us; `None` without any.
    pub wakeup_p50_us: Option<f64>,
    /// 99th percentile of the same.
    pub wakeup_p99_us: Option<f64>,
    /// CPU time outside of halts, in ms per second of all its vCPUs.
    pub work_ms_per_s: f64,
    /// Share of its recorded demand that it got done, in percent.
    pub done_percent: f64,
    /// CPU time of its vCPUs outside of the guest (exits, halts, polling), in ms per second.
    pub overhead_ms_per_s: f64,
}

/// One replay of a host with so many VMs. VMs that are taken away are left out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Population {
    /// Recorded VMs in the order of the recording, each followed by its copies.
    pub vms: Vec<VmFigures>,
    /// CPU time of tasks that are no vCPUs, in ms per second.
    pub host_tasks_ms_per_s: f64,
    /// Switches to another task than the last one on that CPU, per second.
    pub switches_per_s: f64,
    /// CPU time of all, in ms per second: 1000 for one CPU.
    pub cpu_ms_per_s: f64,
}

impl Population {
    /// Of a replay of this host.
    pub(crate) fn new(base: &Baseline, host: &Host<'_>, times: &Times) -> Self {
        let span_ns = base.recorded.recording.span_ns;
        let rate = |ns: u64| ns as f64 / span_ns.max(1) as f64 * 1_000.0;
        let names = base.names();
        let of_vm = |vm: usize, original: usize, number: u32| {
            let name = names.get(original)?;
            let vcpus: Vec<&VcpuTimes> = times.vcpus.iter().filter(|time| time.vm == vm).collect();
            let tasks = host.recording.tasks.iter();
            let tasks: Vec<&RecordedTask> = tasks
                .filter(|task| task.vcpu.is_some_and(|vcpu| vcpu.0 == vm))
                .collect();
            (!vcpus.is_empty()).then(|| VmFigures {
                name: match number {
                    1 => name.clone(),
                    _ => format!("{name}#{number}"),
                },
                vm: name.clone(),
                number,
                vcpus: vcpus.len(),
                is_elastic: tasks.iter().all(|task| task.then == Then::Compute),
                ..figures(&vcpus, &tasks, rate)
            })
        };
        let mut vms = Vec::new();
        for vm in 0..names.len() {
            if vm < base.recorded.vms.len() {
                vms.extend(of_vm(vm, vm, 1));
            }
            let copies = host.copies.iter().filter(|copy| copy.original == vm);
            vms.extend(copies.filter_map(
                |&VmCopy {
                     vm,
                     original,
                     number,
                 }| { of_vm(vm, original, number) },
            ));
        }
        let run_ns: u64 = times.vcpus.iter().map(|time| time.run_ns).sum();
        Self {
            vms,
            host_tasks_ms_per_s: rate(times.others.run_ns),
            switches_per_s: times.decisions.displaced() as f64 / span_ns.max(1) as f64 * 1e9,
            cpu_ms_per_s: rate(run_ns.saturating_add(times.others.run_ns)),
        }
    }
}

/// The figures of a VM with these vCPUs.
fn figures(vcpus: &[&VcpuTimes], tasks: &[&RecordedTask], rate: impl Fn(u64) -> f64) -> VmFigures {
    let sum = |time: fn(&VcpuTimes) -> u64| vcpus.iter().map(|vcpu| time(vcpu)).sum::<u64>();
    let count = vcpus.len().max(1) as f64;
    let percent = |ns: u64| rate(ns) / 10.0 / count;
    let mut wakeups: Vec<u64> = vcpus
        .iter()
        .flat_map(|vcpu| vcpu.wakeups.iter().copied())
        .collect();
    wakeups.sort_unstable();
    let wakeup_us = |percent| quantile(&wakeups, percent).map(|ns| ns as f64 / 1_000.0);
    // A vCPU's part counts by its recorded work.
    let demand = |vcpu: &VcpuTimes| {
        let task = tasks
            .iter()
            .find(|task| task.vcpu == Some((vcpu.vm, vcpu.vcpu)));
        task.map_or(0.0, |task| predict::demand_ns(task) as f64)
    };
    let demands: f64 = vcpus.iter().map(|vcpu| demand(vcpu)).sum();
    let completed = vcpus
        .iter()
        .map(|vcpu| demand(vcpu) * vcpu.done_permille as f64);
    let in_halts_ns = sum(|time| time.in_halts_ns);
    VmFigures {
        name: String::new(),
        vm: String::new(),
        number: 1,
        vcpus: vcpus.len(),
        is_elastic: false,
        ready_percent: percent(sum(|time| time.ready_ns)),
        run_percent: percent(sum(|time| time.run_ns)),
        wakeup_p50_us: wakeup_us(50),
        wakeup_p99_us: wakeup_us(99),
        work_ms_per_s: rate(sum(|time| time.run_ns).saturating_sub(in_halts_ns)),
        done_percent: match demands > 0.0 {
            true => completed.sum::<f64>() / demands / 10.0,
            false => 100.0,
        },
        overhead_ms_per_s: rate(sum(|time| time.host_ns).saturating_add(in_halts_ns)),
    }
}

/// Replays each list of counts with the seeds 1 to [`Run::seeds`]. VMs that a list does not name are as
/// recorded. The result is by list, then by seed; a list is shorter where the run was stopped.
///
/// # Errors
///
/// A VM that is not there, counts that take too much memory, or the simulator's. All lists are checked first.
pub fn populations(
    base: &Baseline,
    lists: &[Vec<VmCount>],
    run: &Run<'_>,
) -> Result<Vec<Vec<Population>>, Error> {
    populations_with(base, &Plan::default(), lists, run)
}

/// As [`populations`], on top of other changes. Counts of a list replace those of `first`.
///
/// # Errors
///
/// As [`populations`], and a knob that does not take its value on this host.
pub fn populations_with(
    base: &Baseline,
    first: &Plan,
    lists: &[Vec<VmCount>],
    run: &Run<'_>,
) -> Result<Vec<Vec<Population>>, Error> {
    let mut plans = Vec::new();
    for list in lists {
        let mut prepared = first.prepare(base)?;
        for count in list {
            base.set_count(&mut prepared.counts, count)?;
        }
        check(&prepared.counts, base)?;
        plans.push(prepared);
    }
    let replay_one = |plan: &Prepared, seed| {
        let host = plan.host(base, seed)?;
        let times = predict::replay(&host.recording, &host.config)?;
        Ok(Population::new(base, &host, &times))
    };
    Ok(replays::each(&plans, run, replay_one)?.into_plans())
}

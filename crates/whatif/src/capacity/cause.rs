//! What has the CPUs while a VM's vCPUs are ready.

use std::collections::BTreeMap;

use serde::Serialize;
use stealtime_analysis::Answers;
use stealtime_events::{Event, Kind, Tid};
use stealtime_simulator::config::Config;
use stealtime_simulator::{Fault, Sink, run};
use stealtime_track::SwitchOut;

/// What has the CPUs while a VM's vCPUs are ready.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Taker {
    /// A VM with its copies, `host tasks`, or `nothing` for wakeup latencies of idle CPUs.
    pub name: String,
    /// It is the VM that is ready.
    pub is_same_vm: bool,
    /// Its share of the ready time, in percent.
    pub percent: f64,
}

/// The name for tasks that are no vCPUs.
pub(crate) const HOST: &str = "host tasks";
/// The name for idle CPUs.
pub(crate) const IDLE: &str = "nothing";

/// From time by name, the largest share first; names with less than 1 % are left out.
pub(crate) fn ranked(by_name: BTreeMap<String, u64>, vm: &str) -> Vec<Taker> {
    let sum: u64 = by_name.values().sum();
    let taker = |(name, ns): (String, u64)| Taker {
        is_same_vm: name == vm,
        name,
        percent: ns as f64 / sum.max(1) as f64 * 100.0,
    };
    let takers = by_name.into_iter().map(taker);
    let mut takers: Vec<Taker> = takers.filter(|taker| taker.percent >= 1.0).collect();
    takers.sort_by(|a, b| b.percent.total_cmp(&a.percent));
    takers
}

/// In the recording.
pub(crate) fn in_recording(answers: &Answers, vm: &str) -> Vec<Taker> {
    let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
    for ready in answers.ready.iter().filter(|ready| ready.vm == vm) {
        let name = match ready.cause.as_str() {
            "vcpu_same_vm" => vm,
            "vcpu_other_vm" => &ready.who,
            "idle" | "unknown" | "throttled" => IDLE,
            _ => HOST,
        };
        *by_name.entry(name.to_owned()).or_default() += ready.ns;
    }
    ranked(by_name, vm)
}

/// A CPU of a replay.
#[derive(Debug, Default)]
struct Cpu {
    current: Tid,
    /// Tasks in its run queue.
    ready: Vec<Tid>,
    /// Until when ready time is counted, in ns.
    counted_ns: u64,
}

/// Counts ready time of each task by the current task of its CPU.
#[derive(Debug, Default)]
struct Waits {
    cpus: BTreeMap<u32, Cpu>,
    /// In ns, by the ready and the current task.
    ns: BTreeMap<(Tid, Tid), u64>,
}

impl Waits {
    /// The CPU, with its ready time counted until `now_ns`.
    fn counted(&mut self, cpu: u32, now_ns: u64) -> &mut Cpu {
        let state = self.cpus.entry(cpu).or_default();
        let passed_ns = now_ns.saturating_sub(state.counted_ns);
        for &tid in &state.ready {
            *self.ns.entry((tid, state.current)).or_default() += passed_ns;
        }
        state.counted_ns = now_ns;
        state
    }

    /// Takes a task out of its run queue; whether it was in one.
    fn leave(&mut self, tid: Tid, now_ns: u64) -> bool {
        let mut queues = self.cpus.iter();
        let Some((&cpu, _)) = queues.find(|(_, state)| state.ready.contains(&tid)) else {
            return false;
        };
        self.counted(cpu, now_ns)
            .ready
            .retain(|known| *known != tid);
        true
    }

    fn is_current(&self, tid: Tid) -> bool {
        self.cpus.values().any(|state| state.current == tid)
    }
}

impl Sink for Waits {
    fn event(&mut self, event: &Event) {
        let now_ns = event.time_ns;
        match event.kind {
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => {
                self.leave(next, now_ns);
                let state = self.counted(u32::from(event.cpu.0), now_ns);
                if prev != Tid::default() && SwitchOut::from_prev_state(prev_state).is_runnable() {
                    state.ready.push(prev);
                }
                state.current = next;
            }
            Kind::SchedWaking {
                tid, target_cpu, ..
            }
            | Kind::SchedWakeup {
                tid, target_cpu, ..
            } if !self.is_current(tid) => {
                self.leave(tid, now_ns);
                self.counted(target_cpu, now_ns).ready.push(tid);
            }
            Kind::SchedMigrateTask { tid, dest_cpu, .. } if self.leave(tid, now_ns) => {
                self.counted(dest_cpu, now_ns).ready.push(tid);
            }
            _ => {}
        }
    }
}

/// In a replay of a host. `name` gives the VM of a script's VM number.
pub(crate) fn in_replay(
    config: &Config,
    vm: &str,
    name: impl Fn(u32) -> Option<String>,
) -> Result<Vec<Taker>, Fault> {
    let mut waits = Waits::default();
    let outcome = run(config, &mut waits)?;
    let tasks = outcome.scripts.iter().filter_map(|script| {
        let task = config.scripts.tasks.get(script.index)?;
        Some((script.tid, task))
    });
    let tasks: BTreeMap<Tid, _> = tasks.collect();
    let vm_of_vcpu = |tid: &Tid| {
        let task = tasks.get(tid).filter(|task| task.vcpu.is_some())?;
        name(task.vm?)
    };
    let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
    for ((ready, current), ns) in &waits.ns {
        if vm_of_vcpu(ready).is_none_or(|name| name != vm) {
            continue;
        }
        let taker = vm_of_vcpu(current).unwrap_or_else(|| match tasks.contains_key(current) {
            true => HOST.to_owned(),
            false => IDLE.to_owned(),
        });
        *by_name.entry(taker).or_default() += ns;
    }
    Ok(ranked(by_name, vm))
}

//! Wakeup latencies and waiting for a CPU, from events of a recording or of a replay.

use std::collections::BTreeMap;

use stealtime_analysis::is_runnable;
use stealtime_events::{Event, Kind};
use stealtime_simulator::Sink;

/// Times from the wakeup of a task to its getting a CPU.
#[derive(Clone, Debug, Default)]
pub struct WakeLatencies {
    woken: BTreeMap<i32, u64>,
    preempted: BTreeMap<i32, u64>,
    /// By thread, in ns, in the order of the wakeups.
    pub samples: BTreeMap<i32, Vec<u64>>,
    /// By thread, in ns: runnable without a CPU, after a wakeup or taken off one.
    pub ready_ns: BTreeMap<i32, u64>,
}

impl WakeLatencies {
    /// Takes in the next event.
    pub fn take(&mut self, event: &Event) {
        match event.kind {
            Kind::SchedWaking { tid, .. } => {
                self.woken.entry(tid.0).or_insert(event.time_ns);
            }
            Kind::SchedSwitch {
                prev,
                next,
                prev_state,
                ..
            } => {
                if prev.0 != 0 && is_runnable(prev_state) {
                    self.preempted.insert(prev.0, event.time_ns);
                }
                let woken = self.woken.remove(&next.0);
                let preempted = self.preempted.remove(&next.0);
                if let Some(since) = woken {
                    let latency = event.time_ns.saturating_sub(since);
                    self.samples.entry(next.0).or_default().push(latency);
                }
                if let Some(since) = preempted.or(woken) {
                    let ready = self.ready_ns.entry(next.0).or_default();
                    *ready = ready.saturating_add(event.time_ns.saturating_sub(since));
                }
            }
            // Who waits may have run in the gap.
            Kind::Lost { .. } => {
                self.woken.clear();
                self.preempted.clear();
            }
            _ => {}
        }
    }
}

impl Sink for WakeLatencies {
    fn event(&mut self, event: &Event) {
        self.take(event);
    }
}

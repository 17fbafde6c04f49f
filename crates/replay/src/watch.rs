//! Wakeup latencies, from events of a recording or of a replay.

use std::collections::BTreeMap;

use stealtime_events::{Event, Kind};
use stealtime_simulator::Sink;

/// Times from the wakeup of a task to its getting a CPU.
#[derive(Clone, Debug, Default)]
pub struct WakeLatencies {
    woken: BTreeMap<i32, u64>,
    /// By thread, in ns, in the order of the wakeups.
    pub samples: BTreeMap<i32, Vec<u64>>,
}

impl WakeLatencies {
    /// Takes in the next event.
    pub fn take(&mut self, event: &Event) {
        match event.kind {
            Kind::SchedWaking { tid, .. } => {
                self.woken.entry(tid.0).or_insert(event.time_ns);
            }
            Kind::SchedSwitch { next, .. } => {
                if let Some(since) = self.woken.remove(&next.0) {
                    let latency = event.time_ns.saturating_sub(since);
                    self.samples.entry(next.0).or_default().push(latency);
                }
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

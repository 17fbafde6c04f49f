//! Wakeup latencies and waiting for a CPU, from events of a recording or of a replay.

use std::collections::{BTreeMap, BTreeSet};

use stealtime_events::{Event, Kind};
use stealtime_simulator::Sink;
use stealtime_track::SwitchOut;

/// Times from the wakeup of a task to its getting a CPU.
#[derive(Clone, Debug, Default)]
pub struct WakeLatencies {
    woken: BTreeMap<i32, u64>,
    /// Current tasks.
    running: BTreeSet<i32>,
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
                self.running.remove(&prev.0);
                self.running.insert(next.0);
                if prev.0 != 0 && SwitchOut::from_prev_state(prev_state).is_runnable() {
                    self.preempted.insert(prev.0, event.time_ns);
                    // A wakeup of it while it had this CPU has kept it awake.
                    self.woken.remove(&prev.0);
                }
                let woken = self.woken.remove(&next.0);
                let preempted = self.preempted.remove(&next.0);
                if let Some(woken_ns) = woken {
                    let latency = event.time_ns.saturating_sub(woken_ns);
                    self.samples.entry(next.0).or_default().push(latency);
                }
                if let Some(runnable_ns) = preempted.or(woken) {
                    let ready = self.ready_ns.entry(next.0).or_default();
                    *ready = ready.saturating_add(event.time_ns.saturating_sub(runnable_ns));
                }
            }
            // A task that is current still does not sleep: the wakeup has kept it awake.
            Kind::SchedWakeup { tid, .. } if self.running.contains(&tid.0) => {
                self.woken.remove(&tid.0);
            }
            // A task that waits may have run in the gap.
            Kind::Lost { .. } => {
                self.running.clear();
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

#[cfg(test)]
mod tests {
    use stealtime_events::{Context, CpuId, Tid};

    use super::*;
    use crate::kinds;

    fn event(time_ns: u64, kind: Kind) -> Event {
        Event {
            time_ns,
            cpu: CpuId(0),
            tid: Tid(0),
            context: Context::default(),
            kind,
        }
    }

    fn switch(time_ns: u64, prev: i32, next: i32, prev_state: u32) -> Event {
        event(time_ns, kinds::switch(prev, next, prev_state))
    }

    /// `sched_waking` of task 5.
    fn waking(time_ns: u64) -> Event {
        event(time_ns, kinds::waking(5, 0))
    }

    /// `sched_wakeup` of task 5.
    fn wakeup(time_ns: u64) -> Event {
        event(time_ns, kinds::wakeup(5, 0))
    }

    /// Its latencies, and its waiting, in ns.
    fn latencies(events: &[Event]) -> (Option<Vec<u64>>, Option<u64>) {
        let mut latencies = WakeLatencies::default();
        events.iter().for_each(|event| latencies.take(event));
        (latencies.samples.remove(&5), latencies.ready_ns.remove(&5))
    }

    #[test]
    fn a_wakeup_that_keeps_its_task_awake_has_no_latency() {
        let events = [
            switch(0, 0, 5, 0),
            waking(10),
            switch(100, 5, 6, 0),
            switch(150, 6, 5, 1),
            switch(200, 5, 0, 1),
            waking(300),
            switch(320, 0, 5, 0),
        ];
        assert_eq!(latencies(&events), (Some(vec![20]), Some(70)));
    }

    #[test]
    fn a_wakeup_of_a_running_task_is_not_the_begin_of_a_later_one() {
        // It had its CPU still, and went on; then it slept and was woken.
        let later = [
            switch(0, 0, 5, 0),
            waking(10),
            wakeup(11),
            switch(200, 5, 0, 1),
            waking(300),
            wakeup(301),
            switch(320, 0, 5, 0),
        ];
        assert_eq!(latencies(&later).0, Some(vec![20]));
        // On its way to sleep: its CPU let go of it first.
        let early = [
            switch(0, 0, 5, 0),
            waking(190),
            switch(200, 5, 0, 1),
            wakeup(201),
            switch(220, 0, 5, 0),
        ];
        assert_eq!(latencies(&early).0, Some(vec![30]));
    }
}

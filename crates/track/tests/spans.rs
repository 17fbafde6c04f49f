//! Spans: each nanosecond of a thread and of a CPU is in at most one of them.

use common::{ASLEEP, Table, entry, events, lost, switch, wakeup};
use proptest::prelude::*;
use stealtime_events::{Event, Tid};
use stealtime_track::{CpuSpan, Observer, Run, Span, Tracker, VcpuIndex};

use crate::common;

#[derive(Debug, Default)]
struct Spans {
    first: u64,
    /// Spans and the end of each vCPU.
    vcpus: Vec<Vec<Span>>,
    has_ended: Vec<bool>,
    cpus: Vec<CpuSpan>,
}

impl Observer for Spans {
    fn begins(&mut self, time: u64, _: u16) {
        self.first = time;
    }

    fn vcpu_found(&mut self, vcpu: VcpuIndex, _: Tid) {
        assert_eq!(
            vcpu.index(),
            self.vcpus.len(),
            "numbers ascend without a gap"
        );
        self.vcpus.push(Vec::new());
        self.has_ended.push(false);
    }

    fn span(&mut self, vcpu: VcpuIndex, span: &Span) {
        assert!(
            !self.has_ended[vcpu.index()],
            "an ended thread has no spans"
        );
        self.vcpus[vcpu.index()].push(*span);
    }

    fn ended(&mut self, vcpu: VcpuIndex) {
        assert!(!self.has_ended[vcpu.index()], "a thread ends once");
        self.has_ended[vcpu.index()] = true;
    }

    fn cpu_span(&mut self, span: &CpuSpan) {
        self.cpus.push(*span);
    }
}

/// The spans of a recording, and the time of its last event.
fn spans(events: &[Event]) -> (Spans, u64) {
    let mut tracker = Tracker::new(Spans::default());
    for event in events {
        tracker.event(event, &Table);
    }
    tracker.close();
    let now = tracker.now();
    (tracker.into_observer(), now)
}

proptest! {
    #[test]
    fn spans_of_a_thread_tile_its_life(events in events()) {
        let (spans, now) = spans(&events);
        for (list, ended) in spans.vcpus.iter().zip(&spans.has_ended) {
            prop_assert!(list.iter().all(|span| span.start < span.end));
            prop_assert!(list.first().is_none_or(|span| span.start >= spans.first));
            for pair in list.windows(2) {
                prop_assert_eq!(pair[0].end, pair[1].start);
            }
            let end = list.last().map_or(now, |span| span.end);
            prop_assert!(*ended || end == now, "a thread that did not end is followed to the last event");
        }
    }

    #[test]
    fn a_cpu_has_one_task_at_a_time(events in events()) {
        let (spans, now) = spans(&events);
        for cpu in 0..common::CPUS {
            let mut end = 0;
            for span in spans.cpus.iter().filter(|span| span.cpu == cpu) {
                prop_assert!(end <= span.start && span.start <= span.end, "{span:?}");
                end = span.end;
            }
            prop_assert!(end <= now);
        }
    }

    /// Two CPUs cannot run one thread, so its time on CPUs is at most that of the recording.
    #[test]
    fn a_thread_runs_on_one_cpu_at_a_time(events in events()) {
        let (spans, now) = spans(&events);
        for list in &spans.vcpus {
            let running = list.iter().filter(|span| span.run == Run::Running);
            let ns: u64 = running.map(|span| span.end - span.start).sum();
            prop_assert!(ns <= now - spans.first);
        }
    }
}

/// The states of the only vCPU, with begin and end.
fn states(events: &[Event]) -> Vec<(Run, u64, u64)> {
    let (spans, _) = spans(events);
    let only = spans.vcpus.first().expect("a vCPU");
    let states = only.iter().map(|span| (span.run, span.start, span.end));
    states.collect()
}

#[test]
fn a_loss_makes_the_current_task_unknown_since_the_latest_event() {
    let events = [
        switch(100, 0, 0, 7, 0),
        entry(200, 0, 7, 0),
        lost(900, 0),
        entry(1_000, 0, 7, 0),
        switch(1_500, 0, 7, 0, ASLEEP),
    ];
    let expected = [
        (Run::Running, 100, 200),
        (Run::Unknown, 200, 1_000),
        (Run::Running, 1_000, 1_500),
    ];
    assert_eq!(states(&events)[1..], expected[1..]);
}

#[test]
fn a_loss_elsewhere_changes_nothing() {
    let events = [
        switch(100, 0, 0, 7, 0),
        entry(200, 0, 7, 0),
        wakeup(300, 1, 8, 1),
        lost(900, 1),
        switch(1_500, 0, 7, 0, ASLEEP),
    ];
    let running = |&(run, ..): &(Run, u64, u64)| run == Run::Running;
    let states = states(&events);
    let ns: u64 = states
        .iter()
        .filter(|state| running(state))
        .map(|state| state.2 - state.1)
        .sum();
    assert_eq!(ns, 1_300, "{states:?}");
}

#[test]
fn a_waiter_of_a_cpu_with_losses_is_unknown() {
    let events = [
        entry(100, 0, 7, 0),
        switch(200, 0, 7, 9, 0),
        lost(900, 0),
        switch(1_000, 0, 9, 7, ASLEEP),
        entry(1_100, 0, 7, 0),
    ];
    let states = states(&events);
    assert!(states.contains(&(Run::Unknown, 200, 1_000)), "{states:?}");
}

//! Events into the order of time.
//!
//! perf writes the buffers of the CPUs one after the other, and then `PERF_RECORD_FINISHED_ROUND`.
//! Events behind the next such record are later than all before this one. So events are held back for
//! one round (`ordered_events__flush`, tools/perf/util/ordered-events.c). Where rounds are missing or
//! larger than [`MAX_HELD`], windows of that size are sorted.

use stealtime_events::Event;

use crate::tracefs::EventSink;

/// Events that are held, at most: 60 MiB, and half as much again while they are sorted.
const MAX_HELD: usize = 3 << 19;

/// Holds events back until their order in time is certain.
#[derive(Default)]
pub(super) struct Sorter {
    held: Vec<Event>,
    /// Of `held`: the consumed events, and the end of those that are ready.
    consumed: usize,
    ready: usize,
    /// The latest time so far, and that at the end of the last round.
    latest_ns: u64,
    round_ns: u64,
    /// The latest time of an event that was ready.
    ready_ns: u64,
    /// The earliest time of an event that perf did not synthesize.
    origin_ns: u64,
}

impl EventSink for Sorter {
    /// Adds an event. Its time is 0 if perf synthesized it at the start of the recording.
    #[inline]
    fn push(&mut self, event: Event) -> &mut Event {
        self.latest_ns = self.latest_ns.max(event.time_ns);
        EventSink::push(&mut self.held, event)
    }
}

impl Sorter {
    /// Whether no event more can be held, until [`Sorter::window`] is called.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.held.len() - self.consumed >= MAX_HELD
    }

    /// Whether a sample that is read at this point is earlier than an event that was ready.
    #[inline]
    pub(super) fn is_late(&self, time_ns: u64) -> bool {
        time_ns < self.ready_ns
    }

    /// The same for a sample that is counted and not held: its time counts for the round.
    #[inline]
    pub(super) fn passes(&mut self, time_ns: u64) -> bool {
        self.latest_ns = self.latest_ns.max(time_ns);
        self.is_late(time_ns)
    }

    /// A round has ended.
    pub(super) fn round(&mut self) {
        let limit = self.round_ns;
        self.round_ns = self.latest_ns;
        if limit > 0 {
            self.sort();
            self.ready = self.held.partition_point(|event| event.time_ns <= limit);
            self.ready_ns = self.ready_ns.max(limit);
        }
    }

    /// Makes the first half of the held events ready, though earlier ones may follow.
    pub(super) fn window(&mut self) {
        self.sort();
        self.ready = self.held.len().div_ceil(2);
        let last = self.ready().last().map_or(0, |event| event.time_ns);
        self.ready_ns = self.ready_ns.max(last);
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self) {
        self.sort();
        self.ready = self.held.len();
    }

    fn sort(&mut self) {
        self.held.drain(..self.consumed.min(self.held.len()));
        self.consumed = 0;
        // Stable, so that events of one time keep the file's order. It finds the runs of the CPUs.
        self.held.sort_by_key(|event| event.time_ns);
        if self.origin_ns == 0 {
            let synthesized = self.held.partition_point(|event| event.time_ns == 0);
            self.origin_ns = self.held.get(synthesized).map_or(0, |event| event.time_ns);
        }
    }

    /// The events in certain order.
    pub(super) fn ready(&self) -> &[Event] {
        self.held.get(self.consumed..self.ready).unwrap_or_default()
    }

    /// Consumes the first of them.
    pub(super) fn consume(&mut self, count: usize) {
        self.consumed += count;
    }

    /// The time of the next event, in ns. One without a time has that of the event before it, `last_ns`,
    /// or of the first event with a time.
    #[inline]
    pub(super) fn time_of(&self, event: &Event, last_ns: u64) -> u64 {
        if event.time_ns == 0 {
            return self.origin_ns.max(last_ns);
        }
        event.time_ns
    }
}

#[cfg(test)]
mod tests {
    use stealtime_events::{Context, CpuId, Kind, Tid};

    use super::*;

    fn event(time_ns: u64) -> Event {
        Event {
            time_ns,
            tid: Tid(1),
            cpu: CpuId(0),
            context: Context::default(),
            kind: Kind::Lost { count: time_ns },
        }
    }

    fn drain(sorter: &mut Sorter) -> Vec<u64> {
        drain_at(sorter, 0)
    }

    fn drain_at(sorter: &mut Sorter, last_ns: u64) -> Vec<u64> {
        let ready = sorter.ready().iter();
        let times: Vec<_> = ready.map(|event| sorter.time_of(event, last_ns)).collect();
        sorter.consume(times.len());
        times
    }

    fn push(sorter: &mut Sorter, times: &[u64]) {
        for time in times {
            sorter.push(event(*time));
        }
    }

    #[test]
    fn rounds_hold_back_what_may_be_overtaken() {
        let mut sorter = Sorter::default();
        push(&mut sorter, &[10, 30, 20, 25]);
        sorter.round();
        assert_eq!(drain(&mut sorter), []);
        push(&mut sorter, &[40, 29]);
        sorter.round();
        assert_eq!(drain(&mut sorter), [10, 20, 25, 29, 30]);
        push(&mut sorter, &[35]);
        sorter.end();
        assert_eq!(drain(&mut sorter), [35, 40]);
    }

    #[test]
    fn what_has_no_time_comes_with_what_is_there_then() {
        let mut sorter = Sorter::default();
        push(&mut sorter, &[0, 10]);
        sorter.end();
        assert_eq!(drain(&mut sorter), [10, 10]);
        push(&mut sorter, &[0, 30]);
        sorter.end();
        assert_eq!(drain_at(&mut sorter, 20), [20, 30]);
    }

    #[test]
    fn memory_is_bounded_without_rounds() {
        let mut sorter = Sorter::default();
        let (mut given, mut most) = (0, 0);
        for time in 1..=3 * MAX_HELD as u64 {
            sorter.push(event(time));
            if sorter.is_full() {
                sorter.window();
                for time in drain(&mut sorter) {
                    given += 1;
                    assert_eq!(time, given);
                }
            }
            most = most.max(sorter.held.len());
        }
        assert!(given > MAX_HELD as u64, "{given}");
        assert!(most <= 2 * MAX_HELD, "{most}");
    }
}

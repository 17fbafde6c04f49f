//! Events into the order of time.
//!
//! perf writes what each CPU's buffer holds, CPU after CPU, and then `PERF_RECORD_FINISHED_ROUND`:
//! what comes after the next such record is later than all that came before this one. So events are
//! held back for one round. A recording whose rounds are missing or larger than [`MAX_HELD`] is
//! sorted in windows of that size.

use stealtime_events::Event;

use crate::tracefs::EventSink;

/// How many events are held at the most: 60 MiB, and half as much again while they are sorted.
const MAX_HELD: usize = 3 << 19;

/// Holds events back until they can be given in the order of time.
#[derive(Default)]
pub(super) struct Sorter {
    held: Vec<Event>,
    /// Of `held`: given so far, and in order and ready to be given.
    given: usize,
    ready: usize,
    /// The latest time so far, and that at the end of the last round.
    latest_ns: u64,
    round_ns: u64,
    /// The latest time of what was given or could have been.
    given_ns: u64,
    /// The earliest time that is none of perf's own making.
    origin_ns: u64,
}

impl EventSink for Sorter {
    /// Takes an event; its time is 0 for what perf made up at the start of the recording.
    #[inline]
    fn push(&mut self, event: Event) {
        self.latest_ns = self.latest_ns.max(event.time_ns);
        self.held.push(event);
    }
}

impl Sorter {
    /// Whether there is no more room: then [`Sorter::window`] makes some.
    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.held.len() - self.given >= MAX_HELD
    }

    /// Whether a sample that was read just now is earlier than what was given.
    #[inline]
    pub(super) fn is_late(&self, time_ns: u64) -> bool {
        time_ns < self.given_ns
    }

    /// Takes note of a sample that is not held; the same.
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
            self.given_ns = self.given_ns.max(limit);
        }
    }

    /// The first half of what is held is given, though more that belongs there may come.
    pub(super) fn window(&mut self) {
        self.sort();
        self.ready = self.held.len().div_ceil(2);
        let last = self.ready().last().map_or(0, |event| event.time_ns);
        self.given_ns = self.given_ns.max(last);
    }

    /// Nothing more will come.
    pub(super) fn end(&mut self) {
        self.sort();
        self.ready = self.held.len();
    }

    fn sort(&mut self) {
        self.held.drain(..self.given.min(self.held.len()));
        self.given = 0;
        // Stable: what perf has written first is given first. And made of a few runs.
        self.held.sort_by_key(|event| event.time_ns);
        if self.origin_ns == 0 {
            let made = self.held.partition_point(|event| event.time_ns == 0);
            self.origin_ns = self.held.get(made).map_or(0, |event| event.time_ns);
        }
    }

    /// The events that can be given.
    pub(super) fn ready(&self) -> &[Event] {
        self.held.get(self.given..self.ready).unwrap_or_default()
    }

    /// So many of them were taken.
    pub(super) fn taken(&mut self, count: usize) {
        self.given += count;
    }

    /// The time of an event that is given next: one without a time comes at `last_ns`, that of the
    /// event before it, or with the first that has one.
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
        sorter.taken(times.len());
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

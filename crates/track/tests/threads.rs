//! All threads: their current CPUs, ids given out again, and memory on an endless stream.

use common::{ASLEEP, Table, ZOMBIE, entry, event, events, lost, process_exit, switch, wakeup};
use proptest::prelude::*;
use stealtime_events::{Event, Kind, NameId, Names, Tid};
use stealtime_track::{
    FoundCurrent, Loss, Observer, Place, Switch, ThreadIndex, ThreadRef, Tracker,
};

use crate::common;

/// Follows the current tasks by the calls for all threads.
#[derive(Debug, Default)]
struct Currents {
    cpus: [Option<ThreadRef>; common::CPUS as usize],
    found: Vec<FoundCurrent>,
    losses: Vec<Loss>,
    replaced: Vec<(ThreadIndex, ThreadRef)>,
    last: Option<Switch>,
}

impl Observer for Currents {
    fn switch(&mut self, switch: &Switch) {
        self.cpus[usize::from(switch.cpu)] = Some(switch.next);
        self.last = Some(*switch);
    }

    fn current_found(&mut self, found: &FoundCurrent) {
        self.cpus[usize::from(found.cpu)] = Some(found.thread);
        self.found.push(*found);
    }

    fn lost(&mut self, loss: &Loss) {
        self.cpus[usize::from(loss.cpu)] = None;
        self.losses.push(*loss);
    }

    fn thread_replaced(&mut self, old: ThreadIndex, new: ThreadRef) {
        self.replaced.push((old, new));
    }

    fn event(&mut self, event: &Event, place: &Place, _: &dyn Names) {
        let expected = match self.last.take() {
            // The place of a switch is that of the task that leaves.
            Some(switch) => Some(switch.next),
            None => Some(place.thread_ref()),
        };
        assert_eq!(self.cpus[usize::from(place.cpu)], expected, "{event:?}");
        assert_eq!(place.tid, event.tid);
    }
}

fn track<O: Observer>(observer: O, events: &[Event]) -> Tracker<O> {
    let mut tracker = Tracker::new(observer);
    for event in events {
        tracker.event(event, &Table);
    }
    tracker
}

proptest! {
    /// A reader of `switch`, `current_found` and `lost` alone has the current task of each event.
    #[test]
    fn current_tasks_follow_from_the_calls(events in events()) {
        track(Currents::default(), &events);
    }
}

#[test]
fn a_switch_that_was_left_out_was_after_the_latest_event() {
    let events = [
        switch(100, 0, 0, 7, 0),
        wakeup(200, 1, 8, 1),
        event(300, 0, 8, Kind::SchedProcessExit { tid: Tid(8) }),
    ];
    let tracker = track(Currents::default(), &events);
    let found = tracker.observer().found.last().expect("a hidden switch");
    assert_eq!((found.cpu, found.thread.tid, found.since), (0, Tid(8), 100));
}

#[test]
fn a_loss_has_the_time_since_which_nothing_is_known() {
    let events = [lost(50, 0), switch(100, 0, 0, 7, 0), lost(900, 0)];
    let tracker = track(Currents::default(), &events);
    let losses = &tracker.observer().losses;
    let since: Vec<(u64, bool)> = losses
        .iter()
        .map(|loss| (loss.since, loss.is_first))
        .collect();
    assert_eq!(since, [(0, true), (100, false)]);
}

/// A vCPU's thread 7 that ends on CPU 0.
fn life(start: u64) -> [Event; 4] {
    [
        switch(start, 0, 0, 7, 0),
        entry(start + 10, 0, 7, 0),
        process_exit(start + 20, 0, 7),
        switch(start + 30, 0, 7, 0, ZOMBIE),
    ]
}

#[test]
fn an_id_given_out_again_is_another_thread() {
    let fork = Kind::SchedProcessFork {
        parent: Tid(1),
        child: Tid(7),
    };
    let name = Kind::Task {
        tid: Tid(7),
        process: Tid(0),
        name: NameId(2),
    };
    let again = [
        event(200, 0, 1, fork),
        event(200, 0, 1, name),
        switch(200, 0, 0, 7, ASLEEP),
    ];
    for second in again {
        let mut events = life(100).to_vec();
        events.push(second);
        let tracker = track(Currents::default(), &events);
        let [(old, new)] = tracker.observer().replaced[..] else {
            panic!("{:?}", tracker.observer().replaced);
        };
        assert_ne!(old, new.index, "the first keeps its number as a vCPU");
        assert_eq!(new.tid, Tid(7));
        assert!(tracker.threads().get(old).dead && !tracker.threads().get(new.index).dead);
        assert_eq!(tracker.threads().get(new.index).vcpu, None);
    }
}

/// A reader for an endless stream.
struct Live;

impl Observer for Live {
    const RECYCLES: bool = true;
}

#[test]
fn an_endless_stream_needs_bounded_memory() {
    let mut tracker = Tracker::new(Live);
    for round in 0..5_000 {
        // Ids come round as the kernel gives them out (`pid_max`).
        let tid = 100 + round % 50;
        let now = 1_000 * round as u64;
        let events = [
            switch(now, 0, 0, tid, 0),
            entry(now + 10, 0, tid, round as u32 % 4),
            process_exit(now + 20, 0, tid),
            switch(now + 30, 0, tid, 0, ZOMBIE),
        ];
        for event in events {
            tracker.event(&event, &Table);
        }
    }
    let vcpus = tracker.vcpus().len();
    assert!(
        vcpus <= 2,
        "{vcpus} vCPUs, of which one is alive at any time"
    );
    let threads = tracker.threads().iter().count();
    assert!(threads <= 2 * 50, "{threads} threads for 50 ids");
}

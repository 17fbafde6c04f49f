//! One pass over the events of a recording.

use std::collections::BTreeMap;

use stealtime_analysis::Answers;
use stealtime_events::{Event, Names};
use stealtime_track::Tracker;

use crate::recording::Recording;
use crate::scripts::Scripts;

/// Turns the events of a recording into the scripts of its tasks.
#[derive(Debug)]
pub struct Extractor {
    tracker: Tracker<Scripts>,
}

impl Extractor {
    /// An extractor for the recording that `answers` are about: they map vCPU threads to VMs.
    #[must_use]
    pub fn new(answers: &Answers) -> Self {
        Self {
            tracker: Tracker::new(Scripts::new(answers)),
        }
    }

    /// Threads that are no vCPUs, and the index of the VM that each works for, where the host says so.
    pub fn set_vmm_threads(&mut self, threads: BTreeMap<i32, usize>) {
        self.tracker.observer_mut().vmm_threads.stated(threads);
    }

    /// Takes the next event, in the order of time; an earlier one counts as at the time of the one
    /// before it.
    pub fn event(&mut self, event: &Event, names: &dyn Names) {
        self.tracker.observer_mut().advance(event);
        self.tracker.event(event, names);
    }

    /// The same for several events.
    pub fn events(&mut self, events: &[Event], names: &dyn Names) {
        for event in events {
            self.event(event, names);
        }
    }

    /// The recording is over.
    #[must_use]
    pub fn finish(self) -> Recording {
        self.tracker.into_observer().finish()
    }
}

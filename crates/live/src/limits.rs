//! When a recording ends by itself, and how it reports meanwhile.

use std::time::{Duration, Instant};

use crate::session::{Ended, Observer, Progress};

/// The time between reports.
const INTERVAL: Duration = Duration::from_millis(500);

/// When a recording ends by itself.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) began: Instant,
    pub(crate) duration: Option<Duration>,
    /// Bytes.
    pub(crate) size: Option<u64>,
}

impl Limits {
    /// Time until the end; `None` without one.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        let elapsed = self.began.elapsed();
        self.duration
            .map(|duration| duration.saturating_sub(elapsed))
    }

    /// Whether and why the recording ends with so many bytes.
    pub(crate) fn ended(&self, bytes: u64, observer: &dyn Observer) -> Option<Ended> {
        if observer.is_stopped() {
            return Some(Ended::Stopped);
        }
        if self.remaining().is_some_and(|time| time.is_zero()) {
            return Some(Ended::Time);
        }
        let is_large = self.size.is_some_and(|size| bytes >= size);
        is_large.then_some(Ended::Size)
    }
}

/// The last report: events and lost ones until then.
#[derive(Debug)]
pub(crate) struct Reports {
    last: Instant,
    events: u64,
}

impl Reports {
    pub(crate) fn new(events: u64) -> Self {
        Self {
            last: Instant::now(),
            events,
        }
    }

    pub(crate) fn is_due(&self) -> bool {
        self.last.elapsed() >= INTERVAL
    }

    /// Reports, with the rate since the last time.
    pub(crate) fn report(&mut self, progress: Progress, observer: &mut dyn Observer) {
        let events = progress.events + progress.lost;
        let seconds = self.last.elapsed().as_secs_f64();
        observer.progress(&Progress {
            rate: (events.saturating_sub(self.events) as f64 / seconds) as u64,
            ..progress
        });
        *self = Self::new(events);
    }
}
